"""What is true of the machines and tables that tests make."""

from dataclasses import dataclass

from inferometer.perfmodel.steptime_terms import StepParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """A row of T1 (docs of the sweep: Qwen2.5-3B-Instruct, float16, Hugging Face eager, RTX 5070 Ti laptop GPU)."""

    prompt_tokens: int
    batch_size: int
    prefill_ms: float
    step_ms: float
    reserved_mib: int


CPU_TRUTH = StepParameters(
    launch_s=0.02,
    weight_bytes_per_s=18e9,
    kv_bytes_per_s=9e9,
    matmul_flop_per_s=120e9,
    attention_flop_per_s=60e9,
    per_sequence_s=1e-5,
    link_bytes_per_s=1e9,
    message_s=1e-6,
    floor_s=1e-12,
    prefill_ratio=1.2,
    overlap_ratio=1.0,
    blend_ratio=1.4,
    sag_ratio=0.0,
)
"""A CPU as the model sees one; runs made from it tell whether a fit finds back what was put in."""

GPU_TRUTH = StepParameters(
    launch_s=0.02,
    weight_bytes_per_s=6e11,
    kv_bytes_per_s=2e11,
    matmul_flop_per_s=4e13,
    attention_flop_per_s=3e12,
    per_sequence_s=5e-5,
    link_bytes_per_s=5e10,
    message_s=1e-5,
    floor_s=3e-3,
    prefill_ratio=1.2,
    overlap_ratio=4.0,
    blend_ratio=2.0,
    sag_ratio=0.03,
    mixed_kv_ratio=1.7,
)
"""A GPU whose host runs ahead."""

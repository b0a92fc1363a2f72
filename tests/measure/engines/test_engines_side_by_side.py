"""The real engines on the real SmolLM2, each in its own environment, started as a sweep starts them."""

from pathlib import Path

import pytest

from inferometer.errors import EngineError, SpecError
from inferometer.inputs.types import (
    AttentionSpec,
    EngineSpec,
    MlpSpec,
    ModelSpec,
    Source,
    SweepPoint,
)
from inferometer.measure.engines.protocol import (
    Measure,
    ModelReference,
    OutOfMemory,
    ProbeSettings,
    Repeated,
)
from inferometer.measure.engines.remote import RemoteEngine, WorkerSettings
from inferometer.measure.environments import ENGINES_DIR, find_environment
from inferometer.records.types import ProbeKind

pytestmark = pytest.mark.slow

SMOLLM2 = ModelSpec(
    model_id="smollm2-135m",
    architecture="llama",
    n_layers=30,
    hidden_size=576,
    vocab_size=49152,
    max_position_tokens=8192,
    attention=AttentionSpec(n_heads=9, n_kv_heads=3, head_dim=64),
    mlp=MlpSpec(intermediate_size=1536),
    source=Source(kind="config", where="the metadata of its GGUF file"),
    tie_word_embeddings=True,
)
TWO_LAYERS = ModelSpec(
    model_id="two-layers",
    architecture="qwen2",
    n_layers=2,
    hidden_size=512,
    vocab_size=2048,
    max_position_tokens=1024,
    attention=AttentionSpec(n_heads=8, n_kv_heads=2, head_dim=64, has_qkv_bias=True),
    mlp=MlpSpec(intermediate_size=1024),
    source=Source(kind="unsourced", where="a test"),
    tie_word_embeddings=True,
)
SHORT = SweepPoint(prompt_tokens=24, batch_size=2, gen_tokens=12)
BATCH = SweepPoint(prompt_tokens=64, batch_size=5, gen_tokens=4)
ONE_TOKEN = SweepPoint(prompt_tokens=32, batch_size=3, gen_tokens=1)


@pytest.fixture(scope="module")
def model(smollm2):
    return ModelReference(kind="gguf", location=smollm2.location, spec=SMOLLM2)


@pytest.fixture(scope="module")
def settings_of():
    def settings(engine):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ENGINES_DIR, str(Path(__file__).parents[3]))
            try:
                return WorkerSettings(python=str(find_environment(engine).python))
            except EngineError as error:
                pytest.skip(f"{error.what}; {error.try_}")

    return settings


def repetitions(engine, point, vocab_size=SMOLLM2.vocab_size, n_warmup=1, n_reps=2):
    task = Measure(
        point=point, n_warmup=n_warmup, n_reps=n_reps, seed=7, vocab_size=vocab_size, probes=None
    )
    return [message.repetition for message in engine.measure(task) if isinstance(message, Repeated)]


def read_bytes_per_s(engine, footprint_bytes):
    ceilings = engine.probe(
        ProbeSettings(
            kinds=(ProbeKind.READ,), footprint_bytes=footprint_bytes, matmul_dtype="float32"
        )
    )
    return ceilings[0].value_per_s


def check_plausible(engine, measured, point):
    """Lengths honoured, a step for each token, and no step faster than a tenth of what reading the weights takes."""
    facts = engine.facts()
    floor_s = facts.weight_bytes / (10 * read_bytes_per_s(engine, facts.weight_bytes))
    for repetition in measured:
        assert [len(ids) for ids in repetition.output_ids] == [point.gen_tokens] * point.batch_size
        assert len(repetition.decode_step_ns) == point.gen_tokens - 1
        assert all(
            step_ns / 1e9 > floor_s
            for step_ns in (repetition.prefill_ns, *repetition.decode_step_ns)
        )
        total_ns = repetition.prefill_ns + sum(repetition.decode_step_ns)
        assert total_ns <= repetition.ended_ns - repetition.started_ns
        assert repetition.reserved_bytes > facts.weight_bytes
    assert measured[0].output_ids != measured[1].output_ids, "every repetition has its own prompts"


def test_transformers_and_vllm_say_the_same(model, settings_of):
    said = {}
    for name in ("transformers", "vllm"):
        with RemoteEngine(EngineSpec(engine=name, n_threads=2), model, settings_of(name)) as engine:
            measured = repetitions(engine, SHORT)
            check_plausible(engine, measured, SHORT)
            said[name] = [repetition.output_ids for repetition in measured]
            if name == "vllm":
                check_vllm_further(engine)
    assert said["vllm"] == said["transformers"]


def check_vllm_further(engine):
    check_plausible(engine, repetitions(engine, BATCH), BATCH)
    check_plausible(engine, repetitions(engine, ONE_TOKEN), ONE_TOKEN)
    facts = engine.facts()
    assert (facts.version, facts.attention_implementation, facts.compute_dtype) == (
        "0.32.0",
        "CPU_ATTN",
        "float32",
    )
    assert (facts.n_parameters, facts.weight_bytes) == (134_515_008, 4 * 134_515_008)
    assert facts.weights_sha256 is not None
    n_blocks = facts.n_kv_blocks
    grown = SweepPoint(
        prompt_tokens=16, batch_size=n_blocks, gen_tokens=2
    )  # a block for each, and one is vLLM's own
    assert len(repetitions(engine, grown, n_warmup=0, n_reps=1)[0].output_ids) == n_blocks
    assert engine.facts().n_kv_blocks > n_blocks
    with pytest.raises(SpecError, match="a batch of 500"):
        repetitions(engine, SweepPoint(prompt_tokens=16, batch_size=500, gen_tokens=2))
    with pytest.raises(SpecError, match="8192"):
        repetitions(engine, SweepPoint(prompt_tokens=8190, batch_size=1, gen_tokens=3))
    with pytest.raises(OutOfMemory):
        repetitions(engine, SweepPoint(prompt_tokens=8000, batch_size=256, gen_tokens=2))
    check_plausible(engine, repetitions(engine, SHORT), SHORT)


@pytest.mark.long
def test_vllm_splits_a_model_over_two_processes(settings_of):
    spec = EngineSpec(engine="vllm", n_threads=2, tensor_parallel_size=2, load_format="dummy")
    with RemoteEngine(
        spec, ModelReference(kind="spec", location=None, spec=TWO_LAYERS), settings_of("vllm")
    ) as engine:
        facts = engine.facts()
        assert facts.weights_origin == "random"
        assert facts.weights_sha256 is None
        check_lengths = repetitions(engine, BATCH, vocab_size=TWO_LAYERS.vocab_size)
        assert all(
            [len(ids) for ids in repetition.output_ids] == [4] * 5 for repetition in check_lengths
        )
        assert all(len(repetition.decode_step_ns) == 3 for repetition in check_lengths)


def skip_where_the_processor_cannot(engine: RemoteEngine) -> None:
    """Compute in the format asked for: the engine refuses it, where it would do so in another unasked."""
    try:
        engine.facts()
    except SpecError as refused:
        if (refused.where, refused.allowed) != ("--dtype", "float32"):
            raise
        pytest.skip(str(refused))


@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype"),
    [
        ("float32", "int8"),
        pytest.param("float32", None, marks=pytest.mark.long),
        pytest.param("bfloat16", "int8", marks=pytest.mark.long),
    ],
)
def test_openvino_computes_and_caches_as_it_is_told(model, settings_of, dtype, kv_cache_dtype):
    spec = EngineSpec(engine="openvino", n_threads=2, dtype=dtype, kv_cache_dtype=kv_cache_dtype)
    with RemoteEngine(spec, model, settings_of("openvino")) as engine:
        skip_where_the_processor_cannot(engine)
        for point in (SHORT, BATCH, ONE_TOKEN):
            check_plausible(engine, repetitions(engine, point), point)
        facts = engine.facts()
        assert (facts.compute_dtype, facts.kv_cache_dtype) == (dtype, kv_cache_dtype or dtype)
        assert facts.n_parameters == 134_515_008
        assert facts.weight_bytes == pytest.approx(
            92_485_340, rel=1e-4
        )  # the graph's own file of constants
        with pytest.raises(OutOfMemory):
            repetitions(engine, SweepPoint(prompt_tokens=8000, batch_size=256, gen_tokens=2))
        check_plausible(engine, repetitions(engine, SHORT), SHORT)

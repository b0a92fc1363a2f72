"""What did others measure, point by point: one row for a model on a device under a load?

The tables of InferenceX (InferenceMAX before) and of AIConfigurator's collection of them come as
these. Absent floats are NaN, absent counts -1. Letters of shapes: N points.
"""

from typing import NamedTuple

from inferometer.records.columns import F64, I32, Bools, Texts


class PublishedPointTable(NamedTuple):
    """One row per published point (N rows), in the order of the files."""

    source_file: Texts
    row: I32
    """Of the file, from 0."""
    hardware: Texts
    """As the file says."""
    hardware_id: Texts
    """Of the catalogue; '' where it has no such device."""
    model: Texts
    precision: Texts
    """fp4, fp8, int4, bf16; '' where the file does not say."""
    framework: Texts
    framework_version: Texts
    is_disaggregated: Bools
    """Prefill and decode on devices of their own: ``tensor_parallel`` is then not the number of
    devices."""
    uses_speculation: Bools
    """The file says so; where it has no column for it, False says nothing."""
    is_provisional: Bools
    tensor_parallel: I32
    expert_parallel: I32
    data_parallel: I32
    """Of attention."""
    n_devices: I32
    """-1 where disaggregated."""
    prompt_tokens: I32
    """Nominal. InferenceX draws lengths from 80 to 100 % of it: the mean is 0.9 times as much."""
    output_tokens: I32
    concurrency: I32
    """Of the whole deployment, closed loop."""
    device_total_tokens_per_s: F64
    """Input and output, per device."""
    device_output_tokens_per_s: F64
    device_input_tokens_per_s: F64
    ttft_mean_s: F64
    ttft_median_s: F64
    ttft_p99_s: F64
    ttft_unnamed_s: F64
    """Of a statistic that the file does not name."""
    tpot_mean_s: F64
    tpot_median_s: F64
    tpot_p99_s: F64
    tpot_unnamed_s: F64
    e2e_mean_s: F64
    e2e_median_s: F64
    e2e_p99_s: F64

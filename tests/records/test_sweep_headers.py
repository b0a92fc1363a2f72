"""Are columns read under the names that other tools give them?"""

import pytest

from inferometer.records.foreign_sweeps import column_of
from inferometer.records.sweep_csv import read_sweep_csv

READ = {
    "prompt": [
        "seq_len",
        "Prompt tokens",
        "isl",
        "input_size",
        "Input Length",
        "seqlen",
        "n_prompt",
    ],
    "batch": ["batch", "Batch Size", "bs"],
    "gen": ["gen_tokens", "Max new tokens", "osl", "output_size", "Output tokens", "n_gen"],
    "prefill_ms": [
        "prefill_p50_ms",
        "prefill ms",
        "TTFT ms",
        "TTFT (s)",
        "1st_latency(ms)",
        "time to first token (ms)",
        "median_ttft_ms",
    ],
    "decode_ms": ["decode ms/tok", "decode ms/step", "decode_p50_ms_per_tok"],
    "step_ms": [
        "tpot_ms",
        "TPOT mean ms",
        "2nd_avg_latency(ms)",
        "time per output token (s)",
        "inter-token latency (ms)",
    ],
    "reserved_mb": ["reserved MB", "VRAM_reserved (MB)", "Peak memory reserved [GB]"],
    "allocated_mb": ["allocated_mb", "torch max_memory_allocated MB"],
}
NOT_READ = [
    "prefill tok/s", "decode_tok_s", "prefill_ms_per_tok", "latency(ms)", "max_rss_mem(MB)", "p99_ttft_ms", "TTFT p95 (ms)",
    "prefill_low_ms", "decode ms", "ttft", "mbu", "n_reps", "",
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "header"), [(field, header) for field, headers in READ.items() for header in headers]
)
def test_known(field, header):
    assert column_of(header).field == field


@pytest.mark.parametrize("header", NOT_READ)
def test_not_read(header):
    assert column_of(header) is None


SPELLINGS = [
    "seq_len,batch,gen_tokens,prefill_p50_ms,tpot_ms,reserved_mb\n128,2,32,35,26,6144\n",
    (
        "Prompt tokens;Batch;Max new tokens;TTFT ms;TPOT mean ms;VRAM_reserved"
        " (MB)\n128;2;32;35;26;6144\n"
    ),
    (
        "| ISL | OSL | BS | mean TTFT (s) | median TTFT (s) | median TPOT (s) | reserved GB |\n"
        "|--|--|--|--|--|--|--|\n| 128 | 32 | 2 | 0.04 | 0.035 | 0.026 | 6 |\n"
    ),
    (
        "iteration,input_size,output_size,latency(ms),1st_latency(ms),2nd_avg_latency(ms),batch_size,vram"
        " reserved mib\n0,128,32,900,35,26,2,6144\n"
    ),
]


@pytest.mark.parametrize("text", SPELLINGS, ids=["ours", "spreadsheet", "seconds", "llm_bench"])
def test_one_measurement_in_the_spellings_of_four_tools_is_one_run(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    sweep = read_sweep_csv(path).sweep
    assert (int(sweep.prompt_tokens[0]), int(sweep.batch_size[0]), int(sweep.gen_tokens[0])) == (
        128,
        2,
        32,
    )
    assert int(sweep.prefill_ns[0]) == 35_000_000
    assert int(sweep.decode_ns[0]) == pytest.approx(26_000_000 * int(sweep.n_decode_steps[0]))
    assert int(sweep.reserved_bytes[0]) == 6 * 2**30

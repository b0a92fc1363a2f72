"""Are the lines of SGLang's bench_one_batch read as the table of a sweep, with and without a server?"""

import json

import pytest

from inferometer.errors import RecordError
from inferometer.records.sweep_csv import read_sweep_csv

# Keys and units as in sgl-project/sglang, bench_one_batch.py; the numbers are made up.
OFFLINE = {
    "run_name": "default",
    "batch_size": 8,
    "input_len": 1024,
    "output_len": 16,
    "prefill_latency": 0.281,
    "prefill_throughput": 29153.0,
    "median_decode_latency": 0.00804,
    "median_decode_throughput": 995.0,
    "total_latency": 0.41,
    "overall_throughput": 20000.0,
}
SERVER = {
    "run_name": "default",
    "batch_size": 33,
    "input_len": 8192,
    "output_len": 101,
    "latency": 5.0,
    "input_throughput": 3374.0,
    "output_throughput": 551.92,
    "overall_throughput": 608.47,
    "last_ttft": 1.0,
    "last_gen_throughput": 66.18,
    "acc_length": -1.0,
    "cache_hit_rate": None,
}


@pytest.fixture
def sweep_of(tmp_path):
    def read(*rows):
        path = tmp_path / "result.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_sweep_csv(path).sweep

    return read


def test_a_batch_without_a_server(sweep_of):
    sweep = sweep_of(OFFLINE, OFFLINE | {"batch_size": 1, "prefill_latency": 0.04})
    assert sweep.batch_size.tolist() == [8, 1]
    assert sweep.prompt_tokens.tolist() == [1024, 1024]
    assert sweep.gen_tokens.tolist() == [16, 16]
    assert sweep.prefill_ns.tolist() == [281_000_000, 40_000_000]
    assert (sweep.decode_ns / sweep.n_decode_steps).tolist() == pytest.approx([8.04e6, 8.04e6])


def test_a_batch_on_a_server_decodes_after_its_last_first_token(sweep_of):
    sweep = sweep_of(SERVER)
    assert sweep.prefill_ns.tolist() == [1_000_000_000]
    assert (sweep.decode_ns / sweep.n_decode_steps).tolist() == pytest.approx([40e6])


def test_one_output_token_has_no_decode_step(sweep_of):
    row = {name: value for name, value in OFFLINE.items() if "decode" not in name}
    assert sweep_of(row | {"output_len": 1}).prefill_ns.tolist() == [281_000_000]


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ((OFFLINE, OFFLINE | {"run_name": "other"}), "several runs: default, other"),
        ((SERVER | {"acc_length": 2.4},), "several tokens a step"),
        ((OFFLINE, {"run_name": "default", "prefill_latency": 1.0}), "has no output_len"),
        ((OFFLINE | {"prefill_latency": "fast"},), "prefill_latency"),
    ],
)
def test_other_lines_are_refused(sweep_of, rows, what):
    with pytest.raises(RecordError) as caught:
        sweep_of(*rows)
    assert what in f"{caught.value.what} {caught.value.where}"

"""Are llama-bench's tables read as the phases that they time, in each of its formats?"""

import json

import pytest

from inferometer.api.analysis import label_runs
from inferometer.errors import RecordError
from inferometer.inputs.catalog import find_model
from inferometer.inputs.types import EngineSpec
from inferometer.records.sweep_csv import TableFacts, read_sweep_csv

MARKDOWN = """\
ggml_cuda_init: found 1 CUDA devices:
| model                  |     size | params | backend | ngl |         test |             t/s |
| ---------------------- | -------: | -----: | ------- | --: | -----------: | --------------: |
| qwen2 7B Q4_K - Medium | 4.36 GiB | 7.62 B | CUDA    |  -1 |       pp512  | 7340.20 ± 23.45 |
| qwen2 7B Q4_K - Medium | 4.36 GiB | 7.62 B | CUDA    |  -1 |       tg 128 |   120.60 ± 0.59 |
| qwen2 7B Q4_K - Medium | 4.36 GiB | 7.62 B | CUDA    |  -1 | pp512 @ d512 | 6425.91 ± 18.88 |
| qwen2 7B Q4_K - Medium | 4.36 GiB | 7.62 B | CUDA    |  -1 | tg128 @ d512 |   116.71 ± 0.60 |
| qwen2 7B Q4_K - Medium | 4.36 GiB | 7.62 B | CUDA    |  -1 | pp512+tg128  |  545.11 ± 1.00  |

build: 5cd85b5 (5000)
"""
RECORDS = [
    {
        "model_type": "qwen2 7B Q4_K - Medium",
        "n_batch": 2048,
        "n_prompt": n_prompt,
        "n_gen": n_gen,
        "n_depth": depth,
        "avg_ns": sum(samples) // len(samples),
        "samples_ns": samples,
    }
    for n_prompt, n_gen, depth, samples in (
        (512, 0, 0, [70_000_000, 69_000_000, 71_000_000]),
        (0, 128, 0, [1_060_000_000, 1_062_000_000, 1_061_000_000]),
        (0, 128, 512, [1_090_000_000, 1_092_000_000, 1_091_000_000]),
        (512, 0, 512, [80_000_000]),
        (512, 128, 0, [1_200_000_000]),
    )
]


def as_csv():
    names = [name for name in RECORDS[0] if name != "samples_ns"]
    lines = [",".join(f'"{one[name]}"' for name in names) for one in RECORDS]
    return "\n".join([",".join(names), *lines]) + "\n"


def as_sql():
    """As ``-o sql`` writes it: quotes within a value are doubled."""
    names = [name for name in RECORDS[0] if name != "samples_ns"]
    rows = [", ".join(f"'{one[name]}'" for name in names) for one in RECORDS]
    head = "CREATE TABLE IF NOT EXISTS llama_bench (\n  n_prompt INTEGER\n);\n\n"
    columns = ", ".join(("cpu_info", *names))
    return head + "".join(
        f"INSERT INTO llama_bench ({columns}) VALUES ('Bo''s, 8 cores', {row});\n"  # noqa: S608
        for row in rows
    )


def test_its_engine_is_not_transformers(tmp_path):
    """``show`` of these tables printed "transformers eager bfloat16"."""
    path = tmp_path / "mine.md"
    path.write_text(MARKDOWN)
    model, engine = find_model("qwen2.5-7b"), EngineSpec(dtype="bfloat16")
    run = read_sweep_csv(path, TableFacts(model=model, engine=engine))
    assert label_runs([run]) == ("mine.md of llama-bench bfloat16",)
    compiled = TableFacts(model=model, engine=EngineSpec(dtype="bfloat16", mode="compiled"))
    plain = tmp_path / "plain.csv"
    plain.write_text("prompt,batch,gen_tokens,tpot_ms\n512,1,32,8.0\n")
    assert label_runs([read_sweep_csv(plain, compiled)]) == ("plain.csv compiled bfloat16",)


BATCHED = """\
llama_batched_bench: n_kv_max = 8192, n_batch = 2048, n_ubatch = 512, flash_attn = 1, \
is_pp_shared = {shared}, is_tg_separate = {separate}, n_gpu_layers = -1, n_threads = 28

|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|   512 |    128 |    1 |    640 |    0.200 |  2560.00 |    1.280 |   100.00 |    1.480 |   432.43 |
|   512 |    128 |    4 |   2560 |    0.800 |  2560.00 |    2.560 |   200.00 |    3.360 |   761.90 |
|   512 |    128 |    8 |   5120 |    1.600 |  2560.00 |    5.120 |   200.00 |    6.720 |   761.90 |
"""


def points_of(sweep):
    columns = (sweep.batch_size, sweep.n_decode_steps, sweep.prefill_ns, sweep.decode_ns)
    return {tuple(map(int, row)) for row in zip(*columns, strict=True)}


@pytest.mark.parametrize("prefix", ["", "> "])
def test_batched_bench_has_steps_of_several_sequences(tmp_path, prefix):
    """Eight prompts of 512 do not fit into a batch of 2048: their prefill is left out."""
    text = "".join(
        prefix + line for line in BATCHED.format(shared=0, separate=0).splitlines(keepends=True)
    )
    found = points_of(read(tmp_path, "bench.log", text))
    assert {row[:2] for row in found} == {(1, 128), (4, 128), (8, 128)}
    assert (1, 128, 200_000_000, 1_280_000_000) in found
    assert (4, 128, 800_000_000, 2_560_000_000) in found
    assert [row[2] <= 0 for row in found if row[0] == 8] == [True]


def test_batched_bench_with_one_shared_prompt_or_separate_sequences(tmp_path):
    shared = points_of(read(tmp_path, "a.log", BATCHED.format(shared=1, separate=0)))
    assert {row[0] for row in shared if row[2] > 0} == {1}
    separate = points_of(read(tmp_path, "b.log", BATCHED.format(shared=0, separate=1)))
    assert {row[0] for row in separate if row[1] > 0} == {1}


def test_lines_of_batched_bench(tmp_path):
    row = {"n_batch": 2048, "is_pp_shared": 0, "is_tg_separate": 0, "pp": 128, "tg": 64, "pl": 2,
           "n_kv": 384, "t_pp": 0.5, "t_tg": 6.4}  # fmt: skip
    found = points_of(read(tmp_path, "bench.jsonl", json.dumps(row) + "\n"))
    assert found == {(2, 64, 500_000_000, 6_400_000_000)}


def read(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    return read_sweep_csv(tmp_path / name).sweep


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bench.md", MARKDOWN),
        ("bench.csv", as_csv()),
        ("bench.sql", as_sql()),
        ("bench.json", json.dumps(RECORDS, indent=2)),
        ("bench.jsonl", "\n".join(map(json.dumps, RECORDS))),
    ],
)
def test_phases_are_read_and_other_tests_left_out(tmp_path, name, text):
    sweep = read(tmp_path, name, text)
    points = {
        (int(p), int(b), int(g))
        for p, b, g in zip(sweep.prompt_tokens, sweep.batch_size, sweep.gen_tokens, strict=True)
    }
    assert points == {(512, 1, 1), (1, 1, 128), (512, 1, 128)}
    is_decode = sweep.n_decode_steps > 0
    assert sweep.prefill_ns[~is_decode].astype(float).mean() == pytest.approx(70e6, rel=0.01)
    per_step_ns = sweep.decode_ns[is_decode].astype(float) / sweep.n_decode_steps[is_decode]
    assert per_step_ns.min() == pytest.approx(8.29e6, rel=0.01)
    assert per_step_ns.max() == pytest.approx(8.55e6, rel=0.01)


def test_repetitions_stay_repetitions(tmp_path):
    sweep = read(tmp_path, "bench.json", json.dumps(RECORDS))
    assert sweep.repetition.max() == 2


def test_each_printed_table_has_its_own_columns(tmp_path):
    """A log of several runs: their headers are no rows, and a setting that one alone has differs."""
    again = MARKDOWN.replace("backend |", "backend | fa |").replace("CUDA    |", "CUDA    | 1 |")
    again = again.replace("------- |", "------- | - |", 1)
    twice = read(tmp_path, "bench.md", f"{MARKDOWN}\nbuild: 1\n\n{MARKDOWN}")
    once = read(tmp_path, "bench.md", MARKDOWN)
    assert len(twice.prefill_ns) == 2 * len(once.prefill_ns)
    with pytest.raises(RecordError, match="several values of fa: not stated, 1"):
        read(tmp_path, "bench.md", f"{MARKDOWN}\n{again}")


def test_several_models_in_one_file_are_refused(tmp_path):
    rows = [RECORDS[0], RECORDS[1] | {"model_type": "llama 8B Q4_0"}]
    with pytest.raises(RecordError, match="several values of model_type: qwen2 7B"):
        read(tmp_path, "bench.json", json.dumps(rows))


def test_a_file_of_pg_tests_alone_is_refused(tmp_path):
    with pytest.raises(RecordError, match="tells a prefill or a decode time"):
        read(tmp_path, "bench.json", json.dumps(RECORDS[3:]))


@pytest.mark.parametrize("broken", ['[{"n_prompt": "x", "n_gen": 1}]', '[{"n_prompt": 1, "n_gen"'])
def test_broken_files_are_refused(tmp_path, broken):
    with pytest.raises(RecordError):
        read(tmp_path, "bench.json", broken)

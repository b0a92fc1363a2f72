"""Are the published tables read whole, with what their source files and plain queueing say of them?"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from inferometer.inputs.catalog import load_hardware
from inferometer.records.imports.imported import PublishedPointTable
from inferometer.records.imports.inferencex import read_inferencex, read_silicon
from inferometer.records.tables import column_types, from_columns

DATA = Path(__file__).parents[4] / "shared" / "data"


def folder(name):
    found = DATA / name
    if not found.exists():
        pytest.skip("the published data is not here")
    return found


@pytest.fixture(scope="module")
def official():
    tables = [
        read_inferencex(path)
        for path in sorted(folder("inferencemax-official-2025-11").glob("agg_*.json"))
    ]
    return PublishedPointTable._make(
        np.concatenate(columns) for columns in zip(*tables, strict=True)
    )


@pytest.fixture(scope="module")
def silicon():
    return read_silicon(folder("inferencex-silicon") / "silicon_sample.csv")


def test_every_row_of_the_official_files(official):
    assert len(official.row) == 617
    assert Counter(official.hardware_id.tolist()) == {
        "h200_sxm": 131, "b200_sxm": 203, "mi355x": 66, "mi300x": 61, "mi325x": 59, "gb200": 54, "h100_sxm": 43
    }  # fmt: skip
    assert Counter(official.precision.tolist()) == {"fp4": 492, "fp8": 125}
    assert int(official.is_disaggregated.sum()) == 54
    assert int(official.uses_speculation.sum()) == 19
    lengths = Counter(
        zip(official.prompt_tokens.tolist(), official.output_tokens.tolist(), strict=True)
    )
    assert lengths == {(1024, 1024): 219, (8192, 1024): 212, (1024, 8192): 186}
    assert {official.source_file[0], official.source_file[-1]} == {
        "agg_dsr1_1k1k.json",
        "agg_gptoss_8k1k.json",
    }


def test_the_first_row_is_what_the_file_says(official):
    found = {name: getattr(official, name)[0].item() for name in PublishedPointTable._fields}
    assert (found["hardware"], found["framework"], found["model"]) == (
        "b200-trt",
        "trt",
        "deepseek-ai/DeepSeek-R1-0528",
    )
    assert (
        found["tensor_parallel"],
        found["expert_parallel"],
        found["data_parallel"],
        found["n_devices"],
    ) == (8, 8, 1, 8)
    assert (found["concurrency"], found["ttft_median_s"], found["tpot_p99_s"]) == (
        8,
        0.13440519105643034,
        0.0160982707959743,
    )
    assert np.isnan(found["ttft_unnamed_s"])


def test_rates_are_per_device_and_total_is_input_and_output(official):
    """Where prefill and decode have devices of their own, the file divides each by its own."""
    both = official.device_input_tokens_per_s + official.device_output_tokens_per_s
    is_sum = np.isclose(official.device_total_tokens_per_s, both, rtol=1e-9)
    assert (is_sum == ~official.is_disaggregated).all()


def test_the_aggregated_rows_obey_littles_law(official):
    """Output rate · time in the system / mean output = requests in it.

    0.95 to 1 of the nominal concurrency, see SOURCE.md there.
    """
    rows = ~official.is_disaggregated
    mean_output = (official.e2e_mean_s - official.ttft_mean_s) / official.tpot_mean_s + 1
    in_system = (
        official.device_output_tokens_per_s * official.n_devices * official.e2e_mean_s / mean_output
    )
    share = (in_system / official.concurrency)[rows]
    assert len(share) == 563
    assert (share > 0.94).all()
    assert (share < 1.01).all()
    assert (official.n_devices[~rows] == -1).all()


def test_every_row_of_the_silicon_table(silicon):
    assert len(silicon.row) == 5089
    assert Counter(silicon.framework.tolist()) == {"trtllm": 2317, "sglang": 1487, "vllm": 1285}
    assert Counter(silicon.precision.tolist()) == {
        "fp8": 2575,
        "fp4": 1978,
        "": 366,
        "int4": 90,
        "bf16": 80,
    }
    assert (int(silicon.is_disaggregated.sum()), int(silicon.is_provisional.sum())) == (1602, 234)
    assert "" not in silicon.hardware_id.tolist()
    assert np.isnan(silicon.device_total_tokens_per_s).all(), "it has no throughput"
    assert int(silicon.uses_speculation.sum()) == 294
    assert Counter(silicon.n_devices.tolist())[-1] == 1602
    assert int((silicon.prefill_workers > 0).sum()) == 274
    alone = ~silicon.is_disaggregated
    assert Counter(silicon.decode_workers[alone].tolist()) == {1: 3458, 2: 9, 4: 11, 8: 6, 32: 3}, (
        "servers of NVIDIA's rows, by the users whom one batch holds"
    )
    assert (silicon.tpot_unnamed_s > 0).all()
    assert 1e-3 < np.median(silicon.tpot_unnamed_s) < 0.1


def test_one_measurement_of_several_exports_has_one_layout(silicon):
    """InferenceX's later exports state 64 devices where its first has 8: the square of them."""
    layouts = {}
    for index in np.flatnonzero(~silicon.is_disaggregated & (silicon.n_devices <= 8)):
        seen = tuple(column[index] for column in (silicon.ttft_unnamed_s, silicon.tpot_unnamed_s))
        layout = tuple(
            int(column[index])
            for column in (
                silicon.tensor_parallel,
                silicon.data_parallel,
                silicon.expert_parallel,
                silicon.n_devices,
            )
        )
        layouts.setdefault(seen, set()).add(layout)
    assert all(len(found) == 1 for found in layouts.values())
    found = Counter(layout for each in layouts.values() for layout in each)
    assert min(found[8, 1, 8, 8], found[4, 1, 4, 4], found[1, 8, 8, 8], found[1, 4, 4, 4]) > 10


HEADER = (
    "origin,concurrency,backend,model_path,system,mode,isl,osl,ttft_ms,tpot_ms,tp_size,"
    "attention_dp_size,moe_tp_size,moe_ep_size"
)


@pytest.mark.parametrize(
    ("stated", "layout"),
    [
        ("64,1,8,8", (8, 1, 8)),
        ("1,64,8,8", (1, 8, 8)),
        ("4,4,1,16", (4, 1, 4)),
        ("4,1,2,2", (2, 1, 2)),
        ("4,1,1,4", (4, 1, 4)),
        ("8,1,8,1", (8, 1, 1)),
        ("1,4,4,1", (1, 4, 1)),
    ],
)
def test_the_square_of_the_devices_is_the_number_of_them(tmp_path, stated, layout):
    path = tmp_path / "silicon_sample.csv"
    row = "inferencex-export-2026-04-06,8,trtllm,deepseek-ai/DeepSeek-R1,b200_sxm,agg,1024,1024,9,9"
    path.write_text(f"{HEADER}\n{row},{stated}\n")
    table = read_silicon(path)
    found = table.tensor_parallel[0], table.data_parallel[0], table.expert_parallel[0]
    assert found == layout
    assert table.n_devices[0] == layout[0] * layout[1]


SPECULATED = "origin,backend,backend_version,measured_date,model_path,system,precision,mode"


@pytest.mark.parametrize(
    ("row", "is_speculated"),
    [
        ("trtllm,1.2.0rc6.post3,2026-02-06,deepseek-ai/DeepSeek-R1,b200_sxm,fp4,agg,8,8,1", True),
        ("trtllm,1.2.0rc6.post2,2026-02-03,deepseek-ai/DeepSeek-R1,b200_sxm,fp4,agg,8,8,1", False),
        ("trtllm,1.1.0rc2.post2,2026-01-14,deepseek-ai/DeepSeek-R1,h200_sxm,fp8,agg,8,1,8", True),
        ("trtllm,1.1.0rc2.post2,2025-12-15,deepseek-ai/DeepSeek-V3,b200_sxm,fp8,agg,8,1,8", False),
        ("sglang,0.5.9,2026-03-20,Qwen/Qwen3.5-397B-A17B,b200_sxm,fp8,agg,4,4,1", True),
        ("sglang,0.5.9,2026-03-24,Qwen/Qwen3.5-397B-A17B,b200_sxm,fp8,agg,4,1,4", False),
        ("sglang,0.5.9,2026-03-25,deepseek-ai/DeepSeek-R1,b200_sxm,fp8,agg,8,8,1", True),
        ("sglang,0.5.9,2026-03-25,deepseek-ai/DeepSeek-V3,b200_sxm,fp8,agg,8,8,1", False),
        ("sglang,0.5.9,2026-03-25,deepseek-ai/DeepSeek-R1,h200_sxm,fp8,agg,8,8,1", False),
        ("vllm,0.18.0,2026-03-25,openai/gpt-oss-120b,b200_sxm,fp4,agg,4,4,1", False),
    ],
)
def test_rows_with_draft_tokens_are_those_of_the_configurations_with_them(
    tmp_path, row, is_speculated
):
    """The collection has no column for it; TPOT is half that of the same devices without."""
    path = tmp_path / "silicon_sample.csv"
    columns = "tp_size,moe_tp_size,moe_ep_size,concurrency,isl,osl,ttft_ms,tpot_ms"
    path.write_text(f"{SPECULATED},{columns}\ninferencex-export,{row},4,1024,1024,9,9\n")
    assert read_silicon(path).uses_speculation[0] == is_speculated


@pytest.mark.parametrize(
    ("name", "layout"), [("c512_cfg706", (2, 1, 2)), ("c512_cfg707", (1, 2, 2))]
)
def test_replicas_of_vllm_are_those_of_the_configuration_that_was_started(tmp_path, name, layout):
    """The collection states 2 and 2 for two devices with expert parallelism, and for two replicas."""
    path = tmp_path / "silicon_sample.csv"
    row = "inferencex-db-dump-2026-04-27,8,vllm,MiniMaxAI/MiniMax-M2.5,b200_sxm,agg,1024,1024,9,9"
    path.write_text(f"id,{HEADER}\nminimaxm2_5_b200_vllm_fp4_agg_1024x1024_{name},{row},2,2,1,4\n")
    table = read_silicon(path)
    assert (table.tensor_parallel[0], table.data_parallel[0], table.expert_parallel[0]) == layout


@pytest.mark.parametrize(
    ("stated", "layout"), [("1,,2,1", (1, 2, 1)), ("2,,2,1", (2, 1, 1)), ("4,,1,1", (4, 1, 1))]
)
def test_replicas_that_are_not_stated_follow_from_the_experts(tmp_path, stated, layout):
    path = tmp_path / "silicon_sample.csv"
    row = "nvidia-internal-gap-analysis,8,vllm,Qwen/Qwen3-235B-A22B-FP8,h200_sxm,agg,1000,100,9,9"
    path.write_text(f"{HEADER}\n{row},{stated}\n")
    table = read_silicon(path)
    found = table.tensor_parallel[0], table.data_parallel[0], table.expert_parallel[0]
    assert found == layout


def test_hardware_ids_are_those_of_the_catalogue(official, silicon):
    known = {hardware.hardware_id for hardware in load_hardware()}
    assert set(official.hardware_id.tolist()) | set(silicon.hardware_id.tolist()) <= known | {""}


def test_columns_are_of_their_types(official, silicon):
    for table in (official, silicon):
        assert from_columns(PublishedPointTable, table._asdict()).row is not None
    assert column_types(PublishedPointTable)["tensor_parallel"] == np.dtype("int32")


def test_one_point_alone_with_its_workload_in_it(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(
        '{"hw": "mi300x", "tp": 8, "ep": 1, "dp_attention": true, "conc": 4, "model": "m",'
        ' "framework": "vllm", "precision": "fp8", "isl": 1024, "osl": 512, "tput_per_gpu": 3,'
        ' "output_tput_per_gpu": 1, "input_tput_per_gpu": 2, "median_tpot": 0.01, "spec_decoding":'
        ' "mtp"}'
    )
    table = read_inferencex(path)
    assert (
        table.prompt_tokens[0],
        table.output_tokens[0],
        table.data_parallel[0],
        table.n_devices[0],
    ) == (1024, 512, 8, 8)
    assert table.uses_speculation[0]
    assert np.isnan(table.ttft_mean_s[0])

"""Are kernel tables read with their units, and only the rows that are asked for?"""

import gzip

import pytest

from inferometer.errors import RecordError
from inferometer.records.imports.kernel_tables import read_kernel_tables

TABLES = {
    "gemm_perf": ("gemm_dtype,m,n,k,latency", ["bfloat16,1,64,32,0.5", "fp8,1,64,32,0.1"]),
    "generation_attention_perf": (
        "batch_size,num_heads,num_key_value_heads,head_dim,attn_dtype,kv_cache_dtype,step,window_size,latency",
        [
            "4,8,2,64,bfloat16,bfloat16,511,0,0.02",
            "4,8,2,64,bfloat16,fp8,511,0,0.01",
            "4,8,2,64,bfloat16,bfloat16,511,128,0.01",
        ],
    ),
    "context_attention_perf": (
        "batch_size,isl,num_heads,num_key_value_heads,head_dim,attn_dtype,kv_cache_dtype,step,window_size,latency",
        ["1,512,8,2,64,bfloat16,bfloat16,0,0,0.03", "1,512,8,2,64,bfloat16,bfloat16,64,0,0.04"],
    ),
    "moe_perf": (
        "moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency",
        [
            "bfloat16,16,64,32,2,8,1,1,power_law_1.01,0.06",
            "bfloat16,16,64,32,2,8,1,2,power_law_1.01,0.03",
        ],
    ),
    "nccl_perf": (
        "op_name,nccl_dtype,num_gpus,message_size,latency",
        ["all_reduce,half,2,1024,0.007", "all_gather,half,2,1024,0.005"],
    ),
}


@pytest.fixture
def folder(tmp_path):
    for name, (header, rows) in TABLES.items():
        with gzip.open(tmp_path / f"{name}.vllm-1.0.csv.gz", "wt") as file:
            file.write("\n".join([header, *rows]) + "\n")
    return tmp_path


def test_what_is_read(folder):
    tables = read_kernel_tables(folder)
    assert [column.tolist() for column in tables.gemm] == [[1.0], [64.0], [32.0], [0.5e-3]]
    assert [column.tolist() for column in tables.decode] == [
        [4.0],
        [512.0],
        [8.0],
        [2.0],
        [64.0],
        [pytest.approx(0.02e-3)],
    ]
    assert [column.tolist() for column in tables.prefill] == [
        [1.0],
        [512.0],
        [8.0],
        [2.0],
        [64.0],
        [pytest.approx(0.03e-3)],
    ]
    assert [column.tolist() for column in tables.experts] == [
        [16.0],
        [64.0],
        [32.0],
        [2.0],
        [8.0],
        [pytest.approx(0.06e-3)],
    ]
    assert [column.tolist() for column in tables.all_reduce] == [
        [2.0],
        [2048.0],
        [pytest.approx(0.007e-3)],
    ]


def test_what_is_missing(folder):
    (folder / "moe_perf.vllm-1.0.csv.gz").unlink()
    with pytest.raises(RecordError, match="0 tables called moe_perf"):
        read_kernel_tables(folder)

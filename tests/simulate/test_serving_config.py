"""Does an engine get the knobs that are said, and is a wrong one named with what it takes?"""

import pytest

from inferometer.errors import SpecError
from inferometer.simulate.engine_config import engine_config

SHARED = {"num_blocks": 1000, "max_model_len": 4096}


@pytest.mark.parametrize(
    ("engine", "own", "value"),
    [
        ("dynamic", {"preferred_batch_size": "4,8"}, (4, 8)),
        ("dynamic", {"preferred_batch_size": "4"}, (4,)),
        ("dynamic", {"instance_count": "2"}, 2),
        ("vllm", {"acceptance_fraction": "0.8,0.6", "num_speculative_tokens": "2"}, (0.8, 0.6)),
        ("vllm", {"acceptance_fraction": "0.8", "num_speculative_tokens": "2"}, 0.8),
        ("vllm", {"policy": "srpt"}, "srpt"),
        ("sglang", {"enable_mixed_chunk": "true"}, True),
    ],
)
def test_text_becomes_what_the_knob_takes(engine, own, value):
    assert getattr(engine_config(engine, SHARED, own, where="--set"), next(iter(own))) == value


def test_an_error_names_what_was_typed():
    origins = {"max_num_seqs": "--max-num-seqs", "num_blocks": "its default here"}
    with pytest.raises(SpecError, match="none has no max_num_seqs\n  from: --max-num-seqs"):
        engine_config("none", SHARED | {"max_num_seqs": 8}, {}, where="--set", origins=origins)
    with pytest.raises(SpecError, match="max_batch_size = 0\n  from: --max-num-seqs"):
        engine_config("trtllm", SHARED | {"max_num_seqs": 0}, {}, where="--set", origins=origins)
    with pytest.raises(SpecError, match="num_blocks = 1\n  from: its default here"):
        engine_config("trtllm", SHARED | {"num_blocks": 1}, {}, where="--set", origins=origins)
    with pytest.raises(SpecError, match="max_num_tokens = 0\n  from: --set"):
        engine_config("trtllm", SHARED, {"max_num_tokens": "0"}, where="--set", origins=origins)


@pytest.mark.parametrize(
    ("own", "try_"),
    [
        ({"max_num_seqs": "many"}, "--set max_num_seqs=256"),
        ({"kv_allocation": "contiguous"}, "--set enable_prefix_caching=false"),
        ({"async_scheduling": "maybe"}, "--set async_scheduling=true"),
        ({"num_blocks": "100", "max_model_len": "4096"}, "--set max_model_len=1600"),
    ],
)
def test_a_value_that_cannot_be_is_answered_with_one_that_can(own, try_):
    with pytest.raises(SpecError) as caught:
        engine_config("vllm", SHARED, own, where="--set")
    said = caught.value.try_.replace("--max-model-len ", "--set max_model_len=")
    assert said.partition(",")[0] == try_
    name, _, value = try_.removeprefix("--set ").partition("=")
    assert engine_config("vllm", SHARED, own | {name: value}, where="--set")


@pytest.mark.parametrize(
    ("engine", "name", "try_"),
    [
        ("trtllm", "foo", "--set max_batch_size=64"),
        ("sglang", "foo", "--set max_running_requests=64"),
        ("vllm", "max_num_sequences", "--set max_num_seqs=VALUE"),
        ("none", "foo", "--set num_blocks=64"),
    ],
)
def test_an_unknown_setting_is_answered_with_one_that_the_engine_has(engine, name, try_):
    with pytest.raises(SpecError, match=f"{engine} has no {name}") as caught:
        engine_config(engine, SHARED, {name: "1"}, where="--set")
    assert caught.value.try_ == try_


@pytest.mark.parametrize(
    ("engine", "own", "what"),
    [
        (
            "dynamic",
            {"preferred_batch_size": "4,x"},
            "preferred_batch_size = 4,x\n.*\n.*whole numbers with commas",
        ),
        ("vllm", {"policy": "nope"}, "policy = nope\n.*\n.*fcfs, priority, srpt"),
        ("sglang", {"enable_mixed_chunk": "yes"}, "enable_mixed_chunk = yes\n.*\n.*true or false"),
        ("vllm", {"watermark_fraction": "1x"}, "watermark_fraction = 1x\n.*\n.*a number"),
        (
            "sglang",
            {"enable_mixed_chunk": "true", "chunked_prefill_size": "512"},
            "max_running_requests = 2048",
        ),
        (
            "sglang",
            {"enable_priority_scheduling": "true", "schedule_policy": "lpm"},
            "enable_priority_scheduling",
        ),
        (
            "vllm",
            {"policy": "srpt", "kv_allocation": "contiguous", "enable_prefix_caching": "false"},
            "policy = srpt",
        ),
        ("orca", {"policy": "srpt"}, "policy = srpt"),
        ("vllm", {"compaction_bytes_per_s": "1e9"}, "compaction_bytes_per_s = 1000000000.0"),
        ("orca", {"compaction_bytes_per_s": "-1"}, "compaction_bytes_per_s = -1.0"),
        ("orca", {"compaction_bytes_per_s": "1e9"}, "kv_block_bytes = None"),
        ("vllm", {"num_sliding_groups": "2"}, "num_sliding_groups = 2"),
        ("vllm", {"sliding_window": "1", "num_sliding_groups": "2"}, "sliding_window = 1"),
        ("vllm", {"sliding_window": "64"}, "num_sliding_groups = 0"),
        (
            "vllm",
            {"sliding_window": "64", "num_sliding_groups": "2", "num_full_groups": "0"},
            "num_full_groups = 0",
        ),
        ("sarathi", {"sliding_window": "64", "num_sliding_groups": "1"}, "sliding_window = 64"),
        (
            "vllm",
            {"sliding_window": "64", "num_sliding_groups": "6", "max_model_len": "4096"},
            "num_blocks = 1000\n.*\n.*1799 or more",
        ),
    ],
)
def test_what_a_knob_takes_is_said(engine, own, what):
    with pytest.raises(SpecError, match=what):
        engine_config(engine, SHARED, own, where="--set")


def test_a_cache_as_memory_holds_it_is_rounded_to_sglangs_pages():
    config = engine_config(
        "sglang", {"num_blocks": 1003, "max_model_len": 512}, {"page_size": "16"}, where="--set"
    )
    assert config.max_total_num_tokens == 992
    own = {"page_size": "16", "max_total_num_tokens": "1003"}
    with pytest.raises(SpecError, match="max_total_num_tokens = 1003"):
        engine_config("sglang", {"max_model_len": 512}, own, where="--set")

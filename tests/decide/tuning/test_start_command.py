"""Are flags of a start command read, added and replaced by name, in each engine's own spelling?"""

import pytest

from inferometer.decide.tuning.start_command import parse_start, with_settings, with_words
from inferometer.errors import SpecError


@pytest.mark.parametrize(
    ("before", "settings", "after"),
    [
        ("vllm serve m", {"max_num_seqs": 64}, "vllm serve m --max-num-seqs 64"),
        (
            "vllm serve m --max-num-seqs=8 --x 1",
            {"max_num_seqs": 64},
            "vllm serve m --x 1 --max-num-seqs 64",
        ),
        (
            "vllm serve m --no-async-scheduling",
            {"async_scheduling": True},
            "vllm serve m --async-scheduling",
        ),
        (
            "vllm serve m",
            {"enable_prefix_caching": False},
            "vllm serve m --no-enable-prefix-caching",
        ),
        ("vllm serve m", {"kv_dtype": "float8"}, "vllm serve m --kv-cache-dtype fp8"),
        (
            "python -m sglang.launch_server --model-path m --max-running-requests 4",
            {"max_num_seqs": 32, "enable_mixed_chunk": True, "disable_radix_cache": False},
            "python -m sglang.launch_server --model-path m --max-running-requests 32 --enable-mixed-chunk",
        ),
        (
            "python -m sglang.launch_server --disable-radix-cache",
            {"disable_radix_cache": False},
            "python -m sglang.launch_server",
        ),
        (
            "inferometer emulate m --set long_prefill_token_threshold=64 --max-num-seqs 4",
            {"long_prefill_token_threshold": 512, "max_num_seqs": 8},
            "inferometer emulate m --set long_prefill_token_threshold=512 --max-num-seqs 8",
        ),
    ],
)
def test_settings_become_flags(before, settings, after):
    changed = with_settings(parse_start(before), settings)
    assert changed.text == after
    assert with_settings(changed, settings).text == after
    for name, value in settings.items():
        if name == "max_num_seqs":
            assert changed.value(name) == str(value)


def test_drafts_are_one_flag():
    words = with_settings(
        parse_start("vllm serve m"),
        {"draft_method": "ngram", "num_speculative_tokens": 3, "acceptance_fraction": 0.4},
    ).words
    assert words[-2] == "--speculative-config"
    assert '"num_speculative_tokens": 3' in words[-1]


def test_flags_of_your_own_replace_those_of_the_same_name():
    start = parse_start("vllm serve m --attention-backend A --enforce-eager")
    assert with_words(start, ("--attention-backend", "B")).text == (
        "vllm serve m --enforce-eager --attention-backend B"
    )


def test_variables_before_the_command_are_set():
    assert parse_start("VLLM_CPU_KVCACHE_SPACE=1 vllm serve m").words[:3] == (
        "env",
        "VLLM_CPU_KVCACHE_SPACE=1",
        "vllm",
    )


@pytest.mark.parametrize("text", ["", "vllm 'serve"])
def test_what_is_no_command_is_refused(text):
    with pytest.raises(SpecError):
        parse_start(text)


def test_one_command_starts_no_second_server():
    with pytest.raises(SpecError, match="several servers"):
        with_settings(parse_start("vllm serve m"), {"replicas": 2})

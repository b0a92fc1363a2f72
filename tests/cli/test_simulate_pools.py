"""Does ``inferometer simulate`` answer for prefill and decode pools, for routers with rules of their own, and for memory with holes?"""

import json
import re

import pytest
from command_line import check_refused, run

from inferometer.records.reading import read_run

LLAMA = (
    "simulate",
    "llama-3.1-8b",
    "--hardware",
    "h100_sxm",
    "--datasheet",
    "--requests",
    200,
    "--rate",
    10,
)
POOLS = ("--prefill-replicas", 1, "--replicas", 2)


def answered(*arguments, folder, exit_code=0):
    outcome = run(*arguments, "--json", folder=folder)
    assert outcome.returncode == exit_code, outcome.stderr
    return json.loads(outcome.stdout)


def test_who_did_what_and_what_the_transfers_waited_for(tmp_path):
    answer = answered(
        *LLAMA,
        *POOLS,
        "--kv-link",
        "400Gbit/s",
        "--kv-link-latency",
        "20us",
        "--out",
        "run",
        folder=tmp_path,
    )
    said = answer["disaggregation"]
    assert (said["link_bytes_per_s"], said["kv_block_bytes"]) == (50e9, 16 * 131072)
    assert said["link_latency_s"] == pytest.approx(20e-6)
    assert said["transfers"]["n_received"] == 200
    assert said["transfers"]["mean_moving_s"] > 20e-6
    assert said["handovers"]["n_never_arrived"] == 0
    assert [one["role"] for one in answer["replicas"]] == ["prefill", "decode", "decode"]
    assert sum(one["n_requests"] for one in answer["replicas"]) == 400
    moved, parts = said["transfers"], answer["e2e_parts"]
    waits = ("mean_room_wait_s", "mean_link_wait_s", "mean_moving_s")
    assert parts["handover_s"] == pytest.approx(sum(moved[name] for name in waits))
    stored = read_run(tmp_path / "run")
    assert len(stored.visits.replica) == 400
    assert "prompts computed by 1 replica of 1 device" in stored.manifest.source.where
    shown = json.loads(run("show", "run", "--json", folder=tmp_path).stdout)
    assert shown["requests"][0]["handovers"] == said["handovers"]
    text = run("show", "run", "--verbose", folder=tmp_path).stdout
    assert "KV transfer" in text


def test_the_link_is_that_of_the_catalogue_and_the_pools_may_differ(tmp_path):
    answer = answered(
        *LLAMA,
        *POOLS,
        "--prefill-tp",
        2,
        "--prefill-set",
        "max_num_batched_tokens=8192",
        folder=tmp_path,
    )
    said = answer["disaggregation"]
    assert said["link_from"].startswith("the scale-up links of 1 x ")
    assert said["prefill"]["tensor_parallel_size"] == 2
    assert said["prefill"]["knobs"]["max_num_batched_tokens"] == 8192
    assert answer["deployment"]["tensor_parallel_size"] == 1
    assert said["prefill"]["n_kv_blocks"] > answer["deployment"]["n_kv_blocks"]


def test_the_terminal_says_it_in_words(tmp_path):
    outcome = run(*LLAMA, *POOLS, "--first-token-from", "prefill", "--verbose", folder=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    for words in (
        "1 replica for prompts and 2 for answers",
        "KV caches moved: 200 of 200",
        "first token: given by prefill",
        "prompts on 1 device each",
        "KV cache to the decode replica",
    ):
        assert words in " ".join(outcome.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--prefill-tp", 2), "no replicas that compute prompts alone"),
        ((*POOLS, "--kv-link", "50"), "'50' is not a speed"),
        (
            (*POOLS, "--set", "kv_allocation=contiguous", "--set", "enable_prefix_caching=false"),
            "paged KV cache",
        ),
        (("--class-replicas", "chat=0"), "class-aware"),
        (
            ("--router", "class-aware", "--replicas", 2, "--class-replicas", "nobody=0"),
            "each class of the workload once",
        ),
        (("--router", "class-aware", "--class-replicas", "chat"), "CLASS=N,..."),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, problem, tmp_path):
    check_refused(run(*LLAMA, *arguments, folder=tmp_path), 2, problem)


def test_a_router_has_its_thresholds(tmp_path):
    """Whoever evens out every difference of loads sends otherwise than whoever never does, with the same draws."""
    shares = []
    for threshold in (0, 10_000):
        answer = answered(
            *LLAMA,
            "--workload",
            "chat",
            "--replicas",
            3,
            "--router",
            "prefix-affine",
            "--balance-abs",
            threshold,
            folder=tmp_path,
        )
        shares.append([one["n_requests"] for one in answer["replicas"]])
    assert shares[0] != shares[1]


def test_paged_and_contiguous_memory_can_be_compared(tmp_path):
    knobs = ("--num-blocks", 1500, "--max-model-len", 8192, "--set", "enable_prefix_caching=false")
    paged, whole = (
        answered(*LLAMA, *knobs, "--set", f"kv_allocation={kind}", *recorded, folder=tmp_path)[
            "memory"
        ]
        for kind, recorded in (("paged", ()), ("contiguous", ("--out", "run")))
    )
    assert paged["mean_fragmented_fraction"] is None
    assert 0 < whole["mean_fragmented_fraction"] < 1
    assert whole["peak_used_blocks"] <= 1499
    assert read_run(tmp_path / "run").step_memory is not None
    assert run("report", "run", "--out", "report.html", folder=tmp_path).returncode == 0
    assert "Free KV blocks, and the largest hole" in (tmp_path / "report.html").read_text()


def test_compaction_moves_pieces_and_says_so(tmp_path):
    knobs = ("--num-blocks", 1500, "--max-model-len", 8192, "--set", "kv_allocation=contiguous")
    knobs += ("--set", "enable_prefix_caching=false", "--set", "compaction_bytes_per_s=1e10")
    printed = run(*LLAMA, "--rate", 30, *knobs, "--verbose", folder=tmp_path).stdout
    assert re.search(r"[0-9,]+ blocks \([0-9.]+ GiB\) moved in the background", printed)
    answer = answered(*LLAMA, "--rate", 30, *knobs, "--out", "run", folder=tmp_path)
    knobs_used = answer["deployment"]["knobs"]
    assert knobs_used["kv_block_bytes"] == 2 * 32 * 8 * 128 * 2 * 16
    assert answer["memory"]["moved_blocks"] > 0
    caution = next(one for one in answer["cautions"] if one["code"] == "free compaction")
    assert "10 GB/s" in caution["text"]
    memory = read_run(tmp_path / "run").step_memory
    assert memory is not None
    assert memory.moved_blocks.sum() == answer["memory"]["moved_blocks"]
    assert run("report", "run", "--out", "report.html", folder=tmp_path).returncode == 0
    assert "were moved in the background" in (tmp_path / "report.html").read_text()


def test_who_cannot_move_pieces_says_what_was_typed(tmp_path):
    rate = ("--set", "compaction_bytes_per_s=1e10")
    check_refused(
        run(*LLAMA, *rate, folder=tmp_path), 2, "compaction_bytes_per_s = 1", "contiguous"
    )
    check_refused(
        run(*LLAMA, "--policy", "sglang", *rate, folder=tmp_path),
        2,
        "sglang has no compaction_bytes_per_s",
        "--set",
    )


def test_swapping_is_seen(tmp_path):
    knobs = ("--num-blocks", 1500, "--max-model-len", 8192, "--set", "preemption_mode=swap")
    answer = answered(*LLAMA, "--rate", 30, *knobs, folder=tmp_path)
    assert answer["memory"]["swapped_blocks"] > 0


DIVIDED = "kv_pools=share=40% max_prompt_tokens=500 kv_dtype=float8; share=60% block_size=64"


def test_pools_of_the_kv_cache_answer_one_by_one(tmp_path):
    """999 blocks of 16 tokens: 40 % of their bytes are 799 of half the bytes, 60 % 149 of 64 tokens."""
    knobs = ("--num-blocks", 1000, "--max-model-len", 8192, "--set", DIVIDED)
    answer = answered(*LLAMA, *knobs, folder=tmp_path)
    short, rest = answer["kv_pools"]
    assert (short["n_blocks"], short["block_size"], short["kv_dtype"]) == (799, 16, "float8")
    assert (rest["n_blocks"], rest["capacity_tokens"], rest["kv_dtype"]) == (149, 9536, "bfloat16")
    assert (short["rule"], rest["rule"]) == ("prompts up to 500 tokens", "what is left")
    assert short["summary"]["n_requests"] + rest["summary"]["n_requests"] == 200
    preempted = answer["levels"][0]["summary"]["n_preemptions"]
    assert short["n_preemptions"] + rest["n_preemptions"] == preempted > 0
    for one in (short, rest):
        assert 0 < one["mean_used_fraction"] <= one["peak_used_fraction"] <= 1
        assert 0 < one["tail_waste_fraction"] < 1
    assert answer["levels"][0]["evictions"] is None
    assert "KV_POOLS" in [one["code"] for one in answer["cautions"]]
    assert answer["memory"]["peak_used_blocks"] <= 999
    printed = run(*LLAMA, *knobs, "--verbose", folder=tmp_path).stdout
    assert re.search(r"prompts up to 500 tokens +799 × 16 +float8", printed)


def test_a_whole_cache_is_one_pool(tmp_path):
    knobs = ("--num-blocks", 1000, "--max-model-len", 8192)
    whole = answered(*LLAMA, *knobs, folder=tmp_path)
    one = answered(*LLAMA, *knobs, "--set", "kv_pools=share=1", folder=tmp_path)
    assert whole["kv_pools"] == []
    assert one["kv_pools"][0]["capacity_tokens"] == 999 * 16
    levels = [
        [level | {"evictions": None} for level in answer["levels"]] for answer in (whole, one)
    ]
    assert levels[0] == levels[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "kv_pools=share=40%"), ("shares of 0.4", "--set kv_pools")),
        (("--set", "kv_pools=share=1 class=talk; share=0"), ("share = 0",)),
        (("--set", "kv_pools=share=50% class=talk; share=50%"), ("classes talk", "chat")),
        (("--set", "kv_pools=share=1", "--policy", "trtllm"), ("trtllm has no kv_pools",)),
        (("--set", "kv_pools=share=1", "--policy", "sarathi"), ("rules = sarathi",)),
        (("--set", "kv_pools=share=1", "--max-model-len", 16000), ("15,984 tokens",)),
        (("--set", "kv_pools=share=1", "--prefill-replicas", 1), ("KV pools",)),
        (("--set", "kv_pools=share=1 max_prompt_tokens=9"), ("no pool takes request",)),
    ],
)
def test_pools_that_cannot_be(arguments, words, tmp_path):
    check_refused(run(*LLAMA, "--num-blocks", 1000, *arguments, folder=tmp_path), 2, *words)


@pytest.mark.slow
def test_what_searches_and_serves_with_pools(tmp_path):
    server = ("llama-3.1-8b", "--hardware", "h100_sxm", "--datasheet", "--num-blocks", 9000)
    by_class = ("--set", "kv_pools=share=50% class=chat; share=50%")
    check_refused(run("emulate", *server, *by_class, folder=tmp_path), 2, "kv_pools")
    sizing = ("size", "llama-3.1-8b", "--gpus", "h100_sxm", "--datasheet", "--rate", 5)
    sizing += ("--slo", "ttft:p95<9s", "--probe-requests", 200, "--max-model-len", 8192, *by_class)
    found = run(*sizing, folder=tmp_path)
    assert found.returncode in {0, 10, 11}, found.stderr
    assert "vLLM 0.32.0, KV pools" in found.stdout
    refused = run(*sizing, "--out", "plan", folder=tmp_path)
    check_refused(refused, 6, "a KV cache of several pools")

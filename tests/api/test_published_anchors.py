"""Does `predict`, from the datasheet alone, give the published values of ``published_anchors.toml``?

A hit comes within 10 % of the published value, or has it inside an interval no wider than x/÷1.3.
What misses is listed there with its present answer, and the list may only shrink.
"""

import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

import inferometer as im
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.memory import MemoryQuestion, n_kv_blocks_that_fit

PAGE = tomllib.loads(Path(__file__).with_name("published_anchors.toml").read_text())
WITHIN_FRACTION = 0.1
WIDEST_RATIO = 1.3
SAME_FRACTION = 0.02
"""A listed miss whose answer moved by more than this is listed anew."""


class Said(NamedTuple):
    value: float
    low: float
    high: float


def of(estimate, scale=1.0):
    return Said(estimate.value * scale, estimate.low * scale, estimate.high * scale)


def exactly(value):
    return Said(value, value, value)


def kv_blocks(ask):
    """Blocks of a vLLM server with its defaults on a device below 70 GiB."""
    question = MemoryQuestion(
        model=find_model(ask["model"]),
        engine=EngineSpec(engine="vllm", dtype=ask["dtype"], device="cuda"),
        hardware=find_hardware(ask["hardware"]),
        context_tokens=1,
        prompt_tokens=2048,
        max_step_tokens=2048,
        block_tokens=16,
        utilization_fraction=ask["gpu_memory_utilization"],
    )
    return exactly(n_kv_blocks_that_fit(question, max_num_seqs=256))


def said(measure, ask):
    if measure == "kv_blocks":
        return kv_blocks(ask)
    sheet = im.predict(**ask, datasheet=True).datasheet
    speeds, memory = sheet.speeds, sheet.sizes.memory
    scenario = sheet.scenario
    held = memory.weight_bytes + memory.kv_bytes + memory.activation_bytes + memory.logits_bytes
    e2e_ms = 1e3 * scenario.batch_size * scenario.output_tokens
    measures = {
        "ttft_ms": lambda: of(speeds.ttft_s, 1e3),
        "tpot_ms": lambda: of(speeds.tpot_s, 1e3),
        "e2e_ms": lambda: of(speeds.output_tokens_per_s.inverted(e2e_ms)),
        "requests_per_s": lambda: of(speeds.output_tokens_per_s, 1 / scenario.output_tokens),
        "mbu_fraction": lambda: of(speeds.mbu_fraction),
        "tokens_per_s_per_user": lambda: of(speeds.tokens_per_s_per_user),
        "tokens_per_s_per_device": lambda: of(speeds.output_tokens_per_s, 1 / scenario.n_devices),
        "kv_gib": lambda: exactly(memory.kv_bytes / 2**30),
        "held_mib": lambda: exactly(held / 2**20),
    }
    return measures[measure]()


def answer_of(anchor):
    top = said(anchor["measure"], anchor["ask"])
    # The interval of a ratio is that of neither part: only its likely value counts.
    return (
        exactly(top.value / said(anchor["measure"], anchor["per"]).value)
        if ("per" in anchor)
        else top
    )


def is_hit(answer, published):
    is_narrow = answer.high <= WIDEST_RATIO * answer.value <= WIDEST_RATIO**2 * answer.low
    return abs(answer.value / published - 1) <= WITHIN_FRACTION or (
        is_narrow and answer.low <= published <= answer.high
    )


@pytest.mark.parametrize("anchor", PAGE["anchor"], ids=lambda anchor: anchor["id"])
def test_an_anchor_hits_or_is_a_listed_miss(anchor):
    assert anchor["source"] in PAGE["sources"]
    answer, published = answer_of(anchor), anchor["published"]
    if "says" not in anchor:
        assert is_hit(answer, published), f"{answer} for {published}: {anchor['words']}"
        return
    assert not is_hit(answer, published), "it hits now: take its `says` off the list"
    assert answer.value == pytest.approx(anchor["says"], rel=SAME_FRACTION), "list the new answer"


def test_every_row_has_its_anchors():
    assert set(Counter(anchor["row"] for anchor in PAGE["anchor"])) == {8, 9, 10, 11, 12}
    ids = [anchor["id"] for anchor in PAGE["anchor"]]
    assert len(ids) == len(set(ids))

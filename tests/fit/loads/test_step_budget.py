"""Is the step budget found where prompts were cut by it, and bounded from below where they were not?"""

import shlex

import numpy as np
import pytest
from black_boxes import CpuBox, config

from inferometer.fit.loads.estimation import (
    Address,
    ProbeScope,
    Subject,
    fit_server,
    limit_probe,
    quiet_probe,
    switch_probe,
)
from inferometer.fit.loads.load_tests import LoadTest, peak_load, served_load
from inferometer.fit.loads.server import LIMITS, SWITCHES, ReportedSettings
from inferometer.inputs.types import EngineSpec
from inferometer.inputs.workload.reading import resolve_workload

ADDRESS = Address("http://127.0.0.1:8000", "m", ("--endpoint", "completions"))
SUBJECT = Subject(
    address=ADDRESS, engine=EngineSpec(engine="vllm"), reported=ReportedSettings(max_model_len=1024)
)
LONGEST = 600


def loads(budget):
    box = CpuBox(config(max_num_seqs=16, max_num_batched_tokens=budget, max_model_len=1024))
    return [
        LoadTest(run=box.load_test(rate, n, has_chunks=True)) for rate, n in ((2.0, 80), (4.5, 160))
    ]


def budget_of(tests):
    return next(
        knob for knob in fit_server(tests, SUBJECT).knobs if knob.name == "max_num_batched_tokens"
    )


@pytest.mark.slow
def test_a_budget_that_cuts_prompts_is_bounded_from_both_sides():
    found = budget_of(loads(256))
    assert 200 <= found.low <= 256 <= found.high <= 320
    assert (found.value, found.informed_by, found.probe) == (256, "load", None)


@pytest.mark.slow
def test_a_budget_that_cuts_none_is_above_the_longest_prompt_at_least():
    """Whole prompts of 600 tokens were computed while answers were under way: a budget of 32 would have shown."""
    found = budget_of(loads(2048))
    assert 400 < found.low <= 2048
    assert found.high is None or found.high >= 2048


def test_gaps_show_how_prompts_are_cut():
    """The mean gap that an instant lies in is longer where whole prompts delay a token, though TPOT is hardly longer."""
    cut, whole = ([served_load(test) for test in loads(budget)] for budget in (64, 2048))
    gaps = [
        float(np.nanmedian(np.concatenate([one.gap_s for one in looks]))) for looks in (cut, whole)
    ]
    assert gaps[1] > 1.2 * gaps[0]


def test_gaps_of_chunks_of_several_tokens_are_not_known():
    test = loads(256)[0]
    run = test.run
    doubled = run.chunks._replace(
        n_tokens=np.where(run.chunks.request_index == 5, 2, run.chunks.n_tokens)
    )
    seen = served_load(
        LoadTest(
            run=type(run)(
                manifest=run.manifest,
                sweep=None,
                steps=None,
                ceilings=None,
                requests=run.requests,
                chunks=doubled,
            )
        )
    )
    by_index = dict(zip(seen.requests.request_index.tolist(), seen.gap_s.tolist(), strict=True))
    assert np.isnan(by_index[5])
    plain = served_load(test)
    single = plain.gap_s[np.isfinite(plain.gap_s)]
    assert len(single) > 60
    assert np.all(
        single >= plain.seen.tpot_s[np.isfinite(plain.gap_s)] * 0.95
    )  # a mean weighted by the gaps themselves


@pytest.mark.parametrize("longest", [40, 1023, 30_000])
def test_probes_can_be_served_and_last_about_a_minute(longest):
    most = peak_load([served_load(test) for test in loads(2048)])
    room = ProbeScope(
        address=ADDRESS,
        most=most,
        longest_tokens=longest,
        median_prompt_tokens=160,
        step_s=0.03,
        prompt_token_s=5e-4,
    )
    probes = [
        *(limit_probe(name, room) for name in LIMITS),
        *(switch_probe(name, room) for name in SWITCHES),
        quiet_probe(room),
    ]
    commands = [shlex.split(probe) for probe in probes if probe is not None]
    assert len(commands) == 6
    for words in commands:
        assert words[:7] == [
            "inferometer",
            "load",
            ADDRESS.url,
            "--model",
            "m",
            "--endpoint",
            "completions",
        ]
        flags = dict(zip(words[7::2], words[8::2], strict=True))
        (lengths,) = resolve_workload(flags["--workload"]).classes
        highest = [
            getattr(side, "high", None) or side.value
            for side in (lengths.prompt_tokens, lengths.output_tokens)
        ]
        assert sum(highest) <= longest
        assert 1 <= int(flags["--concurrency"]) <= 1100
        assert 60 <= int(flags["--for"].removesuffix("s")) <= 300

"""Do findings say what the data carry, and leave open what they do not?"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from inferometer.inputs.types import SweepPoint
from inferometer.records import tables
from inferometer.records.findings import findings_of
from inferometer.records.reading import read_run
from inferometer.records.types import CeilingTable, SweepTable

FIXTURES = Path(__file__).parent / "fixtures"
PROMPTS, BATCHES = (128, 512, 2048), (1, 2, 4, 8, 16, 32, 64)


def sweep_times(*, noise=0.01, n_reps=7, seed=3, prefill_s_per_token=1e-5, points=None):
    """Step time 16 + batch ms: the knee is at 8. Prefill is linear in the tokens."""
    rng = np.random.default_rng(seed)
    points = points or [(prompt, 1) for prompt in PROMPTS] + [(128, batch) for batch in BATCHES[1:]]
    times = {}
    for prompt, batch in points:
        scatter = np.exp(rng.normal(0, noise, (2, n_reps)))
        times[SweepPoint(prompt_tokens=prompt, batch_size=batch, gen_tokens=33)] = (
            prefill_s_per_token * prompt * batch * scatter[0],
            32 * (16e-3 + 1e-3 * batch) * scatter[1],
        )
    return times


def by_code(run):
    return {finding.code: finding for finding in findings_of(run)}


def test_a_clean_sweep_is_put_in_words(make_run):
    found = by_code(make_run(sweep_times()))
    assert {code: finding.support for code, finding in found.items()} == dict.fromkeys(
        ("LENGTH_VS_CONCURRENCY", "PREFILL_VS_DECODE", "KNEE", "COLLAPSE", "NOISE"), "supported"
    )
    assert found["LENGTH_VS_CONCURRENCY"].sentence.startswith(
        "Concurrency costs more time than length: a doubling of the prompt (128 to 2048"
    )
    assert found["PREFILL_VS_DECODE"].sentence.startswith(
        "Decode takes most of the time at every point: prefill takes 0.2"
    )
    knee = found["KNEE"]
    assert knee.evidence.low <= 8 <= knee.evidence.high
    assert (
        "another doubling buys less than 1.5x the decode throughput at prompt 128" in knee.sentence
    )
    assert found["COLLAPSE"].sentence.startswith("No collapse")


def test_the_same_with_noise_is_undecided(make_run):
    found = by_code(make_run(sweep_times(noise=1.5)))
    assert {found[code].support for code in ("LENGTH_VS_CONCURRENCY", "KNEE")} == {"undecided"}
    assert "COLLAPSE" not in found or found["COLLAPSE"].support == "undecided"


def test_single_values_support_nothing_with_an_interval():
    found = findings_of(read_run(FIXTURES / "t1_prompt_axis.csv"))
    assert any(finding.code == "GROWTH" for finding in found)
    for finding in found:
        assert finding.support == "single number"
        assert finding.sentence.endswith("(one number per point: no interval).")


def test_length_costs_more_where_prefill_dominates(make_run):
    found = by_code(
        make_run(sweep_times(prefill_s_per_token=2e-3, points=[(128, 1), (2048, 1), (128, 2)]))
    )
    assert found["LENGTH_VS_CONCURRENCY"].support == "supported"
    assert found["LENGTH_VS_CONCURRENCY"].sentence.startswith("Length costs more")


@pytest.mark.slow
def test_false_alarms_of_length_against_concurrency(make_run):
    """Where both axes cost the same, a winner is named in at most about 5 % (medians of 7 resample a little too narrow: 10 %)."""
    n_experiments = 150
    n_alarms = 0
    for seed in range(n_experiments):
        scatter = np.exp(np.random.default_rng(seed).normal(0, 0.05, (3, 7)))
        shapes = [(128, 1), (256, 1), (128, 2)]
        times = {
            SweepPoint(prompt_tokens=prompt, batch_size=batch, gen_tokens=2): (
                prompt * batch * scatter[i],
                1e-6 * np.ones(7),
            )
            for i, (prompt, batch) in enumerate(shapes)
        }
        (finding,) = [f for f in findings_of(make_run(times)) if f.code == "LENGTH_VS_CONCURRENCY"]
        n_alarms += finding.support == "supported"
    assert scipy.stats.binomtest(n_alarms, n_experiments).proportion_ci(0.99).low <= 0.1


def test_phases_that_depend_on_the_point(make_run):
    found = by_code(make_run(sweep_times(prefill_s_per_token=1e-3)))
    sentence = found["PREFILL_VS_DECODE"].sentence
    assert re.match(
        r"Which phase takes more time depends on the point: of \d+ points decode at \d+, prefill at"
        r" [1-9]\d*(, undecided at \d+)?; prefill takes ",
        sentence,
    )


def test_a_sure_collapse_and_an_unsure_one(make_run):
    points = [SweepPoint(prompt_tokens=prompt, batch_size=1, gen_tokens=3) for prompt in (100, 200)]
    sure = make_run(
        {
            points[0]: ([0.1] * 7, [1.0] * 7),
            points[1]: ([0.6 + 0.01 * i for i in range(7)], [1.0] * 7),
        }
    )
    (finding,) = [f for f in findings_of(sure) if f.code == "COLLAPSE"]
    assert (finding.support, finding.sentence[:24]) == ("supported", "Prefill per token costs ")
    assert (
        "COLLAPSE_PREFILL(x3.1)" in finding.sentence or "COLLAPSE_PREFILL(x3.2)" in finding.sentence
    )
    unsure = make_run({points[0]: ([0.1], [1.0]), points[1]: ([0.7], [1.0])})
    (finding,) = [f for f in findings_of(unsure) if f.code == "COLLAPSE"]
    assert (finding.support, finding.sentence[:11]) == ("undecided", "Undecided: ")


def memory_finding(make_run, *, of_first, of_second, n_reps=7):
    points = [SweepPoint(prompt_tokens=100, batch_size=batch, gen_tokens=3) for batch in (1, 2)]
    run = make_run({point: ([0.1] * n_reps, [1.0] * n_reps) for point in points})
    reserved = np.empty(run.sweep.point_index.size)
    reserved[run.sweep.point_index == 0] = of_first
    reserved[run.sweep.point_index == 1] = of_second
    return by_code(
        type(run)(
            manifest=run.manifest,
            sweep=run.sweep._replace(reserved_bytes=reserved),
            steps=None,
            ceilings=None,
        )
    )


@pytest.mark.parametrize(
    ("scatter_bytes", "n_reps", "support", "words"),
    [
        (0, 7, "supported", "Peak reserved memory stays at 444 MiB over the sweep."),
        (2**16, 7, "supported", "Peak reserved memory stays at 444 MiB over the sweep."),
        (
            20 * 2**20,
            7,
            "undecided",
            "No growth of peak reserved memory is seen: 444 MiB at every point; by its repetitions it",
        ),
        (
            0,
            2,
            "undecided",
            "No growth of peak reserved memory is seen: 444 MiB at every point; its repetitions are",
        ),
    ],
)
def test_memory_that_reads_alike_does_not_grow(make_run, scatter_bytes, n_reps, support, words):
    of_first = 444 * 2**20 + scatter_bytes * (np.arange(n_reps) - n_reps // 2)
    found = memory_finding(
        make_run, of_first=of_first, of_second=of_first + scatter_bytes / 100 + 1, n_reps=n_reps
    )["MEMORY_GROWTH"]
    assert (found.support, found.sentence[: len(words)]) == (support, words)


def test_memory(make_run):
    found = memory_finding(make_run, of_first=2**30, of_second=3 * 2**30)
    assert (
        found["MEMORY_GROWTH"].sentence
        == "Peak reserved memory grows 3x over the sweep, from 1 GiB at prompt 100, batch 1 to 3"
        " GiB at prompt 100, batch 2."
    )
    assert found["MEMORY_GROWTH"].support == "supported"


def test_out_of_memory_is_a_fact(make_run):
    times = sweep_times(points=[(128, 1), (128, 2)]) | {
        SweepPoint(prompt_tokens=2048, batch_size=64, gen_tokens=33): ([], []),
        SweepPoint(prompt_tokens=2048, batch_size=32, gen_tokens=33): ([], []),
    }
    found = by_code(make_run(times))
    assert (
        found["OUT_OF_MEMORY"].sentence
        == "2 of 4 points ran out of memory, the smallest at prompt 2048, batch 32."
    )
    only = make_run({SweepPoint(prompt_tokens=2048, batch_size=32, gen_tokens=33): ([], [])})
    assert [finding.code for finding in findings_of(only)] == ["OUT_OF_MEMORY"]


@pytest.mark.parametrize("n_reps", [1, 3])
def test_few_repetitions_support_no_comparison(make_run, n_reps):
    for finding in findings_of(make_run(sweep_times(n_reps=n_reps))):
        assert finding.support != "supported" or finding.code == "NOISE"


def test_an_empty_sweep_says_nothing(make_manifest):
    from inferometer.records.types import Run

    assert (
        findings_of(
            Run(
                manifest=make_manifest(None),
                sweep=tables.empty(SweepTable),
                steps=None,
                ceilings=None,
            )
        )
        == ()
    )


def drifting(run, rows, speeds):
    """The same run with probes around every point that say at which share of its usual speed the machine ran then."""
    probes = []
    for index, speed in enumerate(speeds):
        started_ns = run.sweep.started_ns[run.sweep.point_index == index]
        probes += [
            rows.probe(index, started_ns=int(ns), value_per_s=20e9 * speed) for ns in started_ns
        ]
    return replace(run, ceilings=tables.from_rows(CeilingTable, probes))


def test_what_may_be_the_machines_drift_is_undecided(make_run, rows):
    """The widest batch was measured while the machine ran at half of its speed: it seems to cost more than it may."""
    run = make_run(sweep_times(points=[(128, 1), (2048, 1), (128, 16)], prefill_s_per_token=1e-4))
    assert by_code(run)["LENGTH_VS_CONCURRENCY"].support == "supported"
    steady = by_code(drifting(run, rows, [1.0, 1.0, 1.0]))["LENGTH_VS_CONCURRENCY"]
    assert steady.support == "supported"
    drifted = by_code(drifting(run, rows, [1.0, 1.0, 0.3]))["LENGTH_VS_CONCURRENCY"]
    assert drifted.support == "undecided"
    assert drifted.sentence.endswith("the machine changed its speed between the points.")


def test_a_knee_made_by_drift_is_undecided(make_run, rows):
    run = make_run(sweep_times())
    speeds = [1.0] * len(PROMPTS) + [1.0, 1.0, 1.0, 0.3, 0.3, 0.3]
    assert by_code(drifting(run, rows, [1.0] * 9))["KNEE"].support == "supported"
    drifted = by_code(drifting(run, rows, speeds))["KNEE"]
    assert drifted.support == "undecided" or drifted.evidence.high / drifted.evidence.low > 2


def test_a_collapse_that_may_be_drift_is_unsure(make_run, rows):
    points = [SweepPoint(prompt_tokens=prompt, batch_size=1, gen_tokens=3) for prompt in (100, 200)]
    run = make_run({points[0]: ([0.1] * 7, [1.0] * 7), points[1]: ([0.6] * 7, [1.0] * 7)})
    (sure,) = [f for f in findings_of(drifting(run, rows, [1.0, 1.0])) if f.code == "COLLAPSE"]
    (unsure,) = [f for f in findings_of(drifting(run, rows, [1.0, 0.4])) if f.code == "COLLAPSE"]
    assert (sure.support, unsure.support) == ("supported", "undecided")
    assert "COLLAPSE_PREFILL(x3.0)" in unsure.sentence, (
        "the flag itself is of the times as measured"
    )


def test_a_real_run_on_a_machine_that_doubled_its_speed_names_no_winner():
    found = by_code(read_run(FIXTURES / "version_1"))
    assert found["LENGTH_VS_CONCURRENCY"].support == "undecided"
    assert "speed changed during the run" in found["NOISE"].sentence


def test_a_table_with_one_number_per_point_is_put_in_words_without_intervals(make_run):
    found = findings_of(make_run(sweep_times(noise=0.0, n_reps=1)))
    found = [finding for finding in found if finding.code != "COLLAPSE"]
    assert {finding.support for finding in found} == {"single number"}
    assert all("one number per point: no interval" in finding.sentence for finding in found)
    text = "\n".join(finding.sentence for finding in found)
    assert (
        "Prefill time grows 16x from prompt 128 to 2048 at batch 1: as prompt^1.00 (linear)" in text
    )
    assert "Decode time per token is flat (within 1%) from prompt 128 to 2048 at batch 1" in text
    assert "From batch 16 on another doubling gains less than 1.5x decode throughput" in text
    assert "The same prompt tokens, different outcomes: prompt 2048 x batch 1" in text


def test_two_points_with_one_number_carry_no_law_and_no_knee(make_run):
    found = findings_of(make_run(sweep_times(n_reps=1, points=[(128, 1), (256, 1)])))
    assert {finding.code for finding in found} == {"PHASES"}

"""Do the twin's radix tree and admission say what SGLang 0.5.23's own said?

Recorded by ``record_sglang_traces``.
"""

import pytest
from sglang_cases import (
    GOLDEN,
    AdmissionCase,
    OwnTree,
    PressureCase,
    TreeCase,
    load,
    play_admission,
    play_preemption,
    play_retraction,
    play_tree,
    random_admission_case,
    random_pressure_case,
    random_tree_case,
)

RECORDED = load(GOLDEN)
TREES, ADMISSIONS = RECORDED["trees"], RECORDED["admissions"]
UNDER_PRESSURE = [("retractions", play_retraction), ("preemptions", play_preemption)]


def test_the_recorded_cases_are_those_of_the_fuzz():
    assert TreeCase(*TREES[7][0]) == random_tree_case(7)
    case = AdmissionCase(*ADMISSIONS[7][0])
    assert case._replace(tree=TreeCase(*case.tree)) == random_admission_case(7)
    assert (
        PressureCase(*RECORDED["retractions"][7][0])
        == PressureCase(*RECORDED["preemptions"][7][0])
        == random_pressure_case(7)
    )


def test_the_recorded_cases_reach_every_answer():
    calls = [
        (call[0], answer)
        for case, said in TREES
        for call, (answer, _) in zip(case[2], said, strict=True)
    ]
    assert {call for call, answer in calls if answer > 0} == {0, 1, 2, 4}
    assert {verdict for _, said in ADMISSIONS for verdict, _, _ in said} == {0, 1, 2}
    assert {case[-1] for case, _ in ADMISSIONS} == {True, False}, (
        "with those who generate in the step, and without"
    )
    assert {len(said) for _, said in RECORDED["retractions"]} >= {0, 2, 3}
    n_victims = {len(said) for _, said in RECORDED["preemptions"]}
    assert n_victims >= {0, 1}
    assert max(n_victims) > 1
    assert any(
        end < len(case[0][1][case[6][i][0]])
        for case, said in ADMISSIONS
        for i, (_, _, end) in enumerate(said)
        if end > 0
    )


@pytest.mark.parametrize("first", range(0, len(TREES), 25))
def test_the_tree_answers_as_the_real_one(first):
    for plain, said in TREES[first : first + 25]:
        case = TreeCase(*plain)
        assert play_tree(case, OwnTree(case)) == said


@pytest.mark.parametrize("first", range(0, len(ADMISSIONS), 25))
def test_admission_decides_as_the_real_one(first):
    for plain, said in ADMISSIONS[first : first + 25]:
        case = AdmissionCase(*plain)
        assert play_admission(case._replace(tree=TreeCase(*case.tree))) == said


@pytest.mark.parametrize(("name", "play"), UNDER_PRESSURE)
def test_whoever_has_to_go_is_whom_the_real_one_throws_out(name, play):
    for plain, said in RECORDED[name]:
        assert play(PressureCase(*plain)) == said

"""Is everybody whom a gate turns away counted, and does a cut answer end as one?"""

import numpy as np
import pytest
from reference.simulator import simulate_plainly

from inferometer.records.types import RequestStatus
from inferometer.simulate.batch_config import DynamicBatching, NoBatching, StaticBatching
from inferometer.simulate.demand import demand
from inferometer.simulate.gate_config import ClassRules, GateConfig, Reason, cut_answers
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.simulated_run import (
    cautions_of,
    shed_cautions,
    shed_counts,
    simulated_run,
)
from inferometer.simulate.step_cost import linear_cost
from inferometer.simulate.trtllm_config import TrtllmConfig


def test_all_who_were_turned_away_are_counted():
    reasons = np.array(
        [
            Reason.NONE,
            Reason.TOO_LATE,
            Reason.QUEUE_FULL,
            Reason.TOO_LATE,
            Reason.NONE,
            Reason.TOO_LATE,
        ],
        np.int32,
    )
    class_index = np.array([0, 0, 0, 0, 1, 2], np.int32)
    assert shed_counts(reasons, class_index) == (
        (0, Reason.QUEUE_FULL, 1),
        (0, Reason.TOO_LATE, 2),
        (2, Reason.TOO_LATE, 1),
    )
    chat, report = shed_cautions(reasons, class_index, ("chat", "agent", "report"))
    assert (
        chat.text
        == "the gate turned away 3 of 4 requests of chat: 1 found the gate's queue full, 2 could"
        " not meet their deadline any more"
    )
    assert (
        report.text
        == "the gate turned away 1 of 1 requests of report: 1 could not meet their deadline any"
        " more"
    )
    assert shed_cautions(np.zeros(3, np.int32), np.zeros(3, np.int32), ("chat",)) == ()


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.NONE])
def test_every_reason_has_words(reason):
    (caution,) = shed_cautions(np.array([reason], np.int32), np.array([0], np.int32), ("chat",))
    assert len(caution.text.partition(": 1 ")[2]) > 10


ENGINES = [
    SchedulerConfig(num_blocks=200, max_model_len=512),
    TrtllmConfig(num_blocks=200, max_seq_len=512),
    SglangConfig(max_total_num_tokens=3_000, context_length=512),
    StaticBatching(num_blocks=300, max_model_len=512),
    DynamicBatching(num_blocks=300, max_model_len=512),
    NoBatching(num_blocks=100, max_model_len=512),
]


@pytest.mark.parametrize("config", ENGINES, ids=lambda config: config.engine)
def test_a_longer_answer_is_cut_and_says_so(config):
    """Answers of 5, 9 (allowed more), 10, 11 and 60 tokens, in a class with 10 at most.

    And one of 60 in a class without.
    """
    requests = demand(
        [0] * 6,
        [20] * 6,
        [5, 9, 10, 11, 60, 60],
        max_tokens=[5, 90, 90, 90, 60, 60],
        class_index=[0, 0, 0, 0, 0, 1],
    )
    cut = cut_answers(requests, GateConfig(classes=(ClassRules(max_tokens=10), ClassRules())))
    cost = linear_cost(launch_s=1e-3)
    table = simulate(cut, config, cost).requests
    assert table.output_tokens.tolist() == [5, 9, 10, 10, 10, 60]
    length, stopped = RequestStatus.LENGTH, RequestStatus.STOPPED
    assert table.status.tolist() == [length, stopped, length, length, length, length]
    for one, other in zip(simulate_plainly(cut, config, cost).requests, table, strict=True):
        assert np.array_equal(one, other)


def test_prompts_too_long_that_a_gate_turns_away_are_not_refused_by_the_engine():
    """They counted twice: "-3 of 4 requests were refused", which is a missed SLO."""
    config = SchedulerConfig(num_blocks=300, max_model_len=512)
    found = simulate(demand([0] * 4, [900] * 4, [4] * 4), config, linear_cost(launch_s=1e-3))
    reasons = np.array([Reason.QUEUE_FULL] * 3 + [Reason.NONE], np.int32)
    turned_away = found._replace(
        shed_reasons=reasons,
        requests=found.requests._replace(class_index=np.array([0, 0, 1, 2], np.int32)),
    )
    made = {"run_id": "a", "created_utc": "-", "command": (), "tool_version": "-"}
    assert simulated_run(turned_away, config, **made).manifest.refused_classes == (2,)
    (caution,) = cautions_of(turned_away, config)
    assert (caution.code, caution.text[:28]) == ("rejected", "1 of 4 requests were refused")

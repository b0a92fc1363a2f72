"""What does a gate know of each request before it comes? Both forms of the gate read these columns.

Shapes: N requests.
"""

from typing import Final, NamedTuple

import numpy as np

from inferometer.records.columns import I32, I64
from inferometer.simulate.demand import Demand
from inferometer.simulate.gate_config import GateConfig, Reason, cut_answers, rules_by_index
from inferometer.simulate.outcome import FAR_NS

_NO_DEADLINE_NS: Final = 2**61
"""After all deadlines, and any instant can be added to it."""


class GateColumns(NamedTuple):
    """N requests, as their classes and tenants are treated."""

    class_index: I32
    tenant_index: I32
    """0 where no rule tells tenants apart."""
    band: I32
    """0 where bands do not count."""
    prompt_tokens: I64
    max_tokens: I64
    """As cut."""
    expected_tokens: I64
    """Of the answer."""
    key: I64
    """What the order goes by, the least first, within bands and tenants; for deadlines the
    arrival is added."""
    patience_ns: I64
    """How long after its arrival is it turned away if it still waits? ``FAR_NS``: never. Below
    1: at once."""
    shed_reason: I32
    """Why then? A ``Reason``."""


def goes_by_deadline(config: GateConfig) -> bool:
    """Is the arrival part of the order's key?"""
    return config.order in {"earliest-deadline", "least-slack"}


def gate_columns(requests: Demand, config: GateConfig) -> GateColumns:
    """The columns of these requests at this gate.

    Raises
    ------
    SpecError
        A class or tenant for which the gate has no rules.
    """
    cut = cut_answers(requests, config)
    prompt, most = cut.prompt_tokens.astype(np.int64), cut.max_tokens.astype(np.int64)
    expected = (
        most
        if config.lengths == "declared"
        else np.minimum(cut.output_tokens.astype(np.int64), most)
    )
    predicted_ns = config.first_token_ns + np.rint(
        config.first_token_per_prompt_token_ns * prompt
    ).astype(np.int64)
    limit_ns = _of_classes(requests, config, "ttft_limit_ns")
    patience_ns, shed_reason = _patience(requests, config, limit_ns, predicted_ns)
    return GateColumns(
        class_index=requests.class_index,
        tenant_index=(
            requests.tenant_index if config.knows_tenants else np.zeros_like(requests.tenant_index)
        ),
        band=_bands(requests, config),
        prompt_tokens=prompt,
        max_tokens=most,
        expected_tokens=expected,
        key=_keys(config, prompt + expected, limit_ns, predicted_ns),
        patience_ns=patience_ns,
        shed_reason=shed_reason,
    )


def _keys(config: GateConfig, size_tokens: I64, limit_ns: I64, predicted_ns: I64) -> I64:
    if config.order == "shortest-remaining":
        return size_tokens
    if not goes_by_deadline(config):
        return np.zeros_like(size_tokens)
    slack_ns = limit_ns - predicted_ns if config.order == "least-slack" else limit_ns
    return np.where(limit_ns > 0, slack_ns, _NO_DEADLINE_NS)


def _bands(requests: Demand, config: GateConfig) -> I32:
    if not config.has_bands and config.order != "priority":
        return np.zeros_like(requests.priority)
    rules = rules_by_index(config.classes, requests.class_index, "class")
    says = np.array([one.priority is not None for one in rules])
    said = np.array([one.priority or 0 for one in rules], np.int32)
    return np.where(says[requests.class_index], said[requests.class_index], requests.priority)


def _patience(
    requests: Demand, config: GateConfig, limit_ns: I64, predicted_ns: I64
) -> tuple[I64, I32]:
    """The earlier of the longest wait, of all or of the class, and of the instant when the deadline is lost."""
    wait_ns = _of_classes(requests, config, "max_wait_ns")
    wait_ns = np.where(wait_ns > 0, wait_ns, FAR_NS)
    wait_ns = np.minimum(wait_ns, config.max_wait_ns or FAR_NS)
    lost_ns = np.full_like(limit_ns, FAR_NS)
    if config.lateness != "keep":
        lost_ns = np.where(
            limit_ns > 0, limit_ns - (predicted_ns if config.lateness == "hopeless" else 0), FAR_NS
        )
    reason = np.where(lost_ns <= wait_ns, Reason.TOO_LATE, Reason.WAITED_TOO_LONG).astype(np.int32)
    return np.minimum(wait_ns, lost_ns), reason


def _of_classes(requests: Demand, config: GateConfig, name: str) -> I64:
    rules = rules_by_index(config.classes, requests.class_index, "class")
    return np.array([getattr(one, name) for one in rules], np.int64)[requests.class_index]

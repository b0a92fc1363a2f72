"""What do a gate's rules say for this workload: its classes and tenants by number, its times in nanoseconds?"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from inferometer.errors import SpecError
from inferometer.inputs.gate import OTHERS, GateClass, GateSpec, GateTenant
from inferometer.inputs.objectives import parse_objective
from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate.gate_config import ClassRules, GateConfig, TenantRules
from inferometer.simulate.step_cost import duration_ns
from inferometer.units import ns_from_s

Named = TypeVar("Named", GateClass, GateTenant)

_SHORT_TOKENS: Final = 128
_LONG_TOKENS: Final = 2048


class Names(Protocol):
    """Classes and tenants by number: those of a drawn workload, or those that a server knows."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of each class."""
        ...

    @property
    def class_slos(self) -> tuple[str | None, ...]:
        """As the workload promises them."""
        ...

    @property
    def tenant_names(self) -> tuple[str, ...]:
        """Of each tenant."""
        ...


class FirstTokenPace(NamedTuple):
    """The predicted time to the first token, of a request that goes in now."""

    base_ns: int
    per_prompt_token_ns: float


def first_token_pace(cost: StepTimeArrays) -> FirstTokenPace:
    """The line through the times of two prompts alone in a step.

    What a gate can know that does not see into the engines.
    """
    short_ns, long_ns = (
        duration_ns(cost, 1, 0, n, n * (n + 1) // 2, 0) for n in (_SHORT_TOKENS, _LONG_TOKENS)
    )
    per_token_ns = max(long_ns - short_ns, 0) / (_LONG_TOKENS - _SHORT_TOKENS)
    return FirstTokenPace(
        base_ns=max(round(short_ns - per_token_ns * _SHORT_TOKENS), 0),
        per_prompt_token_ns=per_token_ns,
    )


def gate_rules(
    gate: GateSpec, workload: Names, pace: FirstTokenPace, *, where: str = "the gate"
) -> GateConfig:
    """The gate's rules for this workload; ``pace`` holds where the gate says nothing of first tokens itself.

    Raises
    ------
    SpecError
        Rules for a class or tenant that the workload does not have; an order or a rule by deadlines
        where no class has one.
    """
    by_deadline = (
        gate.order in {"earliest-deadline", "least-slack"} or gate.admission.too_late != "keep"
    )
    slos = workload.class_slos if by_deadline else (None,) * len(workload.class_slos)
    found = _by_name(gate.classes, workload.class_names, "class", where)
    classes = tuple(
        _class_rules(rules, name, slo)
        for rules, name, slo in zip(found, workload.class_names, slos, strict=True)
    )
    if by_deadline and not any(rules.ttft_limit_ns for rules in classes):
        text = (
            f"order = {gate.order}, too_late = {gate.admission.too_late}, but no class has a"
            " deadline"
        )
        raise SpecError(
            text,
            where=where,
            allowed=f"classes {', '.join(workload.class_names)}",
            try_="ttft_limit_s of a class, or its slo",
        )
    if gate.first_token is not None:
        pace = FirstTokenPace(
            ns_from_s(gate.first_token.base_s), gate.first_token.per_prompt_token_s * 1e9
        )
    return GateConfig(
        order=gate.order,
        has_bands=gate.priority_bands,
        lengths=gate.lengths,
        max_in_flight=gate.max_in_flight or 0,
        classes=classes,
        tenants=tuple(
            _tenant_rules(rules)
            for rules in _by_name(gate.tenants, workload.tenant_names, "tenant", where)
        ),
        max_queue=gate.admission.max_queue or 0,
        max_queued_tokens=gate.admission.max_queued_tokens or 0,
        max_wait_ns=_ns(gate.admission.max_wait_s),
        lateness=gate.admission.too_late,
        first_token_ns=pace.base_ns,
        first_token_per_prompt_token_ns=pace.per_prompt_token_ns,
        output_token_weight=gate.output_token_weight,
    )


def _by_name(
    rules: Sequence[Named], names: tuple[str, ...], noun: str, where: str
) -> list[Named | None]:
    """The rules of each name, of all others where it has none of its own."""
    known = {one.name: one for one in rules}
    strangers = [name for name in known if name not in {*names, OTHERS}]
    if strangers:
        some = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        raise SpecError(
            f"the workload has no {noun} {strangers[0]!r}",
            where=where,
            allowed=f"{some}, or {OTHERS} for all others",
        )
    return [known.get(name, known.get(OTHERS)) for name in names]


def _class_rules(rules: GateClass | None, name: str, slo: str | None) -> ClassRules:
    rules = rules if rules is not None else GateClass(name=name)
    limit_s = rules.ttft_limit_s if rules.ttft_limit_s is not None else _ttft_limit_s(slo, name)
    return ClassRules(
        name=name,
        priority=rules.priority,
        window_ns=_ns(rules.window_s),
        window_size=rules.window_size or 0,
        max_in_flight=rules.max_in_flight or 0,
        max_tokens=rules.max_tokens or 0,
        max_queue=rules.max_queue or 0,
        max_wait_ns=_ns(rules.max_wait_s),
        ttft_limit_ns=_ns(limit_s),
    )


def _ttft_limit_s(slo: str | None, name: str) -> float | None:
    if slo is None:
        return None
    limits = [
        one.limit_s
        for one in parse_objective(slo, where=f"slo of class {name}").thresholds
        if one.metric == "ttft"
    ]
    return min(limits, default=None)


def _tenant_rules(rules: GateTenant | None) -> TenantRules:
    if rules is None:
        return TenantRules()
    return TenantRules(
        tokens_per_s=rules.tokens_per_s or 0,
        burst_tokens=rules.burst_tokens or 0,
        weight=rules.weight,
    )


def _ns(duration_s: float | None) -> int:
    """Whole nanoseconds, at least 1; 0: no such rule."""
    return 0 if duration_s is None else max(ns_from_s(duration_s), 1)

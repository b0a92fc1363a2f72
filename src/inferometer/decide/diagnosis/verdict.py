"""Is the server healthy, which cause is named, and what stays undecided?

A cause is named only where its share of the latency is above 0 in every draw, and more than a tenth
of it. Settings come first, since they cost least to change; then the traffic; the work itself is
named where the SLO is missed and nothing else is to blame.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from inferometer.decide.diagnosis.shares import Share
from inferometer.stats.estimate import Estimate, Verdict

Finding: TypeAlias = Literal["healthy", "limited", "undecided"]

_WORTH_FRACTION: Final = 0.1
"""Of the latency: below it a cause is not worth a change."""
_MOSTLY_FRACTION: Final = 0.5
_BESIDE_TRAFFIC_FRACTION: Final = 0.3
"""A setting that gains less than this of what fewer requests gain is not the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What is named."""

    finding: Finding
    cause: Share | None
    """What limits; of an undecided finding what may limit; None: nothing worth a change."""


def conclusion(shares: Sequence[Share], now: Estimate, slo: Verdict | None) -> Conclusion:
    """The cause of the first latency, which is ``now``; ``slo``: is the objective met?"""
    if slo == "met":
        return Conclusion(finding="healthy", cause=None)
    settings = [one for one in shares if one.cause.kind == "setting" and _is_worth(one, now)]
    traffic = next((one for one in shares if one.cause.kind == "traffic"), None)
    ranked = sorted(settings, key=lambda one: -one.shares[0].value)
    sure = [one for one in ranked if _is_sure(one)]
    is_overload = (
        traffic is not None
        and _is_sure(traffic)
        and traffic.shares[0].value > _MOSTLY_FRACTION * now.value
    )
    if sure and (traffic is None or not is_overload or _rivals(sure[0], traffic)):
        return Conclusion(finding="limited", cause=sure[0])
    if is_overload and (sure or not ranked):
        return Conclusion(finding="limited", cause=traffic)
    if ranked:
        return Conclusion(finding="undecided", cause=ranked[0])
    if slo is None:
        return Conclusion(finding="healthy", cause=None)
    work = [one for one in shares if one.cause.kind != "setting" and _is_sure(one)]
    largest = max(work, key=lambda one: one.shares[0].value, default=None)
    is_undecided = slo == "undecided" or largest is None
    return Conclusion(finding="undecided" if is_undecided else "limited", cause=largest)


def _is_worth(share: Share, now: Estimate) -> bool:
    return share.shares[0].value > _WORTH_FRACTION * now.value


def _rivals(setting: Share, traffic: Share) -> bool:
    return setting.shares[0].value >= _BESIDE_TRAFFIC_FRACTION * traffic.shares[0].value


def _is_sure(share: Share) -> bool:
    low = share.shares[0].low
    return low is not None and low > 0

"""Do two points of a grid differ, or may the error of their step times have put them in this order?

Points of one grid err together: what is wrong with the step times of a model on a device is wrong
with them at every load. So the ratio of two points is better known than either of them. With a and
b the half widths of the logarithms of both points at all step times, their ratio's is

    sqrt(common² + (1 - shared)·(a² + b²) + the noise of the requests of both²)

*common* is the spread of the ratio draw by draw where both points have the same step times (a draw
is the same machine there), else ``shared`` of its spread between the ends of both intervals.
``shared`` is the correlation of the errors of both: draws alone, which share everything, would call
every difference of two loads real. On one device, by one engine, it is 1 for the machine's own error
(how servers of different people differ), and for the rest what rows of one laboratory show. The
interval is that of Zou (*Psychological Methods* 12, 2007) for the difference of two correlated
estimates, whose intervals need not be symmetric.

``bench/bench_ties.py`` measured how errors correlate, on pairs of published rows whose model was
left out of the fit on their device and engine. Of TPOT and of TTFT: 0.74 and 0.75 where the users
differ, 0.63 and 0.59 where the lengths do too; 0.75 and 0.73 on another number of devices, 0.59 and
0.48 in another precision; -0.08 and 0.27 on another device, -0.29 and 0.08 by another engine, -0.14
and 0.17 of another model. The rule decides 38 % of all these pairs by TPOT and 27 % by TTFT, in the
measured order 99.6 % and 98.1 % of them. Intervals that had to lie apart decided 10 % and 6 %; draws
alone decide all, 91.5 % and 84.4 % in that order. Datasheets of all devices are read with the same
shares of their peaks, so that they err together: with 0.7 for one model 23 % and 37 % are decided
(1 % and 7 % by intervals apart), 99.6 % and 97.9 % in the measured order. The errors of a fit to a
sweep scatter about it shape by shape: nothing is shared.
"""

import math
from typing import Final, NamedTuple

from inferometer.api.grid import GridPoint
from inferometer.fit.published.efficiencies import ENGINES
from inferometer.perfmodel.steptime import CONFIDENCE_FRACTION
from inferometer.perfmodel.types import least_share
from inferometer.stats.estimate import Estimate

_AT_LOADS: Final = 0.75
"""Correlation of the errors of two loads of one server, by published rows."""
_BY_DEVICE: Final = 0.5
"""The same of two layouts or formats of one model on one device and engine."""
_BY_DATASHEET: Final = 0.7
"""The same of one model by datasheets, on whichever device."""
_ELSEWHERE: Final = frozenset({"model", "hardware", "policy"})
_LEAST_KNOWN: Final = 0.5
"""Share of the draws at which a number must be known for its interval."""
_OF_STEPS: Final = frozenset(
    {"tp", "pp", "dtype", "kv_dtype", "quantization", "link", "all_reduce_us", "mode"}
    | {"attention_window", "attention_sinks", "data_parallel_size"}
    | {"prefill_tp", "prefill_replicas"}
)
"""Options that change the step times of a model on a device, or which steps it takes: no rows of
pools apart are among those that correlations were measured on."""


class _Side(NamedTuple):
    """A number of one point: at likely step times, at others, and the noise of its requests."""

    value: float
    others: tuple[float | None, ...]
    """Draws, or fast and slow; of a prediction the ends of its interval. None: not located."""
    noise_ratios: tuple[float, float]
    """Of both ends, over the value: 1 where no requests are drawn."""

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest at all step times."""
        known = [one for one in self.others if one is not None]
        return min(self.value, *known), max(self.value, *known)


def _noise(likely: Estimate) -> tuple[float, float]:
    """Both ends with the noise of requests; an end at 0 is as many times off as the other one."""
    value, low, high = likely.value, likely.low, likely.high
    high = value if high is None else high
    return (value if low is None else low if low > 0 else value * value / high), high


def _side(point: GridPoint, number: str) -> _Side | None:
    paced, estimate = point.paced.get(number), point.numbers.get(number)
    if paced is not None:
        likely = paced.likely
        side = _Side(likely.value, paced.others, _noise(likely))
    elif estimate is None or estimate.low is None or estimate.high is None:
        return None
    else:
        ends = estimate.low, estimate.high
        side = _Side(estimate.value, ends, (estimate.value, estimate.value))
    n_known = sum(one is not None for one in side.others)
    if n_known < max(_LEAST_KNOWN * len(side.others), 1) or side.ends[0] <= 0:
        return None
    low, high = side.noise_ratios
    return side._replace(noise_ratios=(low / side.value, high / side.value))


def ratio_of(one: GridPoint, other: GridPoint, number: str) -> Estimate | None:
    """Ratio of a number of ``one`` to that of ``other``, paired; None where either has no interval."""
    above, below = _side(one, number), _side(other, number)
    if above is None or below is None:
        return None
    value = above.value / below.value
    shared, has_same_steps = _in_common(one, other)
    is_paired = has_same_steps and len(above.others) == len(below.others)
    alike = (above.others, below.others) if is_paired else (above.ends, below.ends)
    both = zip(*alike, strict=True)
    ratios = [x / y / value for x, y in both if x is not None and y is not None]

    def log_half(end: int) -> float:
        """Half width towards this end of ``one``, and the other end of ``other``."""
        apart = above.ends[end] / above.value, below.ends[1 - end] / below.value
        noises = above.noise_ratios[end], below.noise_ratios[1 - end]
        together = max([1.0, *ratios]) if end else min([1.0, *ratios])
        return math.sqrt(
            (1.0 if is_paired else shared) * math.log(together) ** 2
            + (1 - shared) * sum(math.log(part) ** 2 for part in apart)
            + sum(math.log(part) ** 2 for part in noises)
        )

    return Estimate(
        value=value,
        low=value * math.exp(-log_half(0)),
        high=value * math.exp(log_half(1)),
        confidence_fraction=CONFIDENCE_FRACTION,
        n_samples=len(ratios),
        method="paired by step times, and errors that are not shared",
    )


def is_tie(ratio: Estimate | None) -> bool:
    """Does the interval of this ratio include 1? Without an interval it may."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return True
    return ratio.low <= 1 <= ratio.high


def _in_common(one: GridPoint, other: GridPoint) -> tuple[float, bool]:
    """Correlation of the errors of two points of one grid, and whether their step times are the same."""
    differ = {name for name, value in one.values.items() if value != other.values.get(name)}
    source = one.words.get("step_times")
    if source != "published" or _rows_of(one) == _rows_of(other):
        differ -= {"policy"}  # all schedulers have the same step times
    has_same_steps = not differ & (_OF_STEPS | _ELSEWHERE)
    if source == "fitted" or differ & {"model", "policy"}:
        return 0.0, has_same_steps
    if source != "published":
        return _BY_DATASHEET, has_same_steps
    if "hardware" in differ:
        return 0.0, has_same_steps
    # The rows of one laboratory, by which errors correlate, do not show the machine's own.
    machine = least_share((one.machine_share_fraction, other.machine_share_fraction)) or 0.0
    rest = _AT_LOADS if has_same_steps else _BY_DEVICE
    return machine + (1 - machine) * rest, has_same_steps


def _rows_of(point: GridPoint) -> str:
    """The engine whose published rows give the step times under this policy."""
    policy = str(point.values.get("policy"))
    return policy if policy in ENGINES else "vllm"

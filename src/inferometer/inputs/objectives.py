"""Service level objectives (SLOs): latency limits at percentiles.

Text such as ``ttft:p95<500ms, tpot:p95<50ms``, or the name of a preset, becomes an
``ObjectiveSpec``. Each threshold has two uses: its percentile must lie below its limit (a verdict
on the run), and a request is good if it is within every limit (goodput).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.types import Source
from inferometer.units import parse_duration_s

Metric: TypeAlias = Literal["ttft", "tpot", "e2e", "queue", "workflow"]


class MetricWords(NamedTuple):
    """Name and definition of a latency."""

    name: str
    """Name in tables and charts."""
    meaning: str
    synonyms: tuple[str, ...]
    """Other names by users and tools; hyphens and underscores count as spaces."""


METRICS: Final[dict[Metric, MetricWords]] = {
    "ttft": MetricWords(
        "TTFT",
        "time to first token, from the intended send",
        ("time to first token", "first-token latency"),
    ),
    "tpot": MetricWords(
        "TPOT",
        "time per output token after the first",
        ("time per output token", "per-token latency"),
    ),
    "e2e": MetricWords(
        "E2E",
        "from the intended send to the last token",
        ("e2el", "ttlt", "time to last token", "end-to-end latency", "request latency", "latency"),
    ),
    "queue": MetricWords(
        "queue", "from the send to the first time in a batch", ("queue time", "waiting time")
    ),
    "workflow": MetricWords(
        "workflow",
        "from a planner's or a beam search's intended send to the end of what waits for its parts",
        ("workflow latency", "workflow time", "agent latency"),
    ),
}
_ALLOWED: Final = (
    f"METRIC:STATISTIC<LIMIT with commas between; METRIC one of {', '.join(METRICS)}; STATISTIC"
    " p50, p95, p99.9, …"
)
_EXAMPLE: Final = "ttft:p95<500ms, tpot:p95<50ms"
_TWO_LIMITS: Final = re.compile(r"[<>]")
"""In what follows a limit's sign: a second limit."""
_BETWEEN: Final = re.compile(r"[,;&\n]|\s+and\s+", re.IGNORECASE)
_LIMIT_ENDED: Final = re.compile(r"(<=?\s*\d[\d.]*\s*[A-Za-zµμ]+)\s+(?=[A-Za-z])")
"""`ttft:p95<1s tpot:p95<50ms`: a limit with its unit, and the next one behind a space."""
_PAIRS: Final = re.compile(r"([A-Za-z_]\w*)\s*[:=]\s*(\d[\d.]*\s*(?:ms|s)?)(?=\s|$)", re.IGNORECASE)
"""`ttft:500 tpot:50`, the pairs of vLLM bench's ``--goodput``."""
_THRESHOLD: Final = re.compile(
    r"(?P<metric>[A-Za-z0-9_]+(?:[ -][A-Za-z0-9_]+)*?)\s*[:"
    r" ]\s*(?P<statistic>[A-Za-z0-9.]+)\s*(?P<sign><=?|>=?|=)\s*(?P<limit>.+)"
)
_NO_STATISTIC: Final = re.compile(r"(?P<metric>[A-Za-z0-9_. -]+?)\s*<=?(?P<limit>.+)")
_PERCENTILE_FIRST: Final = re.compile(
    r"\s*(p[\d.]+)[\s:_(]+([^<>=:()]+?)\)?\s*(?=[<>=])", re.IGNORECASE
)
"""`p99 ttft < 2s`, as in speech; `p99_ttft`, `p99(ttft)`, as in metrics and queries."""
_AFTER_THE_LIMIT: Final = re.compile(
    r"([A-Za-z][A-Za-z -]*?)\s*(?:<=?|\s(?:under|below)\s)\s*(\d[\d.]*\s*[A-Za-zµμ]+)"
    r"\s*[\s(@]\s*(?:at\s+)?(?:the\s+)?(p\d[\d.]*)\)?(?=\s*(?:$|[,;&\n]|and\b))",
    re.IGNORECASE,
)
"""`TTFT < 200ms p99`: the percentile behind the limit."""
_PERCENTILE_LAST: Final = re.compile(r"_(p\d[\d.]*)\s*(?=[<>=])", re.IGNORECASE)
"""`ttft_p99`, as a column of a table."""
_BELOW: Final = re.compile(
    r"\s+(?:is\s+)?(?:under|below|less than|at most|within)\s+", re.IGNORECASE
)
_NO_SIGN: Final = re.compile(r"(?<=[A-Za-z\d)])[\s:]+(?=\d[\d.]*\s*[a-zA-Zµμ]+\s*$)")
"""`p95 ttft 2 s`: what stands before a limit without a sign; a latency has no other limit than an upper one."""
_UNKNOWN: Final = "no workflow is known here"
NO_WORKFLOWS: Final = (
    "a server's metrics are of single requests: they do not say whose workflow one is"
)
"""Value of ``why_none`` for a server that is only watched."""
_PERCENTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d+)?)")
_FEW_SECONDS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One limit: this percentile of this latency must be below this value.

    ``percentile_fraction`` is None for a limit that is only for goodput.
    """

    metric: Metric
    percentile_fraction: float | None
    limit_s: float

    def __post_init__(self) -> None:
        if not self.limit_s > 0:
            raise SpecError(
                f"limit {self.limit_s} s of {self.metric}", allowed="above 0", try_=_EXAMPLE
            )
        if self.percentile_fraction is not None and not 0 < self.percentile_fraction < 1:
            raise SpecError(
                f"percentile {self.percentile_fraction} of {self.metric}",
                allowed="between p0 and p100",
                try_=_EXAMPLE,
            )

    @property
    def text(self) -> str:
        """The limit as written: ``ttft:p95<500ms``."""
        statistic = (
            ""
            if self.percentile_fraction is None
            else f":{percentile_name(self.percentile_fraction)}"
        )
        limit = f"{self.limit_s * 1e3:.12g}ms" if self.limit_s < 10 else f"{self.limit_s:.12g}s"
        return f"{self.metric}{statistic}<{limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveSpec:
    """An SLO: one limit or more."""

    thresholds: tuple[Threshold, ...]

    def __post_init__(self) -> None:
        if not self.thresholds:
            raise SpecError("an objective without a threshold", allowed=_ALLOWED, try_=_EXAMPLE)

    @property
    def text(self) -> str:
        """The limits as written, separated by commas."""
        return ", ".join(threshold.text for threshold in self.thresholds)

    @property
    def percentile_fractions(self) -> tuple[float, ...]:
        """Fractions of the limits on percentiles."""
        return tuple(
            one.percentile_fraction
            for one in self.thresholds
            if one.percentile_fraction is not None
        )


def parse_objective(
    text: str,
    *,
    where: str = "--slo",
    has_workflows: bool = False,
    why_none: str = _UNKNOWN,
    is_of_one: bool = False,
) -> ObjectiveSpec:
    """Parse an SLO: ``ttft:p95<500ms, tpot:p95<50ms`` or ``mlperf:llama2-70b-server``.

    ``has_workflows``: may the traffic have workflows, as far as the caller knows? ``why_none``: the
    reason if not. ``is_of_one``: of one request, whose latency is every percentile: a limit may
    name none.

    Raises
    ------
    SpecError
        An unknown threshold or preset, or the same threshold twice; the message names it and the
        allowed ones. Or a limit for workflows if there are none.

    Example
    -------
    >>> parse_objective("ttft p99 < 500ms, tpot:p95<50ms").text
    'ttft:p99<500ms, tpot:p95<50ms'
    >>> parse_objective("first-token latency:p95<1s and P99 TPOT under 50 ms").text
    'ttft:p95<1000ms, tpot:p99<50ms'
    >>> parse_objective("ttft < 500ms", is_of_one=True).text
    'ttft:p95<500ms'
    """
    text = _AFTER_THE_LIMIT.sub(r"\1:\3<\2", _unfolded(text.strip()))
    thresholds = [
        _threshold(part.strip(), where, is_of_one=is_of_one)
        for part in _BETWEEN.split(_LIMIT_ENDED.sub(r"\1, ", text))
        if part.strip()
    ]
    if not thresholds:
        raise SpecError(f"{text!r} promises nothing", where=where, allowed=_ALLOWED, try_=_EXAMPLE)
    seen = [(threshold.metric, threshold.percentile_fraction) for threshold in thresholds]
    for (metric, fraction), threshold in zip(seen, thresholds, strict=True):
        if seen.count((metric, fraction)) > 1:
            raise SpecError(
                f"{threshold.text.partition('<')[0]} has two limits",
                where=where,
                allowed="one limit for each",
                try_=_EXAMPLE,
            )
    objective = ObjectiveSpec(thresholds=tuple(thresholds))
    check_workflows(objective, has_workflows=has_workflows, where=where, why_none=why_none)
    return objective


class ClassObjective(NamedTuple):
    """SLO of a class of requests."""

    name: str
    objective: ObjectiveSpec
    class_index: int


def class_objectives(
    named_slos: Iterable[tuple[str, str | None]],
) -> tuple[ClassObjective, ...]:
    """SLOs of the classes that have their own, of the names and the texts of all classes."""
    return tuple(
        ClassObjective(
            name,
            parse_objective(slo, where=f"slo of class {name}", has_workflows=True),
            class_index,
        )
        for class_index, (name, slo) in enumerate(named_slos)
        if slo is not None
    )


def check_workflows(
    objective: ObjectiveSpec,
    *,
    has_workflows: bool,
    where: str = "--slo",
    why_none: str = _UNKNOWN,
) -> None:
    """Refuse a limit on workflows where the traffic has none, or they are unknown."""
    limit = next((one.text for one in objective.thresholds if one.metric == "workflow"), None)
    if limit is not None and not has_workflows:
        raise SpecError(
            f"{limit!r}, and {why_none}",
            where=where,
            allowed="limits for workflows of traffic that has some: [classes.fan_out] or"
            " [classes.beams] in its --workload file, in simulate, load, capacity, size, tune,"
            " compare --ab and the plans of verify",
            try_=objective.text.replace("workflow:", "e2e:"),
        )


def check_second_tokens(
    objective: ObjectiveSpec, *, has_second: bool, where: str = "--slo"
) -> None:
    """Refuse a limit of TPOT if each answer is one token, as then no request has a TPOT."""
    paced = [one for one in objective.thresholds if one.metric == "tpot"]
    if not paced or has_second:
        return
    others = ", ".join(one.text for one in objective.thresholds if one.metric != "tpot")
    rest = others or "ttft:p95<500ms"
    raise SpecError(
        f"{paced[0].text!r}, and no answer has a second token",
        where=where,
        allowed="limits of TPOT where outputs are of two tokens or more; else of TTFT and E2E",
        try_=suggestions.flags(where, rest) if where == "--slo" else f'slo = "{rest}"',
    )


def loosest_of(objectives: Sequence[ObjectiveSpec]) -> ObjectiveSpec | None:
    """The loosest limits of several classes; None if they have no latency in common.

    Example
    -------
    >>> own = [parse_objective("ttft:p99<1s, e2e:p95<9s"), parse_objective("ttft:p95<4s")]
    >>> loosest_of(own).text
    'ttft:p95<4000ms'
    """
    found = list[Threshold]()
    for metric in METRICS:
        strictest = list[tuple[float, float]]()
        for one in objectives:
            limits = [
                (limit.percentile_fraction, limit.limit_s)
                for limit in one.thresholds
                if limit.metric == metric and limit.percentile_fraction is not None
            ]
            strictest += [max(limits)] if limits else []
        if strictest and len(strictest) == len(objectives):
            fraction, limit_s = min(strictest)[0], max(limit for _, limit in strictest)
            found.append(Threshold(metric=metric, percentile_fraction=fraction, limit_s=limit_s))
    return ObjectiveSpec(thresholds=tuple(found)) if found else None


def percentile_name(fraction: float) -> str:
    """Name of a percentile.

    Example
    -------
    >>> percentile_name(0.95), percentile_name(0.999)
    ('p95', 'p99.9')
    """
    return f"p{round(fraction * 100, 6):g}"


def _unfolded(text: str) -> str:
    """The SLO of a preset; other text unchanged."""
    return find_presets(text)[0].text if text.lower().startswith("mlperf:") else text


def _threshold(part: str, where: str, *, is_of_one: bool) -> Threshold:
    below = _PERCENTILE_LAST.sub(r":\1", _with_sign(part))
    below = _with_percentile(below) if is_of_one else below
    match = _THRESHOLD.fullmatch(_PERCENTILE_FIRST.sub(r"\2:\1", below))
    if match is None:
        raise _no_threshold(part, below, where)
    metric = _metric(match["metric"], part, where)
    percentile = _PERCENTILE.fullmatch(match["statistic"].lower())
    if percentile is None or not 0 < float(percentile[1]) < 100:
        raise SpecError(
            f"{match['statistic']!r} of {part!r} is no percentile",
            where=where,
            allowed="p50, p90, p95, p99, p99.9, …",
            try_=_EXAMPLE,
        )
    if match["sign"] not in {"<", "<="}:
        raise SpecError(
            f"{match['sign']!r} of {part!r}: a latency has an upper limit",
            where=where,
            allowed="<",
            try_=_EXAMPLE if ">" in match["sign"] else part.replace("=", "<"),
        )
    if match["limit"].strip().replace(".", "", 1).isdigit():
        limit = _with_unit(metric, match["limit"])
        try_ = f"{match['metric']}:{match['statistic']}{match['sign']}{limit}"
        raise SpecError(
            f"{match['limit'].strip()!r} of {part!r} has no unit",
            where=where,
            allowed="ms, s, us, …",
            try_=try_,
        )
    if _TWO_LIMITS.search(match["limit"]):
        raise SpecError(
            f"no comma between the limits of {part!r}",
            where=where,
            allowed="limits with commas between",
            try_=_EXAMPLE,
        )
    limit_s = round(parse_duration_s(match["limit"], where=where), 12)
    if limit_s <= 0:
        raise SpecError(
            f"limit {match['limit'].strip()!r} of {part!r} is not above 0",
            where=where,
            allowed="a duration",
            try_=_EXAMPLE,
        )
    return Threshold(
        metric=metric, percentile_fraction=round(float(percentile[1]) / 100, 9), limit_s=limit_s
    )


def _with_percentile(below: str) -> str:
    """The limit with a percentile, where it names none."""
    bare = _NO_STATISTIC.fullmatch(below)
    if bare is None or ":" in below or re.search(r"\bp\d", bare["metric"].lower()):
        return below
    return f"{bare['metric']}:p95<{bare['limit']}"


def _with_sign(part: str) -> str:
    """The limit with a sign, for `under`, `at most`, or no word at all before it."""
    below = _BELOW.sub("<", part)
    return below if re.search("[<>=]", below) else _NO_SIGN.sub("<", below)


def _no_threshold(part: str, below: str, where: str) -> SpecError:
    """The error, with a suggestion that adds the missing percentile, metric or unit."""
    bare = _NO_STATISTIC.fullmatch(below)
    if bare is None:
        missing, try_ = "", _of_pairs(part, where) or _EXAMPLE
    elif _PERCENTILE.fullmatch(bare["metric"].lower()):
        missing = ": which latency?"
        try_ = f"ttft:{bare['metric'].lower()}<{_with_unit('ttft', bare['limit'])}"
    else:
        missing = ": which percentile?"
        metric = _metric(bare["metric"], part, where)
        try_ = f"{metric}:p95<{_with_unit(metric, bare['limit'])}"
    return SpecError(f"{part!r} is no threshold{missing}", where=where, allowed=_ALLOWED, try_=try_)


def _of_pairs(part: str, where: str) -> str | None:
    """The limits of ``ttft:500 tpot:50`` with a percentile and a unit; None of other text."""
    pairs = _PAIRS.findall(part)
    if not pairs or _PAIRS.sub("", part).strip():
        return None
    limits: list[tuple[Metric, str]] = [
        ("tpot" if _spelled(name) in _GAPS else _metric(name, part, where), limit)
        for name, limit in pairs
    ]
    return ", ".join(f"{metric}:p95<{_with_unit(metric, limit)}" for metric, limit in limits)


def _with_unit(metric: Metric, limit: str) -> str:
    """A limit with the unit that a bare number likely has.

    Milliseconds, as in other tools, except small numbers for a TTFT or a whole answer (seconds).
    """
    limit = limit.strip()
    if not limit.replace(".", "", 1).isdigit():
        return limit
    is_seconds = metric in {"ttft", "e2e", "workflow"} and float(limit) < _FEW_SECONDS
    return f"{limit}{'s' if is_seconds else 'ms'}"


_GAPS: Final = {"itl", "inter token latency", "tbt", "time between tokens"}
"""Names of single gaps between tokens, which are not judged: TPOT is a mean per request."""


def _metric(name: str, part: str, where: str) -> Metric:
    known: dict[str, Metric] = {
        _spelled(word): metric
        for metric, words in METRICS.items()
        for word in (metric, *words.synonyms)
    }
    if _spelled(name) not in known:
        allowed = "; ".join(f"{metric}: {words.meaning}" for metric, words in METRICS.items())
        is_gap = _spelled(name) in _GAPS
        raise SpecError(
            f"{name!r} of {part!r} is no latency that is known",
            where=where,
            allowed=allowed,
            try_="the mean of a request's gaps between tokens:"
            f" {_with_percentile(part.replace(name, 'tpot'))}"
            if is_gap
            else _EXAMPLE,
        )
    return known[_spelled(name)]


def _spelled(name: str) -> str:
    return re.sub(r"[-_ ]+", " ", name.lower())


# Named objectives: the latency limits of MLPerf Inference's datacenter rules.
# A result under such an objective is not an MLPerf result: those are submitted, reviewed, and
# require a data set and an accuracy.


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetObjective:
    """A named objective."""

    name: str
    text: str
    """As written after ``--slo``."""
    what: str
    source: Source


_RULES: Final = Source(
    kind="repository",
    where=(
        "mlcommons/inference_policies@ac93e89c (2026-07-23), inference_rules.adoc: datacenter"
        " benchmarks; tail latency percentile 99 %"
    ),
    checked_utc="2026-11-21",
)


def _mlperf(name: str, ttft_ms: int, tpot_ms: int, what: str) -> PresetObjective:
    return PresetObjective(
        name=f"mlperf:{name}",
        text=f"ttft:p99<{ttft_ms}ms, tpot:p99<{tpot_ms}ms",
        what=what,
        source=_RULES,
    )


_PRESETS: Final = (
    _mlperf("llama3.1-8b-server", 2000, 100, "CNN Dailymail, conversational"),
    _mlperf("llama3.1-8b-interactive", 500, 30, "CNN Dailymail, interactive"),
    _mlperf("llama2-70b-server", 2000, 200, "OpenOrca, conversational"),
    _mlperf("llama2-70b-interactive", 450, 40, "OpenOrca, interactive"),
    _mlperf("llama3.1-405b-server", 6000, 175, "LongBench, LongDataCollections, Ruler, GovReport"),
    _mlperf(
        "llama3.1-405b-interactive", 4500, 80, "LongBench, LongDataCollections, Ruler, GovReport"
    ),
    _mlperf("mixtral-8x7b-server", 2000, 200, "OpenOrca, GSM8K, MBXP"),
    _mlperf("deepseek-r1-server", 2000, 80, "mlperf_deepseek_r1"),
    _mlperf("deepseek-r1-interactive", 1500, 15, "mlperf_deepseek_r1"),
    _mlperf("gpt-oss-120b-server", 3000, 80, "AIME25, GPQA Diamond, LiveCodeBench v6"),
    _mlperf("gpt-oss-120b-interactive", 2000, 20, "AIME25, GPQA Diamond, LiveCodeBench v6"),
)
PRESET_OBJECTIVES: Final = {preset.name: preset for preset in _PRESETS}


def find_presets(name: str | None = None) -> tuple[PresetObjective, ...]:
    """All presets, or the one of this name.

    Raises
    ------
    SpecError
        There is no preset of this name.
    """
    if name is None:
        return _PRESETS
    if name.lower() not in PRESET_OBJECTIVES:
        allowed = ", ".join(PRESET_OBJECTIVES)
        raise SpecError(
            f"no objective is called {name!r}",
            where="its name",
            allowed=allowed,
            try_="inferometer catalog slos",
        )
    return (PRESET_OBJECTIVES[name.lower()],)

"""Which objectives have others promised, by name: the latency limits of MLPerf Inference's datacenter rules?

A result under such an objective is no MLPerf result: those are submitted, reviewed, and hold to a
data set and an accuracy too.
"""

from typing import Final, NamedTuple

from inferometer.errors import SpecError
from inferometer.spec.types import Source


class PresetObjective(NamedTuple):
    """A named objective."""

    name: str
    text: str
    """As it is written after ``--slo``."""
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
    """All of them, or the one of this name.

    Raises
    ------
    SpecError
        None has it.
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

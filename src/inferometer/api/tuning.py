"""What does tuning answer: each step's decision, the confirmed gain, the command, the checklist?"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from inferometer.api.answer import Answer
from inferometer.decide.tuning.search import StepFound
from inferometer.decide.tuning.trials import Goal
from inferometer.errors import EXIT_OF_SLO
from inferometer.inputs.types import Caution
from inferometer.records.pitfalls import CheckRow
from inferometer.stats.estimate import Estimate, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedLatency:
    """One limit of the SLO, before and after."""

    text: str
    """The limit; of a class's own SLO with the class's name."""
    limit_s: float
    before_s: Estimate | None
    """None: no request has this latency."""
    after_s: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting that is not the engine's default, and why."""

    name: str
    value: str
    default: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One entry of the checklist."""

    name: str
    is_ticked: bool | None
    """None: not known."""
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneAnswer(Answer):
    """Changes, their gain in fresh pairs, and open questions."""

    table = "steps"

    model: str
    hardware: str | None
    engine: str
    goal: Goal
    objective: str
    workload_name: str
    load: float
    """Users, or requests per second."""
    load_unit: Literal["users", "requests/s"]
    score_words: str
    """Name of the quantity that gains refer to."""
    least_gain_fraction: float
    steps: tuple[StepFound, ...]
    is_confirmed: bool
    gain_fraction: Estimate | None
    """Gain of all adopted steps in fresh pairs; None: nothing was changed."""
    selected_gain_fraction: Estimate | None
    """Gain in the pairs of the selection, which is biased: the best of many looks too good."""
    latencies: tuple[TunedLatency, ...]
    score_before: Estimate | None
    score_after: Estimate | None
    slo_before: Verdict
    slo_after: Verdict
    settings: tuple[SettingRow, ...]
    """Settings that differ from the engine's defaults."""
    command: str | None
    """Start command of one replica; None where no engine can be started so."""
    n_replicas: int
    n_devices: int
    router: str | None
    """None: one replica."""
    checklist: tuple[Box, ...]
    checks: tuple[CheckRow, ...]
    """Pitfalls of the server as it is, by its simulated requests."""
    n_simulations: int
    step_times: str
    """Source of the step times."""
    quality_checks: tuple[str, ...]
    """The command that checks each change that is offered."""
    cautions: tuple[Caution, ...]
    next_step: str
    folder: str | None
    command_why_not: str | None = None
    """Simulated settings that no engine has; None where there is a command."""

    @property
    def exit_code(self) -> int:
        """Exit code of the SLO's verdict afterwards."""
        return EXIT_OF_SLO[self.slo_after]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """Changes that a step would try."""

    name: str
    title: str
    flags: str
    changes: tuple[str, ...]
    why_none: str
    unpredicted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTune(Answer):
    """What would be tried, and how long it would take."""

    table = "steps"

    steps: tuple[PlannedStep, ...]
    n_candidates: int
    n_simulations: int
    """At most."""
    duration_s: float | None
    """At most, on one core of this machine: from one simulation that was timed; of servers that are
    started only the loads, None where their requests end them."""
    n_restarts: int
    """Starts of a server; 0 for a simulated one."""
    cost: str = "no server is started: 0 restarts, 0 GPU-minutes"
    is_engine: bool = False
    """Is it an engine on this machine, so that restarts are loads?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetRow:
    """One value with its reason."""

    setting: str
    value: str
    flag: str
    """'' where the engine has none."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetAnswer(Answer):
    """Recommended values to start from, each with its reason."""

    table = "values"

    preset: Literal["interactive", "batch"]
    model: str
    hardware: str
    engine: str
    values: tuple[PresetRow, ...]
    trust: str
    """Where the step times come from, and which of them are too uncertain to choose by."""
    command: str
    next_step: str


MeasuredDecision: TypeAlias = Literal["keep", "drop", "check quality", "not measured", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One step: predictions, and results of pairs of fresh servers."""

    name: str
    title: str
    decision: MeasuredDecision
    change: str | None
    """None: there was nothing to try."""
    predicted_gain_fraction: Estimate | None
    """None: no simulation knows."""
    gain_fraction: Estimate | None
    """None: not measured."""
    n_pairs: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTune(Answer):
    """Flags to change, their gain in fresh pairs of real servers, and refuted predictions."""

    table = "steps"

    model: str
    url: str | None
    """None: no server, an engine of this machine."""
    engine: str
    version: str | None
    """None: the server does not tell."""
    goal: Goal
    objective: str | None
    """None: without an SLO."""
    workload_name: str
    load: float
    """Users, requests per second, or sequences of a batch."""
    load_unit: Literal["users", "requests/s", "sequences"]
    score_words: str
    least_gain_fraction: float
    steps: tuple[MeasuredStep, ...]
    is_confirmed: bool
    gain_fraction: Estimate | None
    """Gain in fresh pairs; None: nothing was adopted."""
    selected_gain_fraction: float | None
    """Product of the gains in the pairs of the selection."""
    noise_fraction: float
    """Standard deviation of the ratio in pairs of the same command."""
    same_gain_fraction: Estimate | None
    """The gain in pairs of the same command, which is none."""
    latencies: tuple[TunedLatency, ...]
    slo_before: Verdict | None
    slo_after: Verdict | None
    settings: tuple[SettingRow, ...]
    """Settings that differ from the given command."""
    command: str
    command_before: str
    checklist: tuple[Box, ...]
    checks: tuple[CheckRow, ...]
    """Pitfalls of the command as it was given: medians over the load tests of it against itself."""
    n_servers: int
    """Started, or engines that were loaded, in all."""
    n_simulations: int
    start_s: float
    """Start time of the first server, or load time."""
    quality_checks: tuple[str, ...]
    cautions: tuple[Caution, ...]
    next_step: str
    folder: str

    @property
    def exit_code(self) -> int:
        """Exit code of the SLO's verdict afterwards."""
        return EXIT_OF_SLO[self.slo_after]

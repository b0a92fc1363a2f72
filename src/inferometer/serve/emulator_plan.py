"""What does an emulated server do: whose scheduler, which step times, which model's name, which faults?"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferometer.errors import SpecError
from inferometer.perfmodel.steptime_arrays import StepTimeArrays, slowed
from inferometer.serve.fault_specs import FaultRule
from inferometer.simulate.engine_config import EngineConfig

LOOPBACK: Final = "127.0.0.1"
DEFAULT_MEAN_TOKENS: Final = 128.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorPlan:
    """All that an emulated server is told before it starts.

    Two servers with the same plan draw the same for their n-th requests.
    """

    model_name: str
    config: EngineConfig
    cost: StepTimeArrays
    host: str = LOOPBACK
    port: int = 0
    """0: any that is free."""
    seed: int = 0
    mean_output_tokens: float | None = DEFAULT_MEAN_TOKENS
    """Answers end by themselves after so many tokens on average (geometric); None: never before
    ``max_tokens``."""
    faults: tuple[FaultRule, ...] = ()
    time_scale_ratio: float = 1.0
    """Each step takes so many times as long."""
    emission_log: Path | None = None
    tokenizer: Path | None = None
    """A ``tokenizer.json``; None: a token is a word between spaces."""
    for_s: float | None = None
    """Stop by itself after this time."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.time_scale_ratio) and self.time_scale_ratio > 0):
            raise SpecError(
                f"time scale {self.time_scale_ratio}",
                where="the emulator's plan",
                allowed="above 0",
            )
        if self.config.n_instances > 1:
            raise SpecError(
                self.config.engine,
                where="the emulator's plan",
                allowed="one instance: its batches run one after the other",
            )
        if self.mean_output_tokens is not None and not self.mean_output_tokens >= 1:
            raise SpecError(
                f"answers of {self.mean_output_tokens} tokens",
                where="the emulator's plan",
                allowed="1 or more on average",
            )
        if not 0 <= self.port <= 65535:
            raise SpecError(
                f"port {self.port}",
                where="the emulator's plan",
                allowed="0 (any free one) to 65535",
            )

    @property
    def wall_cost(self) -> StepTimeArrays:
        """The step times as they pass on the wall clock."""
        return slowed(self.cost, self.time_scale_ratio)

"""A fitted server as a file: limits, step times, their uncertainty, and draws of other servers.

The one file that every verb takes with ``--fit``: its limits and switches are the scheduler's
unless flags say otherwise. Letters of shapes: K unknowns.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
import scipy

from inferometer import suggestions
from inferometer.errors import ModelError
from inferometer.fit.loads import server
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.types import EngineSpec, ModelSpec
from inferometer.perfmodel import steptime, steptime_levels, steptime_terms, types
from inferometer.perfmodel.types import NOTHING_STATED, FitSubject
from inferometer.records.columns import F64
from inferometer.stats.estimate import Z_90, Estimate

SERVER_SCHEMA_VERSION: Final = 2
SERVER_FIT_NAME: Final = "server_fit.json"
_STEP: Final = 1e-4
_OF_PROMPTS: Final = ("matmul_row_s", "attention_pair_s")
_WIDEST: Final = 2.0
_INEXACT_RATIO: Final = 0.01
"""Error of any step besides the load tests' uncertainty: a formula is no server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLoad:
    """The load that was measured: simulations of far more, or of other requests, extrapolate."""

    run_ids: tuple[str, ...]
    n_requests: int
    n_answers_at_once: int
    median_prompt_tokens: int
    median_context_tokens: int
    longest_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDraw:
    """A draw from the posterior of servers; all draws are equally likely."""

    knobs: dict[str, int | bool]
    parameters: tuple[float, ...]
    """In the order of ``ServerFit.parameters``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFit:
    """A server fitted to load tests; its step times are ``base`` scaled by the parameters."""

    kind: Literal["server"] = "server"
    schema_version: int = SERVER_SCHEMA_VERSION
    served_model: str
    """What clients call the model."""
    model: ModelSpec | None
    """Architecture, where it was given."""
    hardware: str | None
    engine: EngineSpec
    block_tokens: int
    max_model_len: int
    knobs: tuple[server.KnobFit, ...]
    parameters: tuple[steptime.FittedParameter, ...]
    """Of the steps, then ``front_end_s``: the time before the scheduler sees a request and after it
    emits a token."""
    covariance: tuple[tuple[float, ...], ...]
    """(K, K) Of the parameters' logarithms."""
    base: dict[str, float | bool | tuple[float, ...]]
    """The shape of the closed form: the fields of ``steptime_terms.StepTimeArrays``."""
    seen: SeenLoad
    scatter_ratio: float
    """Root mean square of the residuals, in what was expected of single requests: 10 % of a TTFT
    and 2 % of a TPOT."""
    n_simulations: int
    ttft_residual_fraction: float = 0.0
    """Root mean square error of the mean TTFT of similar requests; 0 in files of versions that did
    not store it."""
    tpot_residual_fraction: float = 0.0
    floors_s: tuple[float, ...] = ()
    """Least value of each parameter at the device's peaks, 0 where nothing bounds it; empty: no
    device is known."""
    draws: tuple[ServerDraw, ...] = ()
    """Other possible servers, limits and step times together; empty in files of versions that did
    not draw."""
    subject: FitSubject | None = None
    """Subject of the fit; None in files of versions that did not store it."""

    @property
    def front_end_s(self) -> float:
        """Time from the client to the scheduler and back."""
        return self.parameters[-1].estimate.value

    def x(self) -> F64:
        """Logarithms of the parameters."""
        return np.log([parameter.estimate.value for parameter in self.parameters])

    def steps(self, x: F64 | None = None) -> steptime_terms.StepTimeArrays:
        """The step times, at other unknowns if given."""
        arrays = {
            name: np.array(value) if isinstance(value, tuple) else value
            for name, value in self.base.items()
        }
        steps = steptime_terms.StepTimeArrays(**arrays)  # type: ignore[arg-type]
        return server.steps_at(steps, self.x() if x is None else x)

    def drawn_levels(self, draws_of: ServerDraw) -> steptime_levels.StepTimes:
        """The step times of a draw, without uncertainty."""
        steps = self.steps(np.log(draws_of.parameters))
        return replace(
            self.levels(), likely=steps, fast=steps, slow=steps, front_end_s=draws_of.parameters[-1]
        )

    def knob(self, name: str) -> int | bool:
        """Value of this limit or switch for simulations."""
        return next(knob.value for knob in self.knobs if knob.name == name)

    def levels(self) -> steptime_levels.StepTimes:
        """Expected step times, and the 5 % and 95 % ends for prompts and tokens together."""
        likely, half_widths = self.steps(), self._log_half_widths()
        n_requests, n_runs = self.seen.n_requests, len(self.seen.run_ids)
        return steptime_levels.StepTimes(
            basis="fitted",
            origin=(
                f"inverse simulation of {n_requests:,} requests in {n_runs} load tests of"
                f" {self.served_model}"
            ),
            engine=self.engine,
            likely=likely,
            fast=server.not_below(self._slower(likely, -half_widths), self.floors_s),
            slow=self._slower(likely, half_widths),
            subject=self.subject or NOTHING_STATED,
        )

    def step_estimate(
        self, shape: types.BatchShape, *, n_steps: int = 1, further_s: float = 0.0
    ) -> Estimate:
        """Duration of steps of this shape, plus ``further_s``, with its 90 % interval."""
        levels = self.levels()
        value, low, high = (
            further_s + n_steps * steptime_terms.shape_duration_s(steps, shape)
            for steps in (levels.likely, levels.fast, levels.slow)
        )
        method = "inverse simulation of load tests"
        n_samples = self.seen.n_requests
        return Estimate(
            value=value,
            low=min(low, value),
            high=max(high, value),
            confidence_fraction=0.9,
            n_samples=n_samples,
            method=method,
        )

    def n_prompt_steps(self, *, batch_size: int, prompt_tokens: int) -> int:
        """Steps in which the server computes these prompts (the tokens that no cache holds).

        Without chunked prefill it computes whole prompts alone, as many as fit into its budget.
        """
        budget = int(self.knob("max_num_batched_tokens"))
        if self.knob("enable_chunked_prefill"):
            return -(-batch_size * prompt_tokens // budget)
        return -(-batch_size // max(budget // prompt_tokens, 1))

    def save(self, path: Path) -> None:
        """Write it to a JSON file."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    def _log_half_widths(self) -> F64:
        """Half widths of the 90 % intervals of ``_log_seconds`` (delta method)."""
        x = self.x()
        slopes = np.stack(
            [
                self._log_seconds(x + _STEP * unit) - self._log_seconds(x - _STEP * unit)
                for unit in np.eye(len(x))
            ],
            axis=1,
        )
        slopes /= 2 * _STEP
        return np.asarray(
            Z_90
            * np.sqrt(np.diag(slopes @ np.array(self.covariance) @ slopes.T) + _INEXACT_RATIO**2),
            dtype=np.float64,
        )

    def _slower(
        self, likely: steptime_terms.StepTimeArrays, log_ratios: F64
    ) -> steptime_terms.StepTimeArrays:
        """Slow every step down as a typical decode, and prompts further, to the given ratios."""
        prompt_ratio, decode_ratio = (float(ratio) for ratio in np.exp(log_ratios))
        all_slower = steptime_terms.slowed(likely, decode_ratio)
        prefill = types.prefill_shape(batch_size=1, prompt_tokens=self.seen.median_prompt_tokens)
        wanted_s = steptime_terms.shape_duration_s(likely, prefill) * prompt_ratio

        def prompts_slower(log_ratio: float) -> steptime_terms.StepTimeArrays:
            return all_slower._replace(
                **{
                    name: getattr(all_slower, name) * float(np.exp(log_ratio))
                    for name in _OF_PROMPTS
                }
            )

        def missing_s(log_ratio: float) -> float:
            return steptime_terms.shape_duration_s(prompts_slower(log_ratio), prefill) - wanted_s

        if missing_s(-_WIDEST) >= 0 or missing_s(_WIDEST) <= 0:
            return all_slower
        log_ratio = float(scipy.optimize.brentq(missing_s, -_WIDEST, _WIDEST))  # pyright: ignore[reportArgumentType]
        return prompts_slower(log_ratio)

    def _log_seconds(self, x: F64) -> F64:
        """Logarithms of the times of a typical prompt and of typical decodes."""
        seen, steps = self.seen, self.steps(x)
        prefill = types.prefill_shape(batch_size=1, prompt_tokens=seen.median_prompt_tokens)
        decode = types.decode_shape(
            batch_size=max(seen.n_answers_at_once // 2, 1),
            context_tokens=seen.median_context_tokens,
        )
        return np.log(
            [
                steptime_terms.shape_duration_s(steps, prefill),
                steptime_terms.shape_duration_s(steps, decode),
            ]
        )


def plain_base(base: steptime_terms.StepTimeArrays) -> dict[str, float | bool | tuple[float, ...]]:
    """The shape of a closed form as a file holds it."""
    return {
        name: tuple(value.tolist()) if isinstance(value, np.ndarray) else value
        for name, value in base._asdict().items()
    }


def is_server_fit(path: Path) -> bool:
    """Does this file or folder hold a fit of a server?"""
    try:
        return _door().json(_door().bytes_of(_file(path)), _Kind, where=str(path)).kind == "server"
    except ModelError:
        return False


def load_server_fit(path: Path) -> ServerFit:
    """The server of a JSON file, or of the folder of the run that it was fitted to.

    Raises
    ------
    ModelError
        No such file, not a server's fit, or of a version that this one does not read.
    """
    path = _file(path)
    content, where = _door().bytes_of(path), str(path)
    version = _door().json(content, _Kind, where=where).schema_version
    if version == 1:
        content, version = steptime.in_words_of_version_2(content), SERVER_SCHEMA_VERSION
    if version != SERVER_SCHEMA_VERSION:
        raise ModelError(
            f"schema version {version}",
            where=where,
            allowed=str(SERVER_SCHEMA_VERSION),
            try_=suggestions.command("fit", "--load", "RUN"),
        )
    return replace(_door().json(content, ServerFit, where=where), schema_version=version)


def _door() -> Door:
    again = suggestions.command("fit", "--load", "RUN")
    return Door(
        noun="server's fit",
        allowed="a file of inferometer fit --load",
        refusal=ModelError,
        try_=again,
    )


def _file(path: Path) -> Path:
    return path / SERVER_FIT_NAME if path.is_dir() else path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    kind: str | None = None
    schema_version: int | None = None

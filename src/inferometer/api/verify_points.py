"""Which points of a sweep does a plan ask about, and what does the step-time model commit itself to?"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from inferometer.api import named_fit, verify_belief
from inferometer.api.server import Server, step_times_of
from inferometer.perfmodel import steptime_arrays, types
from inferometer.spec import catalog, resolve
from inferometer.spec.types import HardwareSpec, ModelSpec, SweepPoint
from inferometer.spec.verify_plan import BelievedServer, Points
from inferometer.stats.estimate import Estimate
from inferometer.verify import claims, seals


class AskedPoint(NamedTuple):
    """A point of a sweep."""

    question: seals.Question
    point: SweepPoint


class _Step(NamedTuple):
    at: str
    metric: seals.Metric
    shape: types.BatchShape


def asked_points(points: Points) -> tuple[AskedPoint, ...]:
    """Each batch size at each prompt length."""
    grid = [
        SweepPoint(prompt_tokens=prompt, batch_size=batch, gen_tokens=points.gen_tokens)
        for prompt in points.prompt_tokens
        for batch in points.batch_sizes
    ]
    return tuple(
        AskedPoint(
            seals.Question(
                at=f"prompt {point.prompt_tokens}, batch {point.batch_size}",
                asks=f"prefill, then {point.gen_tokens} tokens for each sequence",
                sha256=seals.sha256_of(point),
            ),
            point,
        )
        for point in grid
    )


def predict_points(server: BelievedServer, points: Sequence[AskedPoint]) -> claims.Commitment:
    """What the fit, or the datasheet, says of the prefill and the median decode step of these points.

    Raises
    ------
    SpecError, ModelError
        The model or the device is not known, or the fit is another one's.
    """
    found = resolve.resolve_model(server.model, load_format="dummy")
    model = found.spec
    hardware = None if server.hardware is None else catalog.find_hardware(server.hardware)
    steps = [step for asked in points for step in _steps(asked)]
    asked = verify_belief.server_of(server)
    levels = step_times_of(asked, found, hardware).times
    if asked.fit is not None:
        said = _fitted(asked.fit, asked, model, hardware, steps)
    else:
        paces = (levels.likely, levels.fast, levels.slow)
        each = (
            [steptime_arrays.shape_duration_s(pace, step.shape) for pace in paces] for step in steps
        )
        said = [claims.spanned(value, ends) for value, *ends in each]
    return claims.Commitment(
        verify_belief.belief_of(server, levels.basis, levels.origin, model_id=model.model_id),
        tuple(
            seals.Claim(at=step.at, metric=step.metric, predicted=duration)
            for step, duration in zip(steps, said, strict=True)
        ),
    )


def _fitted(
    path: Path,
    server: Server,
    model: ModelSpec,
    hardware: HardwareSpec | None,
    steps: Sequence[_Step],
) -> list[Estimate]:
    fit = named_fit.step_fit(
        path,
        named_fit.question_of(server.stated(), model, hardware),
        is_transfer=server.transfer,
    )
    return [said.duration_s for said in fit.model.predict_all([step.shape for step in steps])]


def _steps(asked: AskedPoint) -> tuple[_Step, _Step]:
    """The prefill, and the decode step in the middle of the generation."""
    point = asked.point
    middle = point.prompt_tokens + round(point.gen_tokens / 2)
    return (
        _Step(
            asked.question.at,
            "prefill_s",
            types.prefill_shape(batch_size=point.batch_size, prompt_tokens=point.prompt_tokens),
        ),
        _Step(
            asked.question.at,
            "decode_step_s",
            types.decode_shape(batch_size=point.batch_size, context_tokens=middle),
        ),
    )

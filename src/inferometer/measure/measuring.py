"""How is one point of a plan measured, whatever the engine does?"""

from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from inferometer.errors import EngineError
from inferometer.measure.ceilings import n_threads_used, probe_settings
from inferometer.measure.engines.protocol import Measure, OutOfMemory, Probed, Repeated
from inferometer.measure.engines.remote import RemoteEngine
from inferometer.measure.points import MeasuredPoint, MeasuredRepetition, ProbedCeiling
from inferometer.measure.telemetry import Sampler
from inferometer.records.types import Caution, PointStatus, ProbeKind
from inferometer.spec.types import SweepPlan, SweepVisit

OUTSIDE_KINDS: Final = (ProbeKind.READ, ProbeKind.COPY, ProbeKind.MATMUL)
"""Probed before the first point of a session and after the last."""
N_TRIES: Final = 2
"""A point whose engine died is tried once more, in a fresh process, before it counts as failed."""
_SAFE_VOCAB: Final = 256
"""Every model has so many tokens, where its size is not known."""


class PointMeasurer:
    """Runs points of one plan on one engine, with ceilings and telemetry.

    Telemetry is sampled while it is open as a context.
    """

    def __init__(self, plan: SweepPlan, engine: RemoteEngine) -> None:
        self._plan = plan
        self._engine = engine
        self._vocab_size = (
            _SAFE_VOCAB if engine.model.spec is None else engine.model.spec.vocab_size
        )
        self._probes = probe_settings(plan.engine, engine.facts())
        self._sampler = Sampler(
            lambda: engine.pid,
            n_cores=n_threads_used(plan.engine),
            device=plan.engine.device,
            n_devices=plan.engine.tensor_parallel_size,
        )

    def __enter__(self) -> Self:
        """Begin sampling."""
        self._sampler.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End sampling."""
        self._sampler.__exit__(kind, error, trace)

    def measure(self, visit: SweepVisit) -> MeasuredPoint:
        """Run a point's repetitions of this visit.

        Want of memory and a failure of the engine, once repeated, are results.
        """
        why = ""
        for _ in range(N_TRIES):
            try:
                return self._attempt(visit)
            except EngineError as error:
                why = str(error)
        return self._result(visit, PointStatus.FAILED, why, [], [])

    def probe_outside(self) -> tuple[ProbedCeiling, ...]:
        """The ceilings while no point is measured; none where the engine is gone."""
        if self._engine.pid is None:
            return ()
        ceilings = self._engine.probe(replace(self._probes, kinds=OUTSIDE_KINDS))
        return tuple(
            ProbedCeiling(point_index=-1, repetition=-1, ceiling=ceiling) for ceiling in ceilings
        )

    def cautions(self) -> tuple[Caution, ...]:
        """What telemetry found to be wrong so far."""
        reasons = self._sampler.throttle_reasons
        caution = Caution(
            code="THROTTLED",
            text=f"the accelerator ran below its clocks at times: {', '.join(reasons)}",
            remedy=(
                "cool it, raise its power limit, or lock its clocks lower, so that they stay the"
                " same"
            ),
        )
        return (caution,) if reasons else ()

    def _attempt(self, visit: SweepVisit) -> MeasuredPoint:
        done: list[MeasuredRepetition] = []
        ceilings: list[ProbedCeiling] = []
        try:
            for result in self._results(visit):
                if isinstance(result, Probed):
                    following = visit.first_repetition + len(done)
                    ceilings += [
                        ProbedCeiling(
                            point_index=visit.point_index, repetition=following, ceiling=each
                        )
                        for each in result.ceilings
                    ]
                    continue
                repetition = result.repetition
                end_ns = (
                    repetition.started_ns + repetition.prefill_ns + sum(repetition.decode_step_ns)
                )
                done.append(
                    MeasuredRepetition(
                        repetition=repetition,
                        telemetry=self._sampler.between(repetition.started_ns, end_ns),
                    )
                )
        except OutOfMemory as error:
            return self._result(visit, PointStatus.OUT_OF_MEMORY, str(error), done, ceilings)
        self._sampler.forget()
        return self._result(visit, PointStatus.OK, None, done, ceilings)

    def _results(self, visit: SweepVisit) -> Iterator[Repeated | Probed]:
        plan = self._plan
        return self._engine.measure(
            Measure(
                point=plan.points[visit.point_index],
                n_warmup=visit.n_warmup,
                n_reps=visit.n_reps,
                first_repetition=visit.first_repetition,
                seed=plan.seed,
                vocab_size=self._vocab_size,
                probes=self._probes,
            )
        )

    def _result(
        self,
        visit: SweepVisit,
        status: PointStatus,
        why: str | None,
        done: list[MeasuredRepetition],
        ceilings: list[ProbedCeiling],
    ) -> MeasuredPoint:
        return MeasuredPoint(
            visit=visit,
            point=self._plan.points[visit.point_index],
            status=status,
            repetitions=tuple(done),
            ceilings=tuple(ceilings),
            why=why,
        )

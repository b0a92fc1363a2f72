"""Which server answered these load tests, and what do they not tell of it?

From nothing but rates, lengths and timestamps.

What the server's own metrics or log name is taken as it stands; all else comes from inverse
simulation, with intervals by profile likelihood (limits) and by a sandwich over groups of
neighbours (step times).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inferometer.errors import ModelError
from inferometer.fit.loads import conclusions, intervals, load_tests, search, server
from inferometer.fit.loads.conclusions import Refusal, refusal_of
from inferometer.fit.loads.server import (
    BLOCK_TOKENS,
    LIMITS,
    SWITCHES,
    KnobFit,
    ToldByServer,
    steps_at,
    terms_of,
)
from inferometer.fit.loads.server_fit import SeenLoad, ServerFit, plain_base
from inferometer.perfmodel.fit_subject import NOTHING_STATED, FitSubject
from inferometer.perfmodel.memory import USUAL_BEFORE, MemoryQuestion, n_kv_blocks_that_fit
from inferometer.perfmodel.steptime import FittedParameter, ToldBy
from inferometer.spec.types import EngineSpec, HardwareSpec, ModelSpec
from inferometer.stats.estimate import Z_90, Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is known of the server before it is looked at; mostly nothing."""

    address: conclusions.Address
    model: ModelSpec | None = None
    hardware: HardwareSpec | None = None
    engine: EngineSpec
    facts: FitSubject = NOTHING_STATED
    told: ToldByServer


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedFit:
    """A server's fit, and why it may not be used where that is so."""

    fit: ServerFit
    refusal: Refusal | None


def fit_server(tests: Sequence[load_tests.LoadTest], subject: Subject) -> ServerFit:
    """The server behind load tests of it, all together, whether or not it may be used: ``judged_server`` says that too."""
    return judged_server(tests, subject).fit


def judged_server(tests: Sequence[load_tests.LoadTest], subject: Subject) -> JudgedFit:
    """The server behind load tests of it, all together; refused where its simulation is far from what was measured.

    Raises
    ------
    ModelError
        No load tests, or one of them has too few requests that ended.
    """
    if not tests:
        raise ModelError(
            "no load tests", allowed="one or more of the same server, at several rates"
        )
    looks = tuple(load_tests.look(test) for test in tests)
    most = load_tests.crowd(looks)
    quiet = min(looks, key=lambda one: float(np.nanmedian(one.seen.ttft_s)))
    belief = server.step_belief(
        load_tests.first_pace(looks),
        quiet.seen.ttft_s,
        subject.model,
        subject.engine,
        subject.hardware,
    )
    terms = terms_of(most, subject.told, _blocks_that_fit(subject, utilization_fraction=1.0))
    explained = search.explain(search.BlackBox(looks=looks, belief=belief, terms=terms))
    profiles, solution = intervals.Profiles(explained), explained.solution
    room, residual = _room(explained, subject), explained.box.residual(explained.place)
    knobs = _knobs(explained, profiles, subject, room)
    fit = ServerFit(
        served_model=subject.address.served_model,
        model=subject.model,
        hardware=None if subject.hardware is None else subject.hardware.name,
        engine=subject.engine,
        block_tokens=explained.box.terms.block_tokens,
        max_model_len=explained.box.terms.max_model_len,
        knobs=knobs,
        parameters=_parameters(explained),
        covariance=tuple(tuple(row) for row in solution.covariance.tolist()),
        base=plain_base(belief.base),
        seen=_seen(looks),
        scatter_ratio=explained.box.scatter_ratio,
        n_simulations=solution.n_calls,
        ttft_residual_fraction=residual.ttft_ratio,
        tpot_residual_fraction=residual.tpot_ratio,
        floors_s=(
            () if belief.unknowns.floor is None else tuple(np.exp(belief.unknowns.floor).tolist())
        ),
        draws=intervals.draw_servers(profiles, explained, knobs),
        subject=subject.facts,
    )
    return JudgedFit(
        fit=fit, refusal=refusal_of(fit, room, has_known_prefixes=most.has_known_prefixes)
    )


def _blocks_that_fit(subject: Subject, *, utilization_fraction: float) -> int | None:
    """KV blocks in this share of the device's memory beside the weights.

    None where the model or the device is not known.
    """
    if subject.model is None or subject.hardware is None:
        return None
    question = MemoryQuestion(
        model=subject.model,
        engine=subject.engine,
        hardware=subject.hardware,
        context_tokens=1,
        prompt_tokens=1,
        max_step_tokens=1,
        block_tokens=subject.told.block_tokens or BLOCK_TOKENS,
        utilization_fraction=utilization_fraction,
    )
    return n_kv_blocks_that_fit(question, max_num_seqs=1)


def _knobs(
    explained: search.Explained,
    profiles: intervals.Profiles,
    subject: Subject,
    room: conclusions.Room,
) -> tuple[KnobFit, ...]:
    told, box = subject.told, explained.box
    has_prefixes = any(one.has_shared_prefixes for one in box.looks)
    knobs = list[KnobFit]()
    for limit in LIMITS:
        if limit in told.limits:
            knobs.append(conclusions.told_fit(limit, told.limits[limit]))
        else:
            n_seats = int(knobs[0].value) if knobs else 0
            usual = conclusions.Usual(
                max_num_seqs=n_seats,
                n_kv_blocks=_blocks_that_fit(subject, utilization_fraction=USUAL_BEFORE.value),
            )
            knobs.append(conclusions.limit_fit(profiles.interval(limit), box.terms, usual, room))
    for switch in SWITCHES:
        if switch in told.switches:
            knobs.append(conclusions.told_fit(switch, told.switches[switch]))
        else:
            knobs.append(
                conclusions.switch_fit(profiles.verdict(switch), room, has_prefixes=has_prefixes)
            )
    return tuple(knobs)


def _room(explained: search.Explained, subject: Subject) -> conclusions.Room:
    """What further load tests may ask of this server, and how long its steps take."""
    box = explained.box
    steps = steps_at(box.belief.base, explained.solution.x)
    return conclusions.Room(
        address=subject.address,
        most=load_tests.crowd(box.looks),
        longest_tokens=box.terms.max_model_len - 1,
        median_prompt_tokens=int(
            np.median(np.concatenate([one.requests.prompt_tokens for one in box.looks]))
        ),
        step_s=float(
            np.median(
                np.concatenate([one.seen.tpot_s[np.isfinite(one.seen.tpot_s)] for one in box.looks])
            )
        ),
        prompt_token_s=steps.matmul_row_s,
    )


def _parameters(explained: search.Explained) -> tuple[FittedParameter, ...]:
    unknowns, solution = explained.box.unknowns, explained.solution
    floors = np.full(len(solution.x), -np.inf) if unknowns.floor is None else unknowns.floor
    n_samples = sum(int(one.is_told.sum()) for one in explained.box.looks)
    return tuple(
        FittedParameter(
            name=name,
            estimate=_interval(place, sd, floor, n_samples),
            told_by=_told_by(sd / believed),
        )
        for name, place, sd, floor, believed in zip(
            unknowns.names,
            solution.x.tolist(),
            np.sqrt(np.diag(solution.covariance)).tolist(),
            floors.tolist(),
            unknowns.deviation.tolist(),
            strict=True,
        )
    )


def _interval(place: float, deviation: float, floor: float, n_samples: int) -> Estimate:
    """Nothing is faster than the device's peaks allow: no end of the interval either."""
    return Estimate(
        value=math.exp(place),
        low=math.exp(max(place - Z_90 * deviation, floor)),
        high=math.exp(place + Z_90 * deviation),
        confidence_fraction=0.9,
        n_samples=n_samples,
        method="inverse simulation; sandwich over groups of neighbours",
    )


def _told_by(share: float) -> ToldBy:
    return "data" if share < 0.3 else "data and prior" if share < 0.8 else "prior"


def _seen(looks: Sequence[load_tests.LoadLook]) -> SeenLoad:
    prompt = np.concatenate([one.requests.prompt_tokens for one in looks])
    output = np.concatenate([one.output_tokens for one in looks])
    most = load_tests.crowd(looks)
    return SeenLoad(
        run_ids=tuple(one.run_id for one in looks),
        n_requests=sum(int(one.is_told.sum()) for one in looks),
        n_answers_at_once=most.n_streaming,
        median_prompt_tokens=int(np.median(prompt)),
        median_context_tokens=int(np.median(prompt + output // 2)),
        longest_tokens=most.longest_tokens,
    )

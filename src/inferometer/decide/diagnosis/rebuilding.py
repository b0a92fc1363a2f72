"""Plausible servers: simulated ones, with requests, that show the measured metrics.

Requests come as they were counted between scrapes; lengths are drawn from the server's histograms.
What metrics do not tell (limits, pace within its noise) is drawn, and the draws whose simulation
comes nearest to what was measured stay: approximate Bayesian computation by rejection (Pritchard et
al., Mol. Biol. Evol. 16, 1999), then twice more around the nearest. Letters of shapes: N requests.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.decide.diagnosis import limit_draws, traffic
from inferometer.decide.diagnosis.step_pace import overlapped_anew, step_paces
from inferometer.decide.diagnosis.window import ServerWindow, log_distance, log_outside
from inferometer.errors import ModelError
from inferometer.fit.loads.server import Limit
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.perfmodel.steptime_terms import StepTimeArrays, slowed
from inferometer.records.columns import F64, I64, Bools
from inferometer.records.server_names import Histogram
from inferometer.records.types import ABSENT
from inferometer.simulate import run
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.outcome import Simulation
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.units import NS_PER_S

N_DRAWS: Final = 19
"""Lowest and highest of 19 draws are the ends of a 90 % interval."""
_SEED: Final = 1
_N_FIRST: Final = 57
_N_ROUNDS: Final = 3
_N_MORE_ROUNDS: Final = 3
"""Further rounds of the search while no draw is near, or the furthest that stays is far."""
_FAR_DISTANCE: Final = 0.3
"""Means off by a third: of an overloaded server, whose queue a few percent of pace make twice as
long, few draws come near in the first rounds, and the others would widen all intervals."""
_N_AROUND: Final = 3
"""Neighbours of each draw that stays, in each further round."""
_PACE_SPREAD: Final = 0.08
"""Of the logarithm of all step times, beside what the intervals leave open; half of it in the
second round. An assumption."""
_MEASURED_PACE_SPREAD: Final = 0.02
"""The same where each step was recorded: what passes between steps. An assumption."""
_ROW_SPREAD: Final = 0.1
"""Spread of the logarithm of a row's time between a draw and its neighbours. An assumption."""
_MOST_OFF_RATIO: Final = 2.0
WORST_RATIO: Final = 1.5
"""A mean that no draw comes nearer to: the server does something that is not simulated."""
_FLOORS: Final = {
    "ttft_s": 0.01,
    "queue_s": 0.02,
    "prefill_s": 0.01,
    "gap_s": 5e-4,
    "running": 0.5,
    "waiting": 1.0,
}
"""Added to both sides: below it a number is read off coarsely, or is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """One plausible server, and requests like those that it got."""

    config: SchedulerConfig
    steps: StepTimeArrays
    plan: RequestPlan
    start_ns: int
    """Start of the window; earlier requests fill the server."""
    until_ns: int
    is_cache_off: bool = False
    alike_fraction: float = 0.0
    """Of the prompts' tokens, with which an earlier prompt began: where the prefix cache is off, the
    server does not report it."""

    @property
    def window_s(self) -> float:
        """The window's length."""
        return (self.until_ns - self.start_ns) / NS_PER_S

    def simulation(self, *, record_steps: bool = False) -> Simulation:
        """Simulate the requests until all have ended."""
        fleet = lone_replica(self.config, self.steps)
        return run.run(fleet, self.plan, record_steps=record_steps)


class Fitted(NamedTuple):
    """A draw, and how it compares."""

    rebuilt: Rebuilt
    simulation: Simulation
    means: Mapping[str, float]
    distance: float
    """Root of the mean of squares: of the logarithms of the ratios to the measured means, and of how
    far, in logarithms too, the latencies lie from the measured histograms."""


class Agreement(NamedTuple):
    """The nearest draws in order, and the measured means."""

    draws: tuple[Fitted, ...]
    measured: Mapping[str, float]
    n_added_up: int = 1
    """Engines that share their counters: their sum is no server that can be simulated."""

    @property
    def worst(self) -> tuple[str, float]:
        """The measured mean from which the nearest draw is furthest, and by which ratio."""
        best = self.draws[0].means
        ratios = {name: math.exp(abs(_log_ratio(best, self.measured, name))) for name in best}
        name = max(ratios, key=lambda one: ratios[one])
        return name, ratios[name]

    @property
    def compared(self) -> dict[str, tuple[float, float]]:
        """Each mean: measured, and of the nearest draw."""
        nearest = self.draws[0].means
        return {name: (self.measured[name], value) for name, value in nearest.items()}

    @property
    def is_close(self) -> bool:
        """Does the nearest draw agree with every measured mean?"""
        return self.worst[1] <= WORST_RATIO

    def check(self) -> None:
        """Refuse a server that none of the draws resembles.

        Raises
        ------
        ModelError
            A mean of the nearest draw is half as large again, or two thirds, as measured.
        """
        name, _ = self.worst
        if not self.is_close:
            seen, simulated = self.measured[name], self.draws[0].means[name]
            is_one = self.n_added_up == 1
            shared = f" ({self.n_added_up} engines that share their counters)"
            raise ModelError(
                "no simulated server shows what this one shows"
                f"{'' if is_one else shared}: {name} {simulated:.3g} where"
                f" {seen:.3g} was measured",
                where="the window",
                allowed=f"within {WORST_RATIO:g} times of each mean",
                try_="--known with its limits, or a longer window (--for, --last)"
                if is_one
                else "a server of one engine, without data parallelism, under its share of the load",
            )


def rebuilt_servers(window: ServerWindow, known: Mapping[Limit, int]) -> Agreement:
    """The ``N_DRAWS`` draws that come nearest to the measured means, the nearest first."""
    rng = np.random.default_rng(_SEED)
    budgets = limit_draws.budgets_drawn(window, known, _N_FIRST + 1, rng)
    paces = step_paces(window, budgets, _SEED)
    near = [
        _fitted(window, _drawn(window, known, pace, budget, rng))
        for pace, budget in zip(paces, budgets, strict=True)
    ]
    measured = measured_means(window)
    for i_round in range(_N_ROUNDS + _N_MORE_ROUNDS):
        near = sorted(near, key=lambda one: one.distance)[:N_DRAWS]
        is_near = Agreement(tuple(near), measured).is_close and near[-1].distance <= _FAR_DISTANCE
        if i_round >= _N_ROUNDS and is_near:
            break
        near += [_fitted(window, _around(window, known, one, rng)) for one in near * _N_AROUND]
    nearest = sorted(near, key=lambda one: one.distance)[:N_DRAWS]
    return Agreement(_as_alike(window, nearest), measured, window.n_added_up)


def mean_waiting(window: ServerWindow, agreement: Agreement) -> float:
    """Mean number of requests that wait for their first step.

    Where they hold slots while they wait, or are counted when they end, its metrics do not show all
    of them: those of the simulated servers.
    """
    if not (window.is_slot_taken_early or window.is_answer_counted_late):
        return window.mean_waiting
    waited_s: list[float] = []
    for one in agreement.draws:
        table, until_ns = one.simulation.requests, np.int64(one.rebuilt.until_ns)
        began = np.where(table.admitted_ns == ABSENT, until_ns, table.admitted_ns)
        inside_s = _inside_s(one.rebuilt, table.intended_send_ns, began)
        waited_s.append(float(inside_s.sum()) / one.rebuilt.window_s)
    return max(window.mean_waiting, float(np.median(waited_s)))


def _as_alike(window: ServerWindow, draws: Sequence[Fitted]) -> tuple[Fitted, ...]:
    """The draws, each with the share of its prompts that is alike.

    Without a prefix cache no metric depends on that share: where it is unknown it is anything from
    nothing, so that only who knows it learns that the cache is to blame.
    """
    known = window.alike_fraction
    if known is not None:
        fractions = np.full(len(draws), known)
    else:
        rng = np.random.default_rng([_SEED, 2])
        fractions = rng.permutation(np.linspace(0.0, 1.0, len(draws)))
    return tuple(
        one._replace(rebuilt=replace(one.rebuilt, alike_fraction=float(fraction)))
        for one, fraction in zip(draws, fractions, strict=True)
    )


def _pace_spread(window: ServerWindow) -> float:
    return _PACE_SPREAD if window.step_log is None else _MEASURED_PACE_SPREAD


def measured_means(window: ServerWindow) -> dict[str, float]:
    """Means over the whole window by the server's own metrics."""
    means = {
        "running": float(window.running.mean()),
        "waiting": window.mean_waiting,
    }
    if not (window.is_answer_counted_late and window.is_batch_growing):
        # Else most answers go on, and what they have got is what their prompts leave of the KV cache:
        # a tenth more of the mean prompt is half of it.
        means["output_tokens_per_s"] = float(window.output_tokens[-1]) / window.duration_s
    if window.n_steps is not None and window.gaps is None:
        # Elsewhere the histogram of gaps between tokens has the steps.
        means["steps_per_s"] = float(window.n_steps[-1]) / window.duration_s
    latencies: dict[str, Histogram] = {"ttft_s": "ttft", "gap_s": _gap(window)}
    if not window.are_stages_of_early_requests:
        latencies |= {"queue_s": "queue", "prefill_s": "prefill"}
    for name, latency in latencies.items():
        found = window.summary.time(latency)
        if found is not None:
            means[name] = found.mean_s
    return means


def _gap(window: ServerWindow) -> Histogram:
    """Histogram of gaps between tokens; TensorRT-LLM has only each request's mean gap."""
    return "itl" if window.summary.time("itl") is not None else "tpot"


def _fitted(window: ServerWindow, rebuilt: Rebuilt) -> Fitted:
    measured = measured_means(window)
    done = rebuilt.simulation(record_steps=True)
    means = {
        name: min(max(measured[name], low), high)
        for name, (low, high) in simulated_means(rebuilt, done, window).items()
        if name in measured
    }
    logs = [_log_ratio(means, measured, name) for name in means]
    # Whole histograms: the others begin at 0.3 s (vLLM), or follow from these.
    for name in ("ttft", _gap(window)):
        seen = window.spreads.get(name)
        if seen is not None:
            seconds, weights = _simulated_spread(rebuilt, done, name, window)
            n_events = seen.n / max(measured["running"], 1.0) if name == "itl" else seen.n
            logs.append(log_distance(seen, seconds, weights, n_events))
            logs.append(log_outside(seen, seconds, weights))
    return Fitted(rebuilt, done, means, math.sqrt(float(np.mean(np.square(logs)))))


def _simulated_spread(
    rebuilt: Rebuilt, done: Simulation, name: Histogram, window: ServerWindow
) -> tuple[F64, F64]:
    """Seconds, and how often: as the server would have observed them in the window."""
    if name == "itl":
        return _token_gaps(rebuilt, done)
    if name == "tpot":
        return _tpots(rebuilt, done)
    table = done.requests
    first_ns = np.where(table.first_token_ns == ABSENT, rebuilt.until_ns, table.first_token_ns)
    rows = _is_within(rebuilt, table.finished_ns if window.is_answer_counted_late else first_ns)
    seconds: F64 = (first_ns - table.intended_send_ns)[rows] / NS_PER_S
    return seconds, np.ones(len(seconds))


def _token_gaps(rebuilt: Rebuilt, done: Simulation) -> tuple[F64, F64]:
    """Gaps before the tokens that steps of the window gave to running answers, and how many each."""
    steps, end_ns = done.steps, _step_ends_ns(done)
    if steps is None or not end_ns.size:
        return np.zeros(0), np.zeros(0)
    rows = np.flatnonzero(_is_within(rebuilt, end_ns[1:]) & (steps.n_decode_requests[1:] > 0))
    gaps_s: F64 = np.diff(end_ns)[rows] / NS_PER_S
    return gaps_s, steps.n_decode_requests[1:][rows].astype(float)


def _step_ends_ns(done: Simulation) -> I64:
    steps = done.steps
    return np.zeros(0, np.int64) if steps is None else steps.start_ns + steps.duration_ns


def _tpots(rebuilt: Rebuilt, done: Simulation) -> tuple[F64, F64]:
    """The mean gap of each request that ended in the window."""
    table = done.requests
    rows = _is_within(rebuilt, table.finished_ns) & (table.output_tokens > 1)
    took_s = (table.finished_ns - table.first_token_ns)[rows] / NS_PER_S
    gaps_s: F64 = took_s / (table.output_tokens[rows] - 1)
    return gaps_s, np.ones(len(gaps_s))


def _log_ratio(means: Mapping[str, float], measured: Mapping[str, float], name: str) -> float:
    floor = _FLOORS.get(name, 0.0)
    ratio = (means[name] + floor) / max(measured[name] + floor, 1e-9)
    return math.log(min(max(ratio, 1e-6), 1e6))


def simulated_means(
    rebuilt: Rebuilt, done: Simulation, window: ServerWindow
) -> dict[str, tuple[float, float]]:
    """Mean latencies of the simulated requests, as the server would have counted them in the window.

    vLLM observes times in the queue and of prefills when a request ends; SGLang (0.5.23,
    ``req_time_stats.py``) when it is admitted, and when its prompt is done; TensorRT-LLM all of a
    request's times when it ends. Of an overloaded server these are the requests that came first.

    A request that comes during a step is queued from then on, or only from the step's end, when the
    scheduler hears of it (vLLM 0.32): between these lies what the server would have counted.
    """
    table, until_ns = done.requests, rebuilt.until_ns
    came = table.intended_send_ns
    heard = _heard_ns(done)
    began, first, ended = (
        np.where(instants_ns == ABSENT, np.int64(until_ns), instants_ns)
        for instants_ns in (table.admitted_ns, table.first_token_ns, table.finished_ns)
    )
    answered, served = (_is_within(rebuilt, one) for one in (first, ended))
    n_tokens, gap_s = _tokens(rebuilt, done, window, first, ended)
    heard = np.minimum(heard, began)
    queued_s = [float(_inside_s(rebuilt, one, began).sum()) for one in (heard, came)]
    is_early = window.is_stage_counted_early
    queued = _is_within(rebuilt, began) if is_early else served
    prefilled = answered if is_early else served
    queue_s = [_mean(((began - one) / NS_PER_S)[queued]) for one in (heard, came)]
    exact = {
        "running": float(_inside_s(rebuilt, began, ended).sum()) / rebuilt.window_s,
        "output_tokens_per_s": n_tokens / rebuilt.window_s,
        "steps_per_s": float(_is_within(rebuilt, _step_ends_ns(done)).sum()) / rebuilt.window_s,
        "ttft_s": _mean(
            ((first - came) / NS_PER_S)[served if window.is_answer_counted_late else answered]
        ),
        "prefill_s": _mean(((first - began) / NS_PER_S)[prefilled]),
        "gap_s": gap_s,
    }
    found = {
        **{name: (value, value) for name, value in exact.items()},
        "waiting": (queued_s[0] / rebuilt.window_s, queued_s[1] / rebuilt.window_s),
        "queue_s": (queue_s[0], queue_s[1]),
    }
    if window.is_slot_taken_early:
        at_ns = rebuilt.start_ns + np.rint(window.at_s * NS_PER_S).astype(np.int64)
        found |= _slots_and_deferred(rebuilt.config.max_num_seqs, at_ns, (heard, came), ended)
    return found


def _tokens(
    rebuilt: Rebuilt, done: Simulation, window: ServerWindow, first_ns: I64, ended_ns: I64
) -> tuple[float, float]:
    """Tokens of answers in the window, and the mean gap (seconds), as they are counted.

    Clients know when an answer began and ended: its tokens are spaced evenly.
    """
    gaps_s, weights = _token_gaps(rebuilt, done)
    n_tokens = float(weights.sum() + _is_within(rebuilt, first_ns).sum())
    if window.clients is not None:
        per_s = done.requests.output_tokens / (np.maximum(ended_ns - first_ns, 1) / NS_PER_S)
        n_tokens = float((_inside_s(rebuilt, first_ns, ended_ns) * per_s).sum())
    if _gap(window) == "tpot":
        return n_tokens, _mean(_tpots(rebuilt, done)[0])
    return n_tokens, float(gaps_s @ weights) / max(float(weights.sum()), 1.0)


def _slots_and_deferred(
    n_slots: int, at_ns: I64, came_ns: Sequence[I64], ended_ns: I64
) -> dict[str, tuple[float, float]]:
    """Mean numbers of requests with a slot and without, at these instants.

    A slot is taken as soon as one is free, though the prompt's turn is later. ``came_ns`` are the
    ends between which each request came by the server's gauge.
    """
    n_ended = np.searchsorted(np.sort(ended_ns), at_ns, side="right")
    inside = [np.searchsorted(np.sort(one), at_ns, side="right") - n_ended for one in came_ns]
    few, many = (float(np.minimum(one, n_slots).mean()) for one in inside)
    short, long = (float(np.maximum(one - n_slots, 0).mean()) for one in inside)
    return {"running": (few, many), "waiting": (short, long)}


def _heard_ns(done: Simulation) -> I64:
    """(N) When the step ended during which a request came; when it came, where there was none."""
    came, steps = done.requests.intended_send_ns, done.steps
    if steps is None or not len(steps.start_ns):
        return came
    step = np.maximum(np.searchsorted(steps.start_ns, came, side="right") - 1, 0)
    heard: I64 = np.maximum(came, steps.start_ns[step] + steps.duration_ns[step])
    return np.where(came < steps.start_ns[step], came, heard)


def _is_within(rebuilt: Rebuilt, instants_ns: I64) -> Bools:
    within: Bools = (instants_ns >= rebuilt.start_ns) & (instants_ns < rebuilt.until_ns)
    return within


def _inside_s(rebuilt: Rebuilt, start_ns: I64, end_ns: I64) -> F64:
    """(N) Seconds between the two within the window."""
    first, last = rebuilt.start_ns, rebuilt.until_ns
    seconds: F64 = (np.clip(end_ns, first, last) - np.clip(start_ns, first, last)) / NS_PER_S
    return seconds


def _mean(values: F64) -> float:
    return float(values.mean()) if values.size else 0.0


def _drawn(
    window: ServerWindow,
    known: Mapping[Limit, int],
    steps: StepTimeArrays,
    budget: int,
    rng: np.random.Generator,
) -> Rebuilt:
    plan, before_s = traffic.drawn_requests(window, rng)
    return Rebuilt(
        config=limit_draws.config_drawn(window, known, plan, budget, rng),
        steps=slowed(steps, math.exp(rng.normal(0.0, _pace_spread(window)))),
        plan=plan,
        start_ns=round(before_s * NS_PER_S),
        until_ns=round((before_s + window.duration_s) * NS_PER_S),
        is_cache_off=window.is_cache_off,
    )


def _around(
    window: ServerWindow, known: Mapping[Limit, int], fitted: Fitted, rng: np.random.Generator
) -> Rebuilt:
    """A neighbour: other requests of the same kind, pace and step budget a little off.

    Half of what its gaps between tokens are off by is taken from the pace, and what its prefills
    are off by from the time of a row, which is a part of theirs.
    """
    plan, before_s = traffic.drawn_requests(window, rng)
    near = fitted.rebuilt
    off_ratio = _gap_ratio(window, fitted)
    row_ratio = 1.0  # each step was recorded: a row's time is known
    if window.step_log is None:
        row_ratio = _prefill_ratio(window, fitted)
        row_ratio *= math.exp(rng.normal(0.0, _ROW_SPREAD))
    moved = replace(
        near,
        config=replace(
            near.config, **limit_draws.limits_around(near.config, window, known, rng)._asdict()
        ),
        steps=slowed(
            near.steps._replace(matmul_row_s=near.steps.matmul_row_s * row_ratio),
            math.sqrt(off_ratio) * math.exp(rng.normal(0.0, _pace_spread(window) / 2)),
        ),
    )
    return _under(moved, window, plan, before_s)


def under_fresh_requests(window: ServerWindow, draws: Sequence[Fitted]) -> tuple[Rebuilt, ...]:
    """The same servers with other requests of the same traffic, to predict a change.

    What a step would take with more rows than it had is drawn again, unless each step was recorded:
    most draws descend from a few, and would all say the same of it.
    """
    rng, hidden = (np.random.default_rng([_SEED, i]) for i in (1, 3))
    servers = [one.rebuilt for one in draws]
    if window.step_log is None:
        servers = [
            replace(one.rebuilt, steps=overlapped_anew(one.rebuilt.steps, _rows(one), hidden))
            for one in draws
        ]
    return tuple(_under(one, window, *traffic.fresh_requests(window, rng)) for one in servers)


def _rows(fitted: Fitted) -> F64:
    """Rows of each step of the window."""
    steps = fitted.simulation.steps
    if steps is None:
        return np.ones(1)
    rows: F64 = (steps.prefill_tokens + steps.n_decode_requests).astype(float)
    within = rows[_is_within(fitted.rebuilt, _step_ends_ns(fitted.simulation))]
    return within if within.size else np.ones(1)


def _under(rebuilt: Rebuilt, window: ServerWindow, plan: RequestPlan, before_s: float) -> Rebuilt:
    """The same server under other requests; it still holds the longest."""
    config, longest = rebuilt.config, limit_draws.longest_tokens(plan)
    blocks = max(config.num_blocks, -(-longest // config.block_size) + 2)
    return replace(
        rebuilt,
        config=replace(config, max_model_len=longest, num_blocks=blocks),
        plan=plan,
        start_ns=round(before_s * NS_PER_S),
        until_ns=round((before_s + window.duration_s) * NS_PER_S),
    )


def _gap_ratio(window: ServerWindow, fitted: Fitted) -> float:
    """Mean gap between tokens: measured by simulated."""
    measured = window.summary.time(_gap(window))
    simulated = fitted.means.get("gap_s", 0.0)
    if measured is None or measured.mean_s <= 0 or simulated <= 0:
        return 1.0
    return min(max(measured.mean_s / simulated, 1 / _MOST_OFF_RATIO), _MOST_OFF_RATIO)


def _prefill_ratio(window: ServerWindow, fitted: Fitted) -> float:
    """Prefill time: measured by simulated.

    1 where it has no histogram of them and requests wait for longer.
    """
    measured, simulated = measured_means(window), fitted.means
    if "prefill_s" in measured:
        took_s = [one["prefill_s"] for one in (measured, simulated)]
    elif {"ttft_s", "queue_s"} <= measured.keys():
        took_s = [one["ttft_s"] - one["queue_s"] for one in (measured, simulated)]
        if any(
            took < one["queue_s"] for took, one in zip(took_s, (measured, simulated), strict=True)
        ):
            return 1.0
    else:
        return 1.0
    ratio = (took_s[0] + _FLOORS["prefill_s"]) / (took_s[1] + _FLOORS["prefill_s"])
    return min(max(ratio, 1 / _MOST_OFF_RATIO), _MOST_OFF_RATIO)

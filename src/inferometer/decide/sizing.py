"""How many replicas of which kind meet an SLO under some traffic, and which are the cheapest?

Of each kind of replica a lone request is timed first: what it misses, no number of replicas meets.
Then comes the smallest number that meets the SLO when each gets an equal part of the traffic
(Poisson traffic that is dealt at random is Poisson traffic; other traffic is dealt by the router
already here). Kinds that cannot be cheaper than the cheapest of their device, even if every replica
were busy all the time, are not searched. The most promising of each parallelism and number format
come first, so that a time limit leaves out other knobs of these, and no parallelism. The best of
each device is then simulated with its router at length, at both ends of its step times, with one
replica less, and for its capacity.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from inferometer.decide.candidates import Candidate
from inferometer.decide.capacity import (
    CapacityQuestion,
    OutOfTimeError,
    Phases,
    Probe,
    Reading,
    TimeLeft,
    find_capacity,
)
from inferometer.decide.fewest import (
    COUNTED_FRACTION,
    MOST_RATIO,
    fewest_in_long_runs,
    fewest_in_short_runs,
)
from inferometer.decide.lone_request import fewest_devices, lone_request
from inferometer.decide.probing import EFFORT_RATIO, FleetProbe, probe_of, worst_reading
from inferometer.decide.sizing_types import (
    Bound,
    Done,
    Map,
    PacedAnswer,
    Searched,
    ServedBy,
    SizedKind,
    SizingQuestion,
    Task,
)
from inferometer.decide.traffic import AtWork, plan_at
from inferometer.inputs.types import EngineSpec
from inferometer.records import latencies, request_summaries
from inferometer.records.types import RequestTable, Run
from inferometer.simulate.deployment import PACES, Pace
from inferometer.stats.estimate import Verdict
from inferometer.units import NS_PER_S

_SATURATING_REQUESTS: Final = 600
_SATURATING_RATIO: Final = 1e3
"""Times the traffic: all requests wait at once."""
IDLE_FRACTION: Final = 0.02
"""Replicas that get this share of what they could do at most are idle: more of them answer no
faster."""
SURE_EFFORT: Final = 1
"""Effort of confirmed numbers, against 0 in the search."""
_SEARCH_FRACTION: Final = 0.45
"""Share of a device's time at which the search ends."""
OVERRUN_FRACTION: Final = 0.3
_LAST_FRACTION: Final = 1.3
"""A simulation that was begun within the time of a phase may take this share more; the last phase
ends at ``_LAST_FRACTION``."""
_FASTER: Final[tuple[tuple[Pace, Pace], ...]] = (("slow", "likely"), ("likely", "fast"))
"""Step times, and the next faster ones."""
FAR_RATIO: Final = 0.75
"""Of its limit, below which a latency in a long run leaves room for far fewer replicas. Short runs of
bursty traffic, each replica with its part, may find many times too many."""
_NEARLY_EQUAL: Final = 0.1
"""Margins of short runs that are this near are noise."""


def size_by_device(
    question: SizingQuestion, candidates: Sequence[Candidate], map_: Map = map
) -> tuple[Done, ...]:
    """The best replicas of each device, in the order of the devices."""
    devices = list(dict.fromkeys(candidate.offer.hardware.hardware_id for candidate in candidates))
    tasks = [
        Task(
            question,
            tuple(
                candidate
                for candidate in candidates
                if candidate.offer.hardware.hardware_id == device
            ),
        )
        for device in devices
    ]
    return tuple(map_(size_device, tasks))


def size_device(task: Task) -> Done:
    """The best replicas of one device: the cheapest.

    Of equals the fewest devices, then the fewest replicas, then those furthest from their limit.
    """
    question, searched, phases = task.question, list[Searched](), Phases(task.question.time_limit())
    fewest = math.inf
    for bound, candidate in most_promising_first(question, task.candidates):
        if bound > fewest:
            searched.append(
                Searched(
                    candidate, None, "cannot do with as few devices as the best of its kind", 0
                )
            )
        elif searched and phases.is_past(_SEARCH_FRACTION):
            searched.append(_unexamined(candidate, bound))
        else:
            last = 1.0 if math.isinf(fewest) else _SEARCH_FRACTION + OVERRUN_FRACTION
            try:
                with phases.until(last):
                    searched.append(_searched(question, candidate, fewest))
            except OutOfTimeError:
                searched.append(_unexamined(candidate, bound))
            fewest = min(fewest, searched[-1].n_devices)
    return Done(_proved(question, searched, phases), tuple(searched))


def most_promising_first(
    question: SizingQuestion, candidates: Sequence[Candidate]
) -> list[tuple[int, Candidate]]:
    """Candidates in the order of the search, each with the fewest devices that it could do with.

    The best of each layout comes first, then the second best of each. A layout with a low bound
    that needs far more devices for its latency thus takes no time from the others.
    """
    bounds = sorted(
        (fewest_devices(question, candidate), index) for index, candidate in enumerate(candidates)
    )
    n_before, turns = Counter[tuple[EngineSpec, str]](), list[tuple[int, int, int]]()
    for bound, index in bounds:
        deployment = candidates[index].deployment
        alike = deployment.engine, deployment.parallelism
        turns.append((n_before[alike], bound, index))
        n_before[alike] += 1
    return [(bound, candidates[index]) for _, bound, index in sorted(turns)]


def _unexamined(candidate: Candidate, least_devices: int) -> Searched:
    return Searched(
        candidate,
        None,
        "not examined within the time limit",
        0,
        is_examined=False,
        least_devices=least_devices,
    )


def _searched(question: SizingQuestion, candidate: Candidate, fewest: float) -> Searched:
    """The fewest replicas of one kind; none where a lone request misses or ``fewest`` is passed."""
    plan = plan_at(question.spec, question.offered_load, question.n_requests)
    alone = (
        None  # other replicas compute its prompt
        if question.fleets.n_prefill
        else lone_request(candidate.deployment.at(question.pace), plan, question.objective)
    )
    if alone is not None and alone.margin_ratio > 1:
        return Searched(
            candidate,
            None,
            f"not even idle replicas meet the SLO; {alone.why}",
            1,
            alone.margin_ratio,
        )
    bound = most_of(question, candidate)
    if bound.n_devices > fewest:
        return Searched(candidate, None, "cannot do with as few devices as the best of its kind", 0)
    return fewest_replicas(question, candidate, bound)


class _LongRuns:
    """Long simulations of a kind of replica at one pace, each number of replicas once."""

    def __init__(self, question: SizingQuestion, candidate: Candidate, phases: Phases) -> None:
        self._question, self._candidate, self._phases = question, candidate, phases
        self._served = dict[tuple[Pace, int], tuple[ServedBy, Probe]]()
        self._open = dict[tuple[Pace, int], tuple[ServedBy, Probe]]()
        """Undecided by a single run; longer ones may decide."""

    def served(self, pace: Pace, n_replicas: int) -> tuple[ServedBy, Probe]:
        """The run's summary, and the run as a probe of their capacity; a short run where time is over."""
        if not self._phases.is_past(_LAST_FRACTION) or (pace, n_replicas) in self._served:
            try:
                return self._run(pace, n_replicas, _LAST_FRACTION)
            except OutOfTimeError:
                pass
        probe = probe_of(self._question, self._candidate, pace, n_replicas)
        load = self._question.offered_load
        short = _as_long_run(probe, load, self._question.n_requests, effort=0)
        return _served(n_replicas, probe, short), short.known

    def verdict(self, n_replicas: int) -> Verdict:
        """Verdict of this number of replicas at the pace."""
        last = COUNTED_FRACTION + OVERRUN_FRACTION
        return self._run(self._question.pace, n_replicas, last)[0].verdict

    def verdict_at_once(self, n_replicas: int) -> Verdict:
        """Verdict of this number at the pace by a single long run, however open it is."""
        last = COUNTED_FRACTION + OVERRUN_FRACTION
        return self._run(self._question.pace, n_replicas, last, is_once=True)[0].verdict

    def is_far(self, n_replicas: int) -> bool:
        """Does this number, which was simulated, meet the SLO by so much that half may do?"""
        return self._served[self._question.pace, n_replicas][1].reading.margin_ratio < FAR_RATIO

    @property
    def of_most_replicas(self) -> Reading:
        """Result of the largest number of replicas at the pace."""
        keys = [key for key in self._served if key[0] == self._question.pace]
        return self._served[max(keys, key=lambda key: key[1])][1].reading

    def left_open(self) -> int | None:
        """The fewest that noise leaves open at the pace in question, beyond all that were shown to miss."""
        most_missed = max(self.with_verdict("missed"), default=0)
        return min((n for n in self.with_verdict("undecided") if n > most_missed), default=None)

    def with_verdict(self, verdict: Verdict) -> list[int]:
        """Numbers of replicas that were simulated at the pace in question with this verdict."""
        return sorted(
            n_replicas
            for (pace, n_replicas), (served, _) in self._served.items()
            if pace == self._question.pace and served.verdict == verdict
        )

    def _run(
        self, pace: Pace, n_replicas: int, last_fraction: float, *, is_once: bool = False
    ) -> tuple[ServedBy, Probe]:
        key = pace, n_replicas
        if key in self._served or (is_once and key in self._open):
            return self._served.get(key) or self._open[key]
        question, time_left_s = self._question, self._phases.time_left_s
        probe = probe_of(question, self._candidate, pace, n_replicas)
        with self._phases.until(last_fraction):
            found = _long_run(question, probe, time_left_s, is_once=is_once)
        result = _served(n_replicas, probe, found), found.known
        is_open = is_once and result[0].verdict == "undecided"
        (self._open if is_open else self._served)[key] = result
        return result


def _proved(question: SizingQuestion, searched: list[Searched], phases: Phases) -> SizedKind | None:
    """The best that is still the best after long runs, which may show that it needs more replicas.

    Where none is shown to meet the SLO, the best of those that noise leaves open.
    """
    runs, left_open = dict[int, _LongRuns](), dict[int, int]()
    while (best := min(range(len(searched)), key=lambda i: _rank(searched[i]))) not in runs:
        found = searched[best]
        if found.n_replicas is None:
            break
        runs[best] = _LongRuns(question, found.candidate, phases)
        try:
            n_replicas = _replicas_that_last(question, found.n_replicas, runs[best], phases)
        except OutOfTimeError:
            searched[best] = found._replace(
                n_replicas=None,
                why="no number of replicas was shown to meet the SLO within the time limit",
                is_examined=False,
                least_devices=found.candidate.devices_of(found.n_replicas),
            )
            continue
        n_open = runs[best].left_open() if n_replicas is None else None
        if n_open is not None:
            left_open[best] = n_open
        elif n_replicas is None:
            times = "" if question.fleets.n_replicas else f"{MOST_RATIO} times "
            longest = runs[best].of_most_replicas
            why = (
                f"{times}the {found.n_replicas} replicas that meet the SLO in a short simulation"
                f" ({found.why}) miss it in a long one: {longest.why}"
            )
            is_finite = math.isfinite(longest.margin_ratio)
            margin_ratio = longest.margin_ratio if is_finite else None
            found = found._replace(why=why, margin_ratio=margin_ratio)
        searched[best] = found._replace(n_replicas=n_replicas, is_decided=n_open is None)
    if searched[best].n_replicas is None and left_open:
        best = next(iter(left_open))
        searched[best] = searched[best]._replace(n_replicas=left_open[best])
    return (
        None
        if searched[best].n_replicas is None
        else sized(question, searched[best], runs[best], phases)
    )


def _replicas_that_last(
    question: SizingQuestion, first: int, runs: _LongRuns, phases: Phases
) -> int | None:
    """The fewest that meet the SLO together in a long run.

    A good router needs fewer than chance, a slow queue more than short runs show.
    """
    if question.fleets.n_replicas is None:
        at_once = runs.verdict_at_once if question.are_users_in_step else None
        return fewest_in_long_runs(first, runs.verdict, phases, at_once, runs.is_far)
    try:  # undecided is an answer: no other number is
        return None if runs.verdict(first) == "missed" else first
    except OutOfTimeError:
        return first


def fewest_replicas(question: SizingQuestion, candidate: Candidate, bound: Bound) -> Searched:
    """The smallest number of replicas that meets the SLO in short runs, by its weakest latency.

    A part of traffic that comes in bursts has smaller bursts: there replicas are simulated
    together.
    """
    if question.fleets.n_replicas is not None:
        return _fixed(question, candidate, question.fleets.n_replicas)
    readings = dict[int, Reading]()

    def is_enough(n_replicas: int) -> bool:
        if n_replicas not in readings:
            n_asked = 1 if question.is_dealt_alike else n_replicas
            probe = probe_of(question, candidate, question.pace, n_asked)
            readings[n_replicas] = probe(question.offered_load * n_asked / n_replicas, 0)
        return readings[n_replicas].margin_ratio <= 1

    start = math.ceil(question.offered_load / (0.8 * bound.most_load))
    enough = fewest_in_short_runs(
        bound.n_replicas,
        start,
        is_enough,
        lambda n: question.offered_load / n < IDLE_FRACTION * bound.most_load,
    )
    if enough is None:
        last = readings[max(readings)]
        is_missed = last.verdict == "missed"
        return Searched(
            candidate,
            None,
            f"{_nobody(question)} {'' if is_missed else 'were shown to '}meet the SLO; {last.why}",
            len(readings),
            last.margin_ratio,
            is_decided=is_missed,
        )
    return Searched(
        candidate, enough, readings[enough].why, len(readings), readings[enough].margin_ratio
    )


def _nobody(question: SizingQuestion) -> str:
    """Subject of the sentence that more replicas do not help."""
    if question.fleets.is_plain:
        return "not even idle replicas"
    return "behind this gate, or these prefill replicas, not even idle replicas"


def _fixed(question: SizingQuestion, candidate: Candidate, n_replicas: int) -> Searched:
    """Result for a fixed number of replicas."""
    probe = probe_of(question, candidate, question.pace, n_replicas)
    reading = probe(question.offered_load, 0)
    is_enough = reading.margin_ratio <= 1
    why = reading.why if is_enough else f"{n_replicas} are too few; {reading.why}"
    return Searched(
        candidate,
        n_replicas if is_enough else None,
        why,
        1,
        reading.margin_ratio,
        is_decided=is_enough or reading.verdict != "undecided",
    )


def sized(question: SizingQuestion, found: Searched, runs: _LongRuns, phases: Phases) -> SizedKind:
    """The best replicas of a device under the whole traffic."""
    candidate, n_replicas = found.candidate, found.n_replicas or 1
    hardware = candidate.offer.hardware
    without_one = (
        runs.served(question.pace, n_replicas - 1)[0]
        if n_replicas > 1 and question.fleets.can_lose_one
        else None
    )
    return SizedKind(
        hardware_id=hardware.hardware_id,
        hardware=hardware.name,
        layout=candidate.layout,
        candidate=candidate,
        n_replicas=n_replicas,
        n_devices=candidate.devices_of(n_replicas),
        usd_per_hour=candidate.usd_per_hour_of(n_replicas),
        paces=_decided(
            {
                pace: _paced(question, candidate, pace, runs.served(pace, n_replicas), phases)
                for pace in PACES
            }
        ),
        asked_pace=question.pace,
        offered_load=question.offered_load,
        without_one=without_one,
        met_counts=tuple(runs.with_verdict("met")),
        missed_counts=tuple(runs.with_verdict("missed")),
    )


def _decided(paces: dict[Pace, PacedAnswer]) -> dict[Pace, PacedAnswer]:
    """Settle undecided verdicts: what is met at slow step times is met at likely and fast ones.

    What noise leaves open at the faster of two is met where the slower meets the SLO.
    """
    for slower, faster in _FASTER:
        answer = paces[faster]
        if answer.served.verdict == "undecided" and paces[slower].served.verdict == "met":
            paces[faster] = replace(answer, served=replace(answer.served, verdict="met"))
    return paces


def _rank(found: Searched) -> tuple[float, float, float, float]:
    """Sort key: cost, then distance from the limits."""
    margin_ratio = math.inf if found.margin_ratio is None else found.margin_ratio
    return (
        found.usd_per_hour,
        found.n_devices,
        math.inf if found.n_replicas is None else found.n_replicas,
        math.ceil(margin_ratio / _NEARLY_EQUAL) if math.isfinite(margin_ratio) else math.inf,
    )


def most_of(question: SizingQuestion, candidate: Candidate) -> Bound:
    """Upper bound on the load of a replica.

    Requests that all come at once are served no slower than any that come in time. Users wait:
    there as many are served at once as the engine computes.
    """
    if question.is_of_users:
        most = float(candidate.deployment.config.max_num_active)
        n_replicas = question.fleets.n_replicas or 1
        return Bound(most, n_replicas, candidate.devices_of(n_replicas))
    probe = probe_of(question, candidate, question.pace, question.fleets.n_replicas or 1)
    rate = saturated_per_s(probe, question.offered_load)
    n_replicas = question.fleets.n_replicas or max(
        1, math.ceil(question.offered_load / rate * (1 - 1e-9))
    )
    return Bound(rate, n_replicas, candidate.devices_of(n_replicas))


def saturated_per_s(probe: FleetProbe, load: float) -> float:
    """Rate of the fastest half of a run in which nearly all requests of this load wait at once.

    Its filling and its draining are left out, so that this is no less than any steady rate.
    """
    return max(_served_per_s(probe.run_of(load * _SATURATING_RATIO, _SATURATING_REQUESTS)), 1e-9)


def _served_per_s(run: Run) -> float:
    requests = run.requests
    if requests is None:
        return 0.0
    ended_ns = requests.finished_ns[latencies.is_one_of(requests, latencies.COMPLETED)]
    ended_ns.sort()
    half = len(ended_ns) // 2
    if half < 1:
        return 0.0
    spans_ns = ended_ns[half:] - ended_ns[: len(ended_ns) - half]
    return half / max(int(spans_ns.min()), 1) * NS_PER_S


def _paced(
    question: SizingQuestion,
    candidate: Candidate,
    pace: Pace,
    long_run: tuple[ServedBy, Probe],
    phases: Phases,
) -> PacedAnswer:
    """The replicas under the traffic, simulated long.

    Their capacity is located closely at the pace in question, else roughly.
    """
    served, known = long_run
    n_replicas, load = served.n_replicas, question.offered_load
    wanted = CapacityQuestion(
        kind=question.traffic.kind,
        start_load=load,
        lowest_load=max(load / 64, 1.0 if question.is_of_users else 0.0),
        highest_load=load * 64,
        resolution_ratio=question.resolution_ratio,
        proof_effort=SURE_EFFORT if pace == question.pace else None,
        time_left_s=phases.time_left_s,
    )
    if question.are_users_in_step:  # short runs, and fewer users, may have another verdict
        wanted = replace(
            wanted,
            first_effort=SURE_EFFORT,
            lowest_load=load if served.verdict == "met" else wanted.lowest_load,
            highest_load=load if served.verdict == "missed" else wanted.highest_load,
        )
    with phases.until(_LAST_FRACTION):
        capacity = find_capacity(probe_of(question, candidate, pace, n_replicas), wanted, (known,))
    carried = capacity.met_load or capacity.located_load
    each = None if carried is None else carried / n_replicas
    return PacedAnswer(
        step_times=pace, served=served, capacity=capacity, n_replicas=_replicas_at(question, each)
    )


class _LongRun(NamedTuple):
    run: Run
    known: Probe
    """The same as a probe of the capacity."""
    users: AtWork | None
    """Results of a closed loop while all users are active; None in an open loop."""


def _served(n_replicas: int, probe: FleetProbe, long_run: _LongRun) -> ServedBy:
    run, known, users = long_run
    n_simulated = probe.fleet.replicas.n_replicas
    return ServedBy(
        n_replicas=n_replicas,
        verdict=known.reading.verdict,
        summary=request_summaries.summarise_requests(run),
        judgement=request_summaries.judge_objective(run, probe.objective),
        in_flight_load=(
            mean_in_flight(run.requests) / n_simulated
            if users is None
            else users.in_flight_load / n_replicas
        ),
        users_requests_per_s=None if users is None else users.requests_per_s,
        nearest=known.reading if probe.class_objectives else None,
    )


def mean_in_flight(requests: RequestTable | None) -> float:
    """Mean number of requests in flight, from the first arrival to the last end."""
    if requests is None:
        return 0.0
    is_done = latencies.is_one_of(requests, latencies.COMPLETED)
    came_ns, ended_ns = requests.intended_send_ns[is_done], requests.finished_ns[is_done]
    return float((ended_ns - came_ns).sum()) / max(
        int(ended_ns.max(initial=0)) - int(came_ns.min(initial=0)), 1
    )


def _long_run(
    question: SizingQuestion, probe: FleetProbe, time_left_s: TimeLeft, *, is_once: bool = False
) -> _LongRun:
    """A long run under the traffic, and longer ones while noise leaves it undecided and there is time."""
    load, effort = question.offered_load, SURE_EFFORT if time_left_s() > 0 else 0
    found: _LongRun | None = None
    while True:
        before_s = time_left_s()
        try:
            longer = _as_long_run(probe, load, probe.n_requests(effort), effort)
        except OutOfTimeError:
            if found is None:
                raise
            return found
        left_s, n_requests = time_left_s(), longer.known.reading.n_requests
        n_before = 0 if found is None else found.known.reading.n_requests
        is_longest = n_requests <= n_before or (
            left_s < math.inf and left_s < EFFORT_RATIO * (before_s - left_s)
        )
        if longer.known.reading.verdict != "undecided" or is_longest or is_once:
            return longer
        found, effort = longer, effort + 1


def _as_long_run(probe: FleetProbe, load: float, n_requests: int, effort: int) -> _LongRun:
    run = probe.run_of(load, n_requests)
    reading = worst_reading(run, probe.objective, probe.class_objectives)
    known = Probe(offered_load=load, effort=effort, reading=reading)
    return _LongRun(run, known, probe.users_at_work(run, load, n_requests))


def _replicas_at(question: SizingQuestion, load: float | None) -> int | None:
    return None if load is None else max(1, math.ceil(question.offered_load / load * (1 - 1e-9)))

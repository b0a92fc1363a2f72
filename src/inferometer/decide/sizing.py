"""How many replicas of which kind keep a promise under some traffic, and which are the cheapest?

Of each kind of replica the smallest number is looked for that keeps the promise when each gets an equal part of the traffic (Poisson
traffic that is dealt at random is Poisson traffic; other traffic is dealt by the router already here). Kinds that cannot be cheaper than
the cheapest of their device, even if every replica were busy all the time, are not searched. The best of each device is then simulated
whole: all its replicas behind their router under all the traffic, at length, at both ends of what is known of its step times, with one
replica less, and for its capacity.
"""

import math
from collections.abc import Sequence
from typing import Final

from inferometer.decide.candidate_probes import probe_of
from inferometer.decide.candidates import Candidate
from inferometer.decide.capacity import CapacityQuestion, Probe, Reading, find_capacity
from inferometer.decide.probing import ReplicaProbe, reading_of
from inferometer.decide.sizing_types import Bound, Done, Map, PacedAnswer, Searched, ServedBy, SizedKind, SizingQuestion, Task
from inferometer.records import latencies, promises, request_summaries
from inferometer.records.types import Run
from inferometer.simulate.deployment import PACES, Pace
from inferometer.units import NS_PER_S

_SATURATING_REQUESTS: Final = 600
_SATURATING_RATIO: Final = 1e3
"""Times the traffic: all requests wait at once."""
_IDLE_FRACTION: Final = 0.02
"""Replicas that get this share of what they could do at most are idle: more of them answer no faster."""
_SURE_EFFORT: Final = 1
"""Of what is shown, against 0 of what is searched."""


def size_by_device(question: SizingQuestion, candidates: Sequence[Candidate], map_: Map = map) -> tuple[Done, ...]:
    """The best replicas of each device, in the order of the devices."""
    devices = list(dict.fromkeys(candidate.offer.hardware.hardware_id for candidate in candidates))
    tasks = [
        Task(question, tuple(candidate for candidate in candidates if candidate.offer.hardware.hardware_id == device)) for device in devices
    ]
    return tuple(map_(size_device, tasks))


def size_device(task: Task) -> Done:
    """The best replicas of one device: the cheapest, of equals the fewest devices, of equals the fewest replicas."""
    question, searched = task.question, list[Searched]()
    bounds = [(most_of(question, candidate), candidate) for candidate in task.candidates]
    fewest = math.inf
    for bound, candidate in sorted(bounds, key=lambda one: one[0].n_devices):
        if bound.n_devices > fewest:
            searched.append(Searched(candidate, None, "cannot do with as few devices as the best of its kind", 0))
            continue
        searched.append(fewest_replicas(question, candidate, bound))
        fewest = min(fewest, searched[-1].n_devices)
    return Done(_proved(question, searched), tuple(searched))


def _proved(question: SizingQuestion, searched: list[Searched]) -> SizedKind | None:
    """The best that is still the best after it was asked long, which may show that it needs more replicas."""
    asked = set[int]()
    while (best := min(range(len(searched)), key=lambda i: _rank(searched[i]))) not in asked:
        asked.add(best)
        if searched[best].n_replicas is None:
            return None
        searched[best] = searched[best]._replace(n_replicas=_replicas_that_last(question, searched[best]))
    return None if searched[best].n_replicas is None else sized(question, searched[best])


def _replicas_that_last(question: SizingQuestion, found: Searched) -> int | None:
    """As many as keep the promise together in a long run: a good router needs fewer than chance, a slow queue more than short runs show.

    None where half as many more do not.
    """
    first = found.n_replicas or 1

    def is_enough(n_replicas: int) -> bool:
        probe = probe_of(question, found.candidate, question.pace, n_replicas)
        return _asked_long(question, probe)[1].reading.verdict == "met"

    enough = next((n for n in range(first, first + max(2, first // 2) + 1) if is_enough(n)), None)
    while enough is not None and 1 < enough <= first and is_enough(enough - 1):
        enough -= 1
    return enough


def fewest_replicas(question: SizingQuestion, candidate: Candidate, bound: Bound) -> Searched:
    """The smallest number of these replicas, each with its part of the traffic, whose weakest link is within its limit in short runs.

    A part of traffic that comes in bursts has smaller bursts: there all replicas are asked together.
    """
    readings = dict[int, Reading]()

    def is_enough(n_replicas: int) -> bool:
        if n_replicas not in readings:
            n_asked = 1 if question.is_dealt_alike else n_replicas
            probe = probe_of(question, candidate, question.pace, n_asked)
            readings[n_replicas] = probe(question.rate_per_s * n_asked / n_replicas, 0)
        return readings[n_replicas].margin_ratio <= 1

    too_few, enough = bound.n_replicas - 1, max(bound.n_replicas, math.ceil(question.rate_per_s / (0.8 * bound.requests_per_s)))
    while not is_enough(enough):
        too_few, enough = enough, max(enough + 1, math.ceil(enough * 1.5))
        if question.rate_per_s / too_few < _IDLE_FRACTION * bound.requests_per_s:
            last = readings[too_few]
            return Searched(candidate, None, f"not even idle replicas keep the promise; {last.why}", len(readings), last.margin_ratio)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return Searched(candidate, enough, readings[enough].why, len(readings), readings[enough].margin_ratio)


def sized(question: SizingQuestion, found: Searched) -> SizedKind:
    """All that is to be said of the best replicas of a device."""
    candidate, n_replicas = found.candidate, found.n_replicas or 1
    hardware = candidate.offer.hardware
    return SizedKind(
        hardware_id=hardware.hardware_id,
        hardware=hardware.name,
        layout=candidate.layout,
        candidate=candidate,
        n_replicas=n_replicas,
        n_devices=n_replicas * candidate.n_devices,
        usd_per_hour=None if candidate.usd_per_hour is None else candidate.usd_per_hour * n_replicas,
        paces={pace: _paced(question, candidate, pace, n_replicas) for pace in PACES},
        asked_pace=question.pace,
        rate_per_s=question.rate_per_s,
        without_one=None if n_replicas == 1 else _served(question, probe_of(question, candidate, question.pace, n_replicas - 1))[0],
    )


def _rank(found: Searched) -> tuple[float, float, float]:
    return found.usd_per_hour, found.n_devices, math.inf if found.n_replicas is None else found.n_replicas


def most_of(question: SizingQuestion, candidate: Candidate) -> Bound:
    """What this kind of replica can do at most: requests that all come at once are served no slower than any that come in time."""
    run = probe_of(question, candidate, question.pace).run_of(question.rate_per_s * _SATURATING_RATIO, _SATURATING_REQUESTS)
    rate = max(_served_per_s(run), 1e-9)
    n_replicas = max(1, math.ceil(question.rate_per_s / rate * (1 - 1e-9)))
    return Bound(rate, n_replicas, n_replicas * candidate.n_devices)


def _served_per_s(run: Run) -> float:
    """The fastest half of a saturated run: its filling and its draining are left out, so that this is no less than any steady rate."""
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


def _paced(question: SizingQuestion, candidate: Candidate, pace: Pace, n_replicas: int) -> PacedAnswer:
    """All replicas under all the traffic, asked long; how much more they carry is asked closely at the pace in question, else roughly."""
    probe = probe_of(question, candidate, pace, n_replicas)
    served, known = _served(question, probe)
    capacity = find_capacity(
        probe,
        CapacityQuestion(
            kind="requests_per_s",
            start_load=question.rate_per_s,
            lowest_load=question.rate_per_s / 64,
            highest_load=question.rate_per_s * 64,
            resolution_ratio=question.resolution_ratio,
            proof_effort=_SURE_EFFORT if pace == question.pace else None,
        ),
        (known,),
    )
    load = capacity.kept_load or capacity.located_load
    each = None if load is None else load / n_replicas
    return PacedAnswer(step_times=pace, served=served, capacity=capacity, n_replicas=_replicas_at(question, each))


def _served(question: SizingQuestion, probe: ReplicaProbe) -> tuple[ServedBy, Probe]:
    run, known = _asked_long(question, probe)
    served = ServedBy(
        n_replicas=probe.n_replicas,
        verdict=known.reading.verdict,
        summary=request_summaries.summarise_requests(run),
        judgement=promises.judge_objective(run, question.objective),
        in_flight_load=_in_flight(run) / probe.n_replicas,
    )
    return served, known


def _in_flight(run: Run) -> float:
    """How many requests are there on average, from the first arrival to the last end?"""
    requests = run.requests
    if requests is None:
        return 0.0
    is_done = latencies.is_one_of(requests, latencies.COMPLETED)
    came_ns, ended_ns = requests.intended_send_ns[is_done], requests.finished_ns[is_done]
    return float((ended_ns - came_ns).sum()) / max(int(ended_ns.max(initial=0)) - int(came_ns.min(initial=0)), 1)


def _asked_long(question: SizingQuestion, probe: ReplicaProbe) -> tuple[Run, Probe]:
    """A long run under the traffic, and a longer one where that is undecided."""
    load = question.rate_per_s
    for effort in (_SURE_EFFORT, _SURE_EFFORT + 1):
        run = probe.run(load, effort)
        known = Probe(offered_load=load, effort=effort, reading=reading_of(run, promises.judge_objective(run, question.objective)))
        if known.reading.verdict != "undecided":
            break
    return run, known


def _replicas_at(question: SizingQuestion, load: float | None) -> int | None:
    return None if load is None else max(1, math.ceil(question.rate_per_s / load * (1 - 1e-9)))


__all__ = ["fewest_replicas", "most_of", "size_by_device", "size_device", "sized"]

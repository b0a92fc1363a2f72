"""Arrival times of requests.

One mechanism for every open process: gaps of mean 1 are drawn, and their running sum is the
integral of the rate. Another rate stretches the same pattern; a ramp, bursts or a day's profile
distort it.

Each part of a workload (gaps, classes, prompt lengths, ...) has its own stream of random numbers:
draws of one part do not affect another, and the first n numbers of a stream are the same for any
number of draws. Only raw 64-bit words of Philox are used, whose values numpy guarantees.
"""

import hashlib
import heapq
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.errors import SpecError
from inferometer.inputs.workload.distributions import (
    Floats,
    exp,
    log,
    normal_quantile,
    sampled,
    seconds_to_ns,
)
from inferometer.inputs.workload.plan import I32, I64, NONE, first_of_each
from inferometer.inputs.workload.types import (
    Arrivals,
    AtOnce,
    Bursts,
    ClosedArrivals,
    OpenArrivals,
    Points,
    Profile,
    Ramp,
    TraceArrivals,
)
from inferometer.units import MOST_S, NS_PER_S

_FRACTION_BITS: Final = 52
"""One fewer than a double has: the middle of the last cell must not round to 1."""
_MAX_S: Final = MOST_S
_SHORTEST_PIECE_S: Final = 1e-9
"""Shortest piece of a rate's profile: the clock's resolution."""
DEFAULT_ARRIVALS: Final = OpenArrivals()


def uniforms(seed: int, name: str, n_numbers: int) -> NDArray[np.float64]:
    """The first numbers of the stream of this name, uniform in the open interval (0, 1).

    Example
    -------
    >>> bool((uniforms(0, "prompt", 5)[:3] == uniforms(0, "prompt", 3)).all())
    True
    """
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4")
    philox = np.random.Philox(np.random.SeedSequence(seed, spawn_key=tuple(words.tolist())))
    raw = np.asarray(philox.random_raw(n_numbers), dtype=np.uint64)
    cells = (raw >> np.uint64(64 - _FRACTION_BITS)).astype(np.float64)
    return cells * 2.0**-_FRACTION_BITS + 2.0 ** -(_FRACTION_BITS + 1)


class RateProfile(NamedTuple):
    """Straight pieces.

    Piece k begins at ``at_s[k]`` with the ratio ``first[k]`` and ends at ``last[k]``; the last one
    lasts forever.

    With ``repeat_s`` the last piece ends there, and all begins again.
    """

    at_s: Floats
    first_ratio: Floats
    last_ratio: Floats
    repeat_s: float | None


def session_arrivals(arrivals: Arrivals, seed: int, n_sessions: int, *, turns_ratio: float) -> I64:
    """Arrival times (ns) of sessions' first requests, sorted except for closed-loop users.

    Raises
    ------
    SpecError
        The arrivals refer to a trace that has not been read, or have an invalid profile.
    """
    match arrivals:
        case OpenArrivals():
            return open_arrivals(
                arrivals, seed, n_sessions, rate_per_s=arrivals.rate_per_s / turns_ratio
            )
        case ClosedArrivals(concurrency=concurrency, start_over_s=start_over_s):
            user = np.minimum(np.arange(n_sessions), concurrency - 1)
            return np.asarray(
                np.rint(user * (start_over_s * NS_PER_S / concurrency)), dtype=np.int64
            )
        case AtOnce():
            return np.zeros(n_sessions, np.int64)
        case TraceArrivals():
            raise SpecError(
                "the arrivals point to a trace that has not been read",
                where="the workload",
                try_="draw_workload",
            )


class Lengths(NamedTuple):
    """Tokens of each request."""

    prompt: I32 | I64
    output: I32 | I64


class Rows(NamedTuple):
    """Positions of the requests of S sessions."""

    firsts: I64
    """(S) The row of each session's first request."""
    lasts: I64
    class_index: I32 | I64
    """(S) Class of each session."""


def close_loop(
    arrivals: ClosedArrivals,
    seed: int,
    rows: Rows,
    class_users: tuple[int | None, ...],
    tokens: Lengths,
    *,
    follows: I64,
    think_ns: I64,
) -> None:
    """Start each user's next session at the end of the last one.

    Writes into ``follows`` and ``think_ns`` at ``rows.firsts``.

    The next session (of the class, where classes have their own ``class_users``) goes to the user
    who is likely to finish first, as a load test's users take sessions from one queue. With equal
    numbers of sessions per user, one user with long sessions would run alone at the end.
    """
    n_sessions = len(rows.firsts)
    pauses = np.zeros(n_sessions, np.int64)
    if arrivals.think_s is not None:
        pauses = seconds_to_ns(
            sampled(arrivals.think_s), uniforms(seed, "think between sessions", n_sessions)
        )
    likely_s, pauses_s = _likely_s(rows, tokens, follows, think_ns), pauses / NS_PER_S
    before = np.full(n_sessions, NONE)
    shares = users_of_classes(arrivals.concurrency, class_users)
    if not shares:
        before = _before(likely_s, pauses_s, arrivals.concurrency)
    for index, n_users in enumerate(shares):
        own = np.flatnonzero(rows.class_index == index)
        mine = _before(likely_s[own], pauses_s[own], n_users)
        before[own] = np.where(mine == NONE, NONE, own[mine])
    later = before >= 0
    follows[rows.firsts[later]] = rows.lasts[before[later]]
    think_ns[rows.firsts[later]] = pauses[later]


_TOKEN_S: Final = 0.02
_PROMPT_TOKEN_S: Final = 0.0002
"""Likely times of a token. Only their ratios, to each other and to pauses, matter."""


def _likely_s(rows: Rows, tokens: Lengths, follows: I64, think_ns: I64) -> Floats:
    """(S) Likely duration of each session, with its pauses."""
    request_s = _TOKEN_S * tokens.output + _PROMPT_TOKEN_S * tokens.prompt
    request_s = request_s + np.where(follows == NONE, 0, think_ns) / NS_PER_S
    return np.bincount(first_of_each(follows), weights=request_s)[rows.firsts].astype(np.float64)


def _before(likely_s: Floats, pauses_s: Floats, n_users: int) -> I64:
    """(S) Previous session of the user that is free first; NONE for first ones.

    Each session except a user's first begins after a pause.
    """
    before = np.full(len(likely_s), NONE, np.int64)
    users = [(took_s, number) for number, took_s in enumerate(likely_s[:n_users].tolist())]
    heapq.heapify(users)
    after_pause_s = (likely_s + pauses_s)[n_users:].tolist()
    for number, took_s in enumerate(after_pause_s, start=n_users):
        done_s, before[number] = users[0]
        heapq.heapreplace(users, (done_s + took_s, number))
    return before


def users_of_classes(n_users: int, class_users: tuple[int | None, ...]) -> list[int]:
    """All users divided over classes in these proportions; empty where no class has its own.

    By largest remainders, with at least one user for each class.

    Example
    -------
    >>> users_of_classes(64, (48, 16)), users_of_classes(10, (2, 1)), users_of_classes(8, (None,))
    ([48, 16], [7, 3], [])
    """
    if None in class_users:
        return []
    wanted = np.array(class_users, np.float64)
    exact = n_users * wanted / wanted.sum()
    users = np.maximum(np.floor(exact + 1e-9), 1)
    n_left = n_users - int(users.sum())
    order = np.argsort(-(exact - users), kind="stable")
    users[order[: max(n_left, 0)]] += 1
    while users.sum() > max(n_users, len(users)):  # if small classes were rounded up to one user
        users[np.argmax(users - exact + (users > 1) * len(users))] -= 1
    return [int(one) for one in users]


def open_arrivals(arrivals: OpenArrivals, seed: int, n_arrivals: int, *, rate_per_s: float) -> I64:
    """The instants (ns) of the first arrivals; fewer where the profile ends at a rate of 0.

    Raises
    ------
    SpecError
        The profile is impossible.
    """
    reached = np.cumsum(unit_gaps(arrivals, seed, n_arrivals)) / rate_per_s
    if arrivals.profile is not None:
        reached = _instants(rate_profile(arrivals.profile), reached)
    return np.rint(reached[reached < _MAX_S] * NS_PER_S).astype(np.int64)


def unit_gaps(arrivals: OpenArrivals, seed: int, n_gaps: int) -> Floats:
    """Gaps of mean 1 between arrivals."""
    if arrivals.process == "constant":
        return np.ones(n_gaps)
    if arrivals.process == "poisson":
        return -log(uniforms(seed, "gaps", n_gaps))
    return gamma_draws(arrivals.burstiness_ratio, seed, "gaps", n_gaps) / arrivals.burstiness_ratio


def gamma_draws(shape: float, seed: int, name: str, n_draws: int) -> Floats:
    """Draws of the gamma distribution of this shape and scale 1, the i-th the same however many are drawn.

    Source
    ------
    Marsaglia and Tsang 2000, "A simple method for generating gamma variables", with their
    power of a uniform number for shapes below 1. Each attempt has a stream of its own; a draw is
    its first accepted attempt.
    """
    d = (shape if shape >= 1 else shape + 1) - 1 / 3
    c = 1 / np.sqrt(9 * d)
    draws = np.zeros(n_draws)
    waiting = np.arange(n_draws)
    attempt = 0
    while waiting.size:
        n_needed = int(waiting[-1]) + 1
        x = normal_quantile(uniforms(seed, f"{name}/normal/{attempt}", n_needed)[waiting])
        v = (1 + c * x) * (1 + c * x) * (1 + c * x)
        positive = np.maximum(v, 1e-300)
        bound = x * x / 2 + d - d * v + d * log(positive)
        is_accepted = (v > 0) & (
            log(uniforms(seed, f"{name}/accept/{attempt}", n_needed)[waiting]) < bound
        )
        draws[waiting[is_accepted]] = d * v[is_accepted]
        waiting = waiting[~is_accepted]
        attempt += 1
    return (
        draws if shape >= 1 else draws * exp(log(uniforms(seed, f"{name}/power", n_draws)) / shape)
    )


def rate_profile(profile: Profile) -> RateProfile:
    """The pieces of a profile.

    Raises
    ------
    SpecError
        Instants that do not begin at 0 or do not grow, or a rate that is always 0.
    """
    match profile:
        case Ramp(from_ratio=low, to_ratio=high, over_s=over_s):
            pieces = RateProfile(
                np.array([0.0, over_s]), np.array([low, high]), np.array([high, high]), None
            )
        case Bursts(on_s=on_s, off_s=off_s, on_ratio=on, off_ratio=off):
            pieces = RateProfile(
                np.array([0.0, on_s]), np.array([on, off]), np.array([on, off]), on_s + off_s
            )
        case Points():
            pieces = _points(profile)
    lengths_s = np.diff(np.append(pieces.at_s, pieces.repeat_s or np.inf))
    if lengths_s.min() < _SHORTEST_PIECE_S:
        raise SpecError(
            f"a piece of the rate's profile lasts {lengths_s.min():g} s",
            where="arrivals.profile",
            allowed=f"{_SHORTEST_PIECE_S:g} s or more",
        )
    if not np.any(pieces.first_ratio + pieces.last_ratio > 0):
        raise SpecError(
            "the rate is 0 throughout", where="arrivals.profile", allowed="a ratio above 0"
        )
    return pieces


def profile_integral_s(profile: Profile, until_s: float) -> float:
    """The integral of the profile's ratio from 0 to ``until_s``: times the rate, the expected arrivals.

    Raises
    ------
    SpecError
        The profile is impossible.
    """
    pieces = rate_profile(profile)
    ends_s = np.append(pieces.at_s[1:], pieces.repeat_s or np.inf)

    def integral_s(to_s: float) -> float:
        lengths_s = ends_s - pieces.at_s
        spent_s = np.clip(to_s - pieces.at_s, 0.0, lengths_s)
        grown_ratio = (pieces.last_ratio - pieces.first_ratio) * (spent_s / lengths_s)
        return float(((pieces.first_ratio + grown_ratio / 2) * spent_s).sum())

    if pieces.repeat_s is None:
        return integral_s(until_s)
    n_rounds, rest_s = divmod(until_s, pieces.repeat_s)
    return n_rounds * integral_s(pieces.repeat_s) + integral_s(rest_s)


def _points(profile: Points) -> RateProfile:
    at_s = np.array(profile.at_s, dtype=np.float64)
    ratios = np.array(profile.ratios, dtype=np.float64)
    where = "arrivals.profile"
    if len(at_s) == 0 or len(at_s) != len(ratios):
        raise SpecError(
            f"{len(at_s)} instants and {len(ratios)} ratios",
            where=where,
            allowed="one ratio for each instant, at least one",
        )
    if at_s[0] != 0 or bool(np.any(np.diff(at_s) <= 0)):
        raise SpecError(
            f"at_s = {list(profile.at_s)}", where=where, allowed="instants that begin at 0 and grow"
        )
    if profile.repeat_s is not None and profile.repeat_s <= at_s[-1]:
        raise SpecError(
            f"repeat_s = {profile.repeat_s:g}",
            where=where,
            allowed=f"more than the last instant, {at_s[-1]:g}",
        )
    ends = ratios
    if profile.interpolation == "lines":
        ends = np.concatenate(
            [ratios[1:], ratios[:1] if profile.repeat_s is not None else ratios[-1:]]
        )
    return RateProfile(at_s, ratios, ends, profile.repeat_s)


def _instants(pieces: RateProfile, reached: Floats) -> Floats:
    """Times at which the integral of the ratios reaches these values.

    Beyond ``_MAX_S`` where it never does.
    """
    ends_s = np.concatenate([pieces.at_s[1:], [pieces.repeat_s or pieces.at_s[-1] + _MAX_S]])
    length_s = ends_s - pieces.at_s
    area_s = np.concatenate(
        [[0.0], np.cumsum((pieces.first_ratio + pieces.last_ratio) / 2 * length_s)]
    )
    n_rounds = (
        np.floor(reached / area_s[-1]) if pieces.repeat_s is not None else np.zeros_like(reached)
    )
    within = reached - n_rounds * area_s[-1]
    piece = np.clip(np.searchsorted(area_s, within, side="right") - 1, 0, len(length_s) - 1)
    rest = np.maximum(within - area_s[piece], 0.0)
    first = pieces.first_ratio[piece]
    slope = (pieces.last_ratio - pieces.first_ratio)[piece] / length_s[piece]
    # first·t + slope·t²/2 = rest, solved in a form that needs no special case for a slope of 0 or
    # for cancellation.
    speed = first + np.sqrt(np.maximum(first * first + 2 * slope * rest, 0.0))
    offset_s = np.divide(2 * rest, speed, out=np.where(rest > 0, _MAX_S, 0.0), where=speed > 0)
    instants_s: Floats = n_rounds * (pieces.repeat_s or 0.0) + pieces.at_s[piece] + offset_s
    return instants_s

"""Which of the replicas on one page of metrics is observed?

Data-parallel engines of one server, the servers behind a router that gathers their metrics, and
those of a Prometheus federation are on one page, each under a label of its own. Each has its own
queue, batch and KV cache. Added up they would be one server with limits that no setting has: a batch of 16
in each of four engines would show as one of 64. So the samples of one replica are taken: the one
that is wanted, else the fullest, in which requests wait longest.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.records.columns import Bools
from inferometer.records.exposition import labels_of
from inferometer.records.server_names import known_families, plain
from inferometer.records.server_series import UP, Series, ServerRecord, series_of, server_record
from inferometer.records.tables import select
from inferometer.records.types import ServerSampleTable

_WHERE: Final = "--replica"
_MODEL: Final = "model_name"
_FIRST: Final = ("engine", "instance", "pod", _MODEL)
"""Labels by which a replica is named where one of them is enough; then any other."""
_PARTS: Final = ("_bucket", "_sum", "_count")
_MOST_NAMED: Final = 8


class Replica(NamedTuple):
    """One of several replicas on a page."""

    labels: dict[str, str]
    """Its values of the labels that differ between the replicas."""
    name: str
    """As ``--replica`` names it: ``engine=1``."""
    another: str
    """The name of another one, the fullest of the others."""
    n_replicas: int
    mean_running: tuple[float, ...]
    """Requests in the batch of each replica that serves the same model, this one included."""
    all_labels: frozenset[tuple[str, str]]
    """All labels of its running requests: the same replica on a later page has the same."""
    before_them: frozenset[str] = frozenset()
    """Families that the process before the replicas counts for all of them: requests that it
    rejects. No replica has a part of them."""

    def holds(self, family: str, labels: Mapping[str, str]) -> bool:
        """Is a series of this replica? One without a label is of all, as a process' start time is."""
        is_of_all = not self.labels.keys() <= labels.keys()
        if is_of_all and plain(family) in self.before_them:
            return False
        return all(labels.get(name, value) == value for name, value in self.labels.items())


class Observed(NamedTuple):
    """Samples of one replica, or of a server that is the only one on its page."""

    samples: ServerSampleTable
    replica: Replica | None
    n_added_up: int = 1
    """Engines whose counters are shared, so that they can only be observed together."""


def observed_replica(samples: ServerSampleTable, wanted: str | None = None) -> Observed:
    """The samples of the wanted replica (``engine=1``), else of the fullest one.

    Raises
    ------
    RecordError
        No sample is of a known server.
    SpecError
        No replica, or several, have the wanted label.
    """
    record = server_record(samples)
    running = series_of(record, "running")
    labels = _differing(running)
    if not labels:
        if wanted is not None:
            raise _other(wanted, ())
        return Observed(samples, None)
    if not _are_separable(record, labels):
        if wanted is not None:
            raise _other(wanted, (), shared=True)
        return Observed(samples, None, len(running))
    found = _separated(record, labels)
    if wanted is None:
        replica = found[_fullest(_mean_inside(record, [one.labels for one in found]))]
    else:
        names = [one.name for one in found]
        replica = found[_wanted(wanted, [one.labels for one in found], names)]
    return Observed(select(samples, _rows_of(samples, replica)), replica)


def replicas_on_page(samples: ServerSampleTable) -> tuple[Replica, ...]:
    """Every replica, in the order of the page; none where it has one server.

    Engines that share their counters are one server as well.

    Raises
    ------
    RecordError
        No sample is of a known server.
    """
    record = server_record(samples)
    labels = _differing(series_of(record, "running"))
    return _separated(record, labels) if labels and _are_separable(record, labels) else ()


def labels_of_only(samples: ServerSampleTable) -> frozenset[tuple[str, str]]:
    """``Replica.all_labels`` of the server that has its page to itself."""
    running = series_of(server_record(samples), "running")
    return frozenset(running[0].labels.items()) if len(running) == 1 else frozenset()


def n_added_up(record: ServerRecord) -> int:
    """Engines of a server whose counters are shared, or which nothing tells apart; 1 of most."""
    return max(1, len(series_of(record, "running")))


def _separated(record: ServerRecord, labels: tuple[str, ...]) -> tuple[Replica, ...]:
    running = series_of(record, "running")
    each = [{name: one.labels[name] for name in labels} for one in running]
    inside = _mean_inside(record, each)
    names = _names(each)
    models = [one.labels.get(_MODEL) for one in running]
    mean = [float(np.nanmean(one.value)) for one in running]
    return tuple(
        Replica(
            labels=own,
            name=name,
            another=names[_fullest([-1.0 if i == place else n for i, n in enumerate(inside)])],
            n_replicas=len(each),
            mean_running=tuple(
                n for n, model in zip(mean, models, strict=True) if model == models[place]
            ),
            all_labels=frozenset(running[place].labels.items()),
            before_them=_before_them(record),
        )
        for place, (own, name) in enumerate(zip(each, names, strict=True))
    )


def _differing(running: tuple[Series, ...]) -> tuple[str, ...]:
    """Labels with which every replica has a value, and not all the same."""
    names = sorted({name for one in running for name in one.labels})
    values = {name: [one.labels.get(name) for one in running] for name in names}
    return tuple(
        name for name, found in values.items() if None not in found and len(set(found)) > 1
    )


def _are_separable(record: ServerRecord, labels: Iterable[str]) -> bool:
    """Has all that is counted these labels? SGLang's ranks share their counters of requests."""
    names = record.names
    counted = known_families(names) - {
        one.family
        for gauge, several in names.gauges.items()
        for one in several
        if gauge not in {"running", "waiting"}
    }
    counted |= {one.family for several in names.token_histograms.values() for one in several}
    counted -= _before_them(record)
    return all(
        label in one.labels
        for family, series in record.families.items()
        if family in counted or any(family.removesuffix(part) in counted for part in _PARTS)
        for one in series
        for label in labels
    )


def _before_them(record: ServerRecord) -> frozenset[str]:
    return frozenset(one.family for one in record.names.counters.get("rejected", ()))


def _mean_inside(record: ServerRecord, each: list[dict[str, str]]) -> list[float]:
    """Requests in the batch and the queue of each replica."""
    found = [*series_of(record, "running"), *series_of(record, "waiting")]
    return [
        sum(float(np.nanmean(one.value)) for one in found if _agrees(one.labels, labels))
        for labels in each
    ]


def _fullest(inside: list[float]) -> int:
    return int(np.argmax(inside))


def _names(each: list[dict[str, str]]) -> list[str]:
    """The shortest name of each: by one label where its values are all different."""
    usual = (*_FIRST, *each[0])
    enough = next(
        (
            (name,)
            for name in usual
            if name in each[0] and len({one[name] for one in each}) == len(each)
        ),
        tuple(each[0]),
    )
    return [",".join(f"{name}={one[name]}" for name in enough) for one in each]


def _wanted(wanted: str, each: list[dict[str, str]], names: list[str]) -> int:
    pairs = [part.partition("=") for part in wanted.split(",")]
    labels = {name.strip(): value.strip() for name, _, value in pairs}
    found = [
        place
        for place, one in enumerate(each)
        if all(one.get(name) == value for name, value in labels.items())
    ]
    if len(found) != 1:
        raise _other(wanted, names, n_found=len(found))
    return found[0]


def _other(
    wanted: str, names: Iterable[str], *, n_found: int = 0, shared: bool = False
) -> SpecError:
    known = list(names)
    if not known:
        why = "its engines share their counters" if shared else "its page has a single server"
        return SpecError(
            f"{wanted!r}: {why}", where=_WHERE, try_=f"the same command without {_WHERE}"
        )
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    return SpecError(
        f"{wanted!r} is {f'{n_found} of the replicas' if n_found else 'none of the replicas'}",
        where=_WHERE,
        allowed=", ".join(known[:_MOST_NAMED]) + more,
        try_=suggestions.flags(_WHERE, known[0]),
    )


def _agrees(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name, value) == value for name, value in wanted.items())


def _rows_of(samples: ServerSampleTable, replica: Replica) -> Bools:
    series = list(zip(samples.name.tolist(), samples.labels.tolist(), strict=True))
    known = {one: replica.holds(one[0], labels_of(one[1])) for one in set(series)}
    rows: Bools = np.array([known[one] for one in series], np.bool_) | (samples.name == UP)
    return rows

"""Which efficiencies of common devices and engines go into the package?

    python bench/efficiencies.py [--cache FOLDER]

All closed loops of InferenceMAX and InferenceX that can be simulated are fitted together, whatever
their model, device, engine and format (``pooled_fit``). Of each device and engine one
entry is written for every model that has rows of its own, there or elsewhere, and one for all dense
models and one for all mixtures of experts in each format; and the same for GPUs of a vendor of which
nobody published. How far steps are off is set so that 90 % of the rows left out lie inside: of the engine
where it has three families or more on known devices, else of the learned half where that needs
more. There all engines' families set the widths, and each engine's own rows by how much its are
wider or narrower. TPOT sets it for decode steps, and TPOT of loads whose prompts interrupt them for
steps with prompts, by as much as it grows with these. TTFT errs more: were that in the steps, TPOT
would err with it, and it does not; so the rest is of the time to the first token alone. Left out
with a row are all rows of its model on its device and engine; for devices without rows, all rows of
its device. Of a model with rows it is set on those of few users. Two CPU minutes, and four for the
simulations without a cache; ``bench/accuracy.py`` shows the other half. Errors are those of what the
package predicts, without the tables' own time outside of the engine.
"""

import argparse
import datetime as dt
import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from pooled_fit import Kind, chip_of, errors_at, fit_pooled, kind_of, prior_of
from published_tables import AT_ODDS, Loads, data_of, published, side_of, take_data
from results_log import log_row

from inferometer.fit.published import efficiencies
from inferometer.fit.published.efficiencies import (
    ENGINES,
    Efficiency,
    EfficiencyFile,
    SourceTable,
)
from inferometer.fit.published.step_time import PHASES
from inferometer.inputs.catalog import find_hardware
from inferometer.perfmodel.steptime import HeldOutError
from inferometer.perfmodel.steptime_limits import box_of
from inferometer.perfmodel.steptime_terms import NO_STAIRCASE, PARAMETERS, term_columns
from inferometer.stats.estimate import Z_90

TABLES = {
    "inferencemax-official-2025-11": (
        "InferenceMAX of November 2025, faradawn/InferenceMAX 7a17504, folder official_data",
        "Apache-2.0; data from InferenceX, SemiAnalysis LLC",
    ),
    "inferencex-silicon": (
        "silicon_sample.csv of ai-dynamo/aiconfigurator 095f58a (InferenceX and NVIDIA)",
        "Apache-2.0; data from InferenceX, SemiAnalysis LLC",
    ),
}
FOLDER = Path(efficiencies.__file__).parent / efficiencies.FOLDER
VENDORS = {"nvidia": "NVIDIA", "amd": "AMD"}
PRECISIONS = ("bf16", "fp8", "fp4")
LEAST_ROWS, LEAST_OWN_ROWS, MOST_ROWS = 4, 8, 20
FEW_USERS, SOME_USERS, ENOUGH, LEAST_FAMILIES = 8, 64, 20, 3
INSIDE = 0.9
LEAST_SPREAD, MOST_SPREAD, GROWTH = 0.03, 2.0, 0.05
LEAST_SHARE, LEAST_MIXED = 0.2, 8
"""Share of TPOT that is others' prompts from which on a row tells of them, and how many such rows."""
ALL_ENGINES = 1
"""What all engines' rows say of an engine's width counts as this many kinds of its own."""
ANY = "*"


def loads_of(data, load):
    """(table, simulated load) of all kinds with enough rows to be checked by one another.

    Where prefill and decode are apart, the time to the first token is another one.
    """
    found = [
        (name, made)
        for name, loads in published(data)[0].items()
        for one in loads
        if one.prefill is None and (made := load(one)) is not None
    ]
    counts = Counter(kind_of(one.published) for _, one in found)
    return [row for row in found if counts[kind_of(row[1].published)] >= LEAST_ROWS]


def thinned(found):
    """At most ``MOST_ROWS`` of each kind: more make the fit slower, not better."""
    seen, kept = Counter(), []
    for _, one in found:
        digest = hashlib.sha256(repr(one.published.key).encode()).hexdigest()
        kept.append((digest, one))
    for _, one in sorted(kept, key=lambda row: row[0]):
        kind = kind_of(one.published)
        seen[kind] += 1
        if seen[kind] <= MOST_ROWS:
            yield one


def informs(kind):
    """Do other models learn of its rows?"""
    return (kind.hardware_id, kind.framework, kind.model_id) not in AT_ODDS


def steps_by(one, unknowns):
    """(1, B) Time of a load's kinds of steps with these unknowns."""
    staircase = NO_STAIRCASE._replace(log_ratio=np.empty((1, 0)))
    return term_columns(unknowns[: len(PARAMETERS), None, None], staircase, one.work).total_s


def nearness(one, other):
    """Whose rows say most of another kind: the same engine, chip, format, vendor."""
    return (
        one.framework == other.framework,
        chip_of(one.hardware_id) == chip_of(other.hardware_id),
        one.vendor == other.vendor,
        one.precision == other.precision,
    )


class LeftOut:
    """Errors of rows that were left out with all rows that are ``alike``.

    ``errors`` are of what the package predicts; ``with_clients`` counts the time of the tables' own
    clients too, as their other rows say.
    """

    def __init__(self, loads, fit, alike, shares):
        self.kinds = [kind_of(one.published) for one in loads]
        self.users = np.array([one.published.load.concurrency for one in loads])
        self.is_learned = np.array([side_of(one.published) == "learned" for one in loads])
        self.is_moe = np.array([one.is_moe for one in self.kinds])
        self.engines = np.array([one.framework for one in self.kinds])
        self.errors, self.shares = np.empty((len(loads), 2)), shares
        self.with_clients = np.empty((len(loads), 2))
        groups = [alike(kind) for kind in self.kinds]
        for group in sorted(set(groups)):
            rest = [
                one
                for one, kind, of in zip(loads, self.kinds, groups, strict=True)
                if of != group and informs(kind)
            ]
            without = fit_pooled(rest, fit, max_rounds=4)
            for kind in {of for of in self.kinds if alike(of) == group}:
                rows = [k for k, of in enumerate(self.kinds) if of == kind]
                of_kind = [loads[k] for k in rows]
                self.errors[rows] = errors_at(of_kind, without.carried_to(kind))
                self.with_clients[rows] = errors_at(of_kind, without.distances_of(kind))
                medians = np.median(np.abs(np.expm1(-self.errors[rows])), axis=0)
                print(
                    "  left out:",
                    *kind,
                    f"TPOT {medians[0]:.1%}, TTFT {medians[1]:.1%}",
                    flush=True,
                )

    def rows_of(self, engine, is_moe):
        """Rows of this engine; of all engines where there are too few."""
        alike = self.is_moe == is_moe
        own = alike & (self.engines == engine)
        return own if own.sum() >= ENOUGH else alike

    def is_told(self, engine, is_moe):
        """Do the engine's own rows, of both halves, show how models differ?"""
        own = [one for one in self.kinds if (one.framework, one.is_moe) == (engine, is_moe)]
        return len({(one.model_id, one.precision) for one in own}) >= LEAST_FAMILIES

    def spreads(self, engine, is_moe):
        """By the learned half: those of all engines, as the engine's own rows widen them.

        There an engine has a family or two. One without any of this sort is widened as the
        engine that needs it most.
        """
        of_all = {sort: self._of_all(sort) for sort in (False, True)}
        own = self.is_learned & (self.engines == engine) & (self.is_moe == is_moe)
        engines = (engine,) if own.any() else efficiencies.ENGINES
        widenings = [self._widening(one, is_moe, of_all) for one in engines]
        return of_all[is_moe] * np.max(widenings, axis=0)

    def _of_all(self, is_moe):
        rows = self.is_learned & (self.is_moe == is_moe)
        return spreads_of(self.errors[rows], self.shares[rows])

    def _widening(self, engine, is_moe, of_all):
        """(3) Of decode, of prefill, and of the time to the first token."""
        rows = self.is_learned & (self.engines == engine)
        of_sort = rows & (self.is_moe == is_moe)
        rows = of_sort if of_sort.sum() >= ENOUGH else rows
        n_own = len({kind for kind, is_own in zip(self.kinds, rows, strict=True) if is_own})
        expected = np.array([of_all[is_moe] for is_moe in self.is_moe[rows]])
        own = spreads_of(self.errors[rows], self.shares[rows], expected)
        return np.sqrt((ALL_ENGINES + n_own * own**2) / (ALL_ENGINES + n_own))


def claimed(shares, spreads):
    """(N, 2) Half widths of 90 % intervals of TPOT and TTFT, in logarithms."""
    spreads = np.asarray(spreads)
    of_steps = np.hypot(*np.moveaxis(shares * spreads[..., None, :2], -1, 0))
    return Z_90 * np.stack([of_steps[:, 0], np.hypot(of_steps[:, 1], spreads[..., 2])], axis=1)


def spreads_of(errors, shares, expected=(1.0, 1.0, 1.0), prefill=1.0):
    """Standard deviations of steps and of first tokens, in the expected, with which 90 % are inside.

    TPOT is taken for decode steps alone, some of it prefills of others; where that is much of it,
    what is left of its errors is theirs. ``prefill``: that of loads without enough such rows.
    """
    expected = np.broadcast_to(np.asarray(expected), (len(errors), 3))
    squares, found = (errors / Z_90) ** 2, np.ones(3)
    found[0] = np.quantile(np.abs(errors[:, 0]) / (Z_90 * expected[:, 0]), INSIDE)
    mixed = shares[:, 0, 1] >= LEAST_SHARE
    of_decode = (shares[:, 0, 0] * expected[:, 0] * found[0]) ** 2
    of_prefill = (squares[:, 0] - of_decode)[mixed] / (shares[:, 0, 1] * expected[:, 1])[mixed] ** 2
    found[1] = prefill if mixed.sum() < LEAST_MIXED else root(np.quantile(of_prefill, INSIDE))
    found[1] = max(found[1], found[0] * np.median(expected[:, 0] / expected[:, 1]))
    of_steps = np.sum((shares[:, 1] * expected[:, :2] * found[:2]) ** 2, axis=1)
    found[2] = root(np.quantile((squares[:, 1] - of_steps) / expected[:, 2] ** 2, INSIDE))
    return np.clip(found, LEAST_SPREAD, MOST_SPREAD)


def spreads_in(entry):
    return (
        entry.decode_spread_ratio,
        entry.prefill_spread_ratio,
        entry.first_token_spread_ratio,
    )


def root(square):
    return np.sqrt(max(square, 0.0))


def held_out(errors, shares, spreads):
    ratios, inside = np.abs(np.expm1(-errors)), np.abs(errors) <= claimed(shares, spreads)
    return tuple(
        HeldOutError(
            phase=phase,
            n_points=len(errors),
            n_folds=len(errors),
            median_fraction=round(float(np.median(ratios[:, k])), 4),
            p95_fraction=round(float(np.quantile(ratios[:, k], 0.95)), 4),
            coverage_fraction=round(float(np.mean(inside[:, k])), 3),
        )
        for k, phase in enumerate(PHASES)
    )


class Maker:
    def __init__(self, found):
        self.counts = Counter(kind for _, one in found if informs(kind := kind_of(one.published)))
        self.loads = list(thinned(found))
        is_told = np.array([informs(kind_of(one.published)) for one in self.loads])
        self.fit = fit_pooled([self.loads[k] for k in np.flatnonzero(is_told)])
        self.errors = np.full((len(self.loads), 2), np.nan)
        for k in np.flatnonzero(is_told):
            carried = self.fit.carried_to(kind_of(self.loads[k].published))
            self.errors[k] = errors_at([self.loads[k]], carried)
        self.shares = np.array([self.shares_of(one) for one in self.loads])
        self.models = LeftOut(
            self.loads,
            self.fit,
            lambda kind: (kind.hardware_id, kind.framework, kind.model_id),
            self.shares,
        )
        self.devices = LeftOut(self.loads, self.fit, lambda kind: kind.hardware_id, self.shares)

    def entry(self, kind, carried_from):
        """Of any model: by the rows of others."""
        left_out = self.models if carried_from is None else self.devices
        rows = left_out.rows_of(kind.framework, kind.is_moe)
        spreads = spreads_of(left_out.errors[rows], self.shares[rows])
        if carried_from is not None or not left_out.is_told(kind.framework, kind.is_moe):
            # An engine of one or two models does not show how others differ.
            spreads = np.maximum(self.spreads(kind, carried_from), spreads)
        return self.made(kind, carried_from, spreads, left_out.errors[rows], self.shares[rows])

    def spreads(self, kind, carried_from):
        """A device without rows is no better known than a model without."""
        asked = (kind.framework, kind.is_moe)
        of_model = self.models.spreads(*asked)
        return (
            of_model if carried_from is None else np.maximum(of_model, self.devices.spreads(*asked))
        )

    def half_widths(self, *, is_carried):
        """(N, 2) Of the 90 % intervals of rows left out, in logarithms.

        Steps with prompts are as uncertain as prefills, and the others as decode steps.
        """
        sorts = {(kind.framework, kind.is_moe): kind for kind in self.models.kinds}
        spreads = {
            sort: self.spreads(kind, ANY if is_carried else None) for sort, kind in sorts.items()
        }
        of_rows = [spreads[kind.framework, kind.is_moe] for kind in self.models.kinds]
        return claimed(self.shares, np.array(of_rows))

    def shares_of(self, one):
        """(2, 2) By how much TPOT and TTFT grow with decode steps, and with prefills, in logs."""
        public = one.published
        unknowns = prior_of(one).mean + self.fit.distances_of(kind_of(public))
        parts = np.array([shape.n_prefill_requests > 0 for shape in one.schedule.shapes])
        step_s = steps_by(one, unknowns)
        grown = step_s * np.exp(GROWTH * np.stack([0 * parts, ~parts, parts]))
        seen = one.schedule.seen(grown, np.full(3, np.exp(unknowns[-2])), public.statistic)
        both = np.log(np.stack([seen.tpot_s, seen.ttft_s]))
        return (both[:, 1:] - both[:, :1]) / GROWTH

    def own_entry(self, kind):
        """Of a model that has rows: what its parameters leave of these, at most as of any model."""
        rows = np.array([of == kind for of in self.models.kinds])
        users = self.models.users
        few, some = rows & (users <= FEW_USERS), rows & (users <= SOME_USERS)
        enough = [one for one in (few, some) if one.sum() >= LEAST_OWN_ROWS]
        chosen = enough[0] if enough else rows
        errors, shares = self.errors[chosen], self.shares[chosen]
        of_any = self.entry(kind._replace(model_id=ANY), None)
        most = spreads_in(of_any)
        own = np.minimum(spreads_of(errors, shares, prefill=most[1]), most)
        return self.made(kind, None, own, errors, shares)

    def alike_entries(self, device, engine):
        """Of models with rows on this chip, in the formats and on the devices that have none.

        What the rows say of the model holds there too, so that a device with more bandwidth or a
        narrower format is not slower for being told by rows of other models. As sure as of any
        model.
        """
        found = {}
        for kind in sorted(self.counts):
            on_chip = chip_of(kind.hardware_id) == chip_of(device) and kind.framework == engine
            if on_chip and self.counts[kind] >= LEAST_OWN_ROWS:
                found.setdefault(kind.model_id, []).append(kind)
        for known in found.values():
            for precision in sorted({*PRECISIONS, *(one.precision for one in known)}):
                if (device, precision) not in {(one.hardware_id, one.precision) for one in known}:
                    nearest = min(known, key=lambda one: one.precision != precision)
                    kind = nearest._replace(hardware_id=device, precision=precision)
                    name = find_hardware(nearest.hardware_id).name
                    told_by = (
                        name if nearest.precision == precision else f"{name} in {nearest.precision}"
                    )
                    rows = self.models.rows_of(engine, kind.is_moe)
                    wide = self.entry(kind, None)
                    spreads = spreads_in(wide)
                    errors, shares = self.models.errors[rows], self.shares[rows]
                    yield self.made(kind, told_by, spreads, errors, shares)

    def elsewhere_entries(self, device, vendor, engine, *, is_known):
        """Of models with rows on other chips or by other engines alone, in every format.

        What is the model's own there holds here in part, as ``distances_of`` weighs it: rows left
        out are told so too. As sure as of any model.
        """
        told = [kind for kind in sorted(self.counts) if self.counts[kind] >= LEAST_OWN_ROWS]
        here = (chip_of(device), engine)
        known = {of.model_id for of in told if (chip_of(of.hardware_id), of.framework) == here}
        for model_id in sorted({of.model_id for of in told} - known):
            own = [of for of in told if of.model_id == model_id]
            for precision in sorted({*PRECISIONS, *(of.precision for of in own)}):
                kind = Kind(device, vendor, engine, model_id, own[0].is_moe, precision)
                nearest = max(own, key=lambda of, kind=kind: nearness(of, kind))
                name = find_hardware(nearest.hardware_id).name
                by = "" if nearest.framework == engine else f"{ENGINES[nearest.framework]} on "
                of_format = "" if nearest.precision == precision else f" in {nearest.precision}"
                any_model = self.entry(kind._replace(model_id=ANY), None if is_known else ANY)
                yield replace(
                    any_model,
                    model_id=model_id,
                    n_rows=0,
                    carried_from=f"{by}{name}{of_format}",
                    distances=self.distances_of(kind),
                )

    def distances_of(self, kind):
        return tuple(float(f"{value:.4g}") for value in self.fit.carried_to(kind))

    def made(self, kind, carried_from, spreads, errors, shares):
        rows = [
            n
            for of, n in self.counts.items()
            if (of.hardware_id, of.framework) == (kind.hardware_id, kind.framework)
            and (kind.model_id == ANY or of == kind)
        ]
        return Efficiency(
            engine=kind.framework,
            is_moe=kind.is_moe,
            precision=kind.precision,
            model_id=None if kind.model_id == ANY else kind.model_id,
            n_rows=sum(rows),
            carried_from=carried_from,
            distances=self.distances_of(kind),
            decode_spread_ratio=round(float(spreads[0]), 4),
            prefill_spread_ratio=round(float(spreads[1]), 4),
            first_token_spread_ratio=round(float(spreads[2]), 4),
            held_out=held_out(errors, shares, spreads),
        )

    def entries(self, device, vendor, name):
        """Of one device, or with ``ANY`` of all of a vendor."""
        for engine in efficiencies.ENGINES:
            mine = sorted(
                kind
                for kind in self.counts
                if (kind.hardware_id, kind.framework) == (device, engine)
            )
            yield from (self.own_entry(one) for one in mine if self.counts[one] >= LEAST_OWN_ROWS)
            yield from self.alike_entries(device, engine)
            yield from self.elsewhere_entries(device, vendor, engine, is_known=bool(mine))
            others = f"other {name} GPUs" if device == ANY else f"other engines on {name}"
            for is_moe in (False, True):
                for precision in PRECISIONS:
                    kind = Kind(device, vendor, engine, ANY, is_moe, precision)
                    yield self.entry(kind, None if mine else others)


def shown(one):
    kind = f"{one.engine} {'moe' if one.is_moe else 'dense'} {one.precision}"
    errors = ", ".join(
        f"{metric} {of.median_fraction:.1%} inside {of.coverage_fraction:.0%}"
        for metric, of in zip(("TPOT", "TTFT"), one.held_out, strict=True)
    )
    spreads = (
        f"{one.decode_spread_ratio:.3f}, {one.prefill_spread_ratio:.3f},"
        f" {one.first_token_spread_ratio:.3f}"
    )
    return f"   {kind} {one.model_id or '(any)'}, {one.n_rows} rows: {spreads}; {errors}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    take_data(parser)
    parser.add_argument("--cache", type=Path, help="Keep simulated schedules here between runs.")
    parser.add_argument("--date", default=f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}")
    arguments = parser.parse_args()
    found = loads_of(data_of(arguments), Loads(arguments.cache))
    maker = Maker(found)
    sources = tuple(
        SourceTable(
            table=name,
            where=where,
            licence=licence,
            n_rows=sum(of == name and informs(kind_of(one.published)) for of, one in found),
        )
        for name, (where, licence) in TABLES.items()
    )
    box = box_of([shape for _, one in found for shape in one.schedule.shapes])
    devices = {one.published.hardware.hardware_id: one.published.hardware for _, one in found}
    FOLDER.mkdir(exist_ok=True)
    for file, device, vendor, name in (
        *((one.hardware_id, one.hardware_id, one.vendor, one.name) for one in devices.values()),
        *((vendor, ANY, vendor, name) for vendor, name in VENDORS.items()),
    ):
        written = EfficiencyFile(
            schema_version=1,
            device=file,
            fitted=arguments.date,
            sources=sources,
            box=box,
            efficiencies=tuple(maker.entries(device, vendor, name)),
        )
        text = msgspec.json.encode(written).replace(b'{"engine"', b'\n{"engine"')  # a line an entry
        (FOLDER / f"{file}.json").write_bytes(text + b"\n")
        print(f"{file}: {len(text) / 1e3:.0f} kB")
        print("\n".join(shown(one) for one in written.efficiencies), flush=True)
    for name, left_out in (("a model on a device", maker.models), ("a device", maker.devices)):
        median = np.median(np.abs(np.expm1(-left_out.errors)), axis=0)
        log_row(
            f"shipped efficiencies: {name} left out",
            f"tpot {median[0]:.1%}, ttft {median[1]:.1%}",
            f"{len(maker.loads)} rows of {len(found)}",
        )


if __name__ == "__main__":
    main()

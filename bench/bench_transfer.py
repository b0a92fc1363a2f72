"""How far off are step times that are carried over to another model, format or engine?

    python bench/bench_transfer.py [--cache FOLDER] [--device ID]

Each group of published rows (a device, engine, model and format) is fitted on its own, as
``inferometer fit`` fits it, and the fit is carried over (``fit.published.transfer``) to groups of
the same device that differ in the model, the format or the engine alone. Errors are of those
groups' rows, of which the fit saw none. What a difference adds to the spread is set so that 93 % of
the rows of the learned half of the families lie inside; the other half shows what comes of it.
Ten CPU minutes.
"""

import argparse
import hashlib
from collections import defaultdict
from pathlib import Path

import numpy as np
from pooled_fit import errors_at, kind_of, prior_of
from published_tables import Loads, data_of, published, side_of, take_data
from results_log import log_row

from inferometer.errors import InferometerError
from inferometer.fit.published import transfer
from inferometer.fit.published.priors import UNKNOWNS
from inferometer.fit.published.step_time import PHASES, published_step_time
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.stats.estimate import Z_90

LEAST_ROWS, MOST_ROWS, MOST_SOURCES, INSIDE = 10, 10, 2, 0.93
WIDEST = 3.0


def digest(*words):
    return hashlib.sha256(repr(words).encode()).hexdigest()


def groups_of(data, load, device):
    """Kind -> rows of one replica that can be simulated, at most so many, chosen by their names."""
    groups = defaultdict(list)
    for loads in published(data)[0].values():
        for one in loads:
            if one.prefill is None and device in {None, one.hardware.hardware_id}:
                groups[kind_of(one)].append(one)
    for kind, rows in sorted(groups.items()):
        if len(rows) >= LEAST_ROWS:
            chosen = sorted(rows, key=lambda one: digest(one.key))[:MOST_ROWS]
            yield kind, rows, [made for one in chosen if (made := load(one)) is not None]


def difference(one, other):
    """What alone differs between two kinds on one device; None: nothing, or more."""
    names = {"model": "model_id", "format": "precision", "engine": "framework"}
    found = [n for n, field in names.items() if getattr(one, field) != getattr(other, field)]
    return found[0] if one.hardware_id == other.hardware_id and len(found) == 1 else None


def carried(fit, kind, rows):
    """The fit for another kind on its device."""
    there = rows[0].published
    changed = transfer.Changed(
        model=there.model,
        dtype=there.engine.dtype,
        quantization=there.engine.quantization or "none",
        framework=kind.framework,
    )
    tensor = fit.engine.tensor_parallel_size
    return transfer.transferred(
        fit, there.hardware, there.hardware, n_tensor=tensor, changed=changed
    )


def errors_and_spreads(fit, rows):
    """(N, 2) Log of measured over predicted TPOT and TTFT, and standard deviations claimed."""
    prior = prior_of(rows[0]).mean
    place = np.concatenate([fit.physical().vector(), np.log([fit.front_end_s.value, 1e-9])])
    assert len(place) == len(UNKNOWNS)
    shapes = [
        decode_shape(batch_size=16, context_tokens=1024),
        prefill_shape(batch_size=1, prompt_tokens=1024),
    ]
    spreads = fit.log_half_widths(shapes, fit.work(shapes)) / Z_90
    return errors_at(rows, place - prior), np.tile(spreads, (len(rows), 1))


def needed(errors, own):
    """What has to be added to the spreads so that nearly 90 % lie inside."""
    for extra in np.arange(0.0, WIDEST, 0.01):
        if np.mean(np.abs(errors) <= Z_90 * np.hypot(own, extra)) >= INSIDE:
            return float(extra)
    return WIDEST


def measured(data, cache, device):
    """(difference, side) -> errors, spreads without what the difference adds."""
    groups = list(groups_of(data, Loads(cache), device))
    found = defaultdict(list)
    for kind, rows, made in groups:
        others = sorted(
            (one for one in groups if difference(kind, one[0])),
            key=lambda one: digest(kind, one[0]),
        )
        seen = defaultdict(int)
        chosen = []
        for one in others:
            name = difference(kind, one[0])
            seen[name] += 1
            if seen[name] <= MOST_SOURCES and one[2]:
                chosen.append((name, one))
        if not chosen or not made:
            continue
        try:
            degrees = [one.plan.n_tensor for one in rows]
            fit = published_step_time(
                rows, rows[0].hardware, n_tensor=max(set(degrees), key=degrees.count)
            )
        except InferometerError as error:
            print("  not fitted:", *kind, error, flush=True)
            continue
        for name, (target, _, theirs) in chosen:
            errors, spreads = errors_and_spreads(carried(fit, target, theirs), theirs)
            found[name, side_of(theirs[0].published)].append((errors, spreads))
            medians = np.median(np.abs(np.expm1(-errors)), axis=0)
            print(name, *kind, "->", *target, medians.round(3), flush=True)
    return {
        key: [np.concatenate(part) for part in zip(*rows, strict=True)]
        for key, rows in found.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    take_data(parser)
    parser.add_argument("--cache", type=Path, help="Keep simulated schedules here between runs.")
    parser.add_argument("--device", help="Rows of this one alone: quicker, and less is learned.")
    arguments = parser.parse_args()
    told = transfer.OF_OTHERS
    added = {name: dict.fromkeys(PHASES, 0.0) for name in told}
    transfer.OF_OTHERS = added
    found = measured(data_of(arguments), arguments.cache, arguments.device)
    for name in (one for one in added if {(one, "learned"), (one, "reported")} <= set(found)):
        words = []
        for k, (metric, phase) in enumerate(zip(("TPOT", "TTFT"), PHASES, strict=True)):
            errors, own = found[name, "learned"]
            extra = needed(errors[:, k], own[:, k])
            shown, theirs = found[name, "reported"]
            width = Z_90 * np.hypot(theirs[:, k], told[name][phase])
            ratios = np.abs(np.expm1(-shown[:, k]))
            words.append(
                f"{metric} median {np.median(ratios):.1%}, p90 {np.quantile(ratios, 0.9):.0%}, inside"
                f" {np.mean(np.abs(shown[:, k]) <= width):.0%} of"
                f" ×/÷ {np.exp(np.median(width)):.2f}; by the learned half {extra:.2f}"
                f" (in the package {told[name][phase]:.2f})"
            )
        n_rows = len(found[name, "reported"][0])
        log_row(f"transfer to another {name}", "; ".join(words), f"{n_rows} rows, reported half")


if __name__ == "__main__":
    main()

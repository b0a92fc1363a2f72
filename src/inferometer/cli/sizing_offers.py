"""Which devices are on offer at which prices, with whose step times, and what is tried on each?"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from inferometer import suggestions
from inferometer.cli import server_fits, step_times
from inferometer.decide.candidates import Grid, Offer
from inferometer.errors import SpecError
from inferometer.perfmodel.steptime_levels import fitted_levels
from inferometer.records import store
from inferometer.spec import catalog, prices, resolve, types
from inferometer.spec.sweep_plan import parse_counts
from inferometer.spec.synonyms import number_format


class Fit(NamedTuple):
    """A fit that was named on the command line."""

    device: str | None
    """None: nobody says which device it is one of."""
    path: Path


def fit_named(text: str) -> Fit:
    """``FILE`` or ``DEVICE=FILE``."""
    device, equals, path = text.partition("=")
    return Fit(device.strip(), Path(path)) if equals and not Path(text).exists() else Fit(None, Path(text))


def offers_of(gpus: str, table: prices.PriceTable | None, fits: Sequence[Fit], model: types.ModelSpec) -> list[Offer]:
    """The devices that are named, each with its prices; one that somebody fitted is offered with those fits alone.

    Raises
    ------
    SpecError
        A device or a fit that is not known, a fit of another model, or one of a device that is not on offer.
    """
    names = list(dict.fromkeys(catalog.find_hardware(name.strip()).hardware_id for name in gpus.split(",")))
    devices = [catalog.find_hardware(name) for name in names]
    owned = {} if table is None else table.owned
    rents = zip(devices, prices.rents_of(devices, table), strict=True)
    priced = [Offer(hardware=device, price=rent, owned=owned.get(device.hardware_id)) for device, rent in rents]
    fitted = [_fitted(fit, priced, model) for fit in fits]
    has_fit = {offer.hardware.hardware_id for offer in fitted}
    return [*fitted, *(offer for offer in priced if offer.hardware.hardware_id not in has_fit)]


def _fitted(fit: Fit, offers: Sequence[Offer], model: types.ModelSpec) -> Offer:
    if server_fits.is_server(fit.path):
        server = server_fits.load_server(fit.path, model.model_id)
        told, times = fit.device or server.hardware, server.levels()
    else:
        step_time = step_times.asked_fit(fit.path, model, asked={})
        told, times = fit.device or step_time.trained_on.hardware, fitted_levels(step_time)
    offer = next((one for one in offers if told in {one.hardware.hardware_id, one.hardware.name}), None)
    if offer is None and fit.device is None and len(offers) == 1:
        offer = offers[0]
    if offer is None:
        ids = [one.hardware.hardware_id for one in offers]
        what = f"a fit of {told or 'a device without a name'}, which is none of those on offer"
        raise SpecError(
            what,
            where=f"--fit {fit.path}",
            allowed=f"devices of --gpus: {', '.join(ids)}",
            try_=suggestions.flags("--fit", f"{ids[0]}={fit.path}"),
        )
    return replace(offer, step_times=times, power=_measured_power(fit.path, times.engine))


def _measured_power(path: Path, engine: types.EngineSpec) -> types.Constant | None:
    """The mean power of a device in the hardest point of the sweep that the fit lies beside; None where nobody measured it."""
    if not path.is_dir():
        return None
    sweep = store.read_run(path, skip_damaged=True).sweep
    known = [] if sweep is None else [watt for watt in np.asarray(sweep.power_watt).tolist() if watt > 0]
    if not known:
        return None
    source = types.Source(kind="measured", where=f"{path}: highest mean power of a repetition")
    return types.Constant(value=max(known) / engine.tensor_parallel_size, source=source)


def grid_of(flags: dict[str, Any], model: resolve.ResolvedModel) -> Grid:
    """What is to be tried on each."""
    return Grid(
        tensor_parallel_sizes=parse_counts(flags["tp"], where="--tp"),
        pipeline_parallel_sizes=None if flags["pp"] is None else parse_counts(flags["pp"], where="--pp"),
        dtype=flags["dtype"],
        policy=flags["engine"],
        quantizations=_quantizations(flags["quantization"], model),
        max_num_seqs=parse_counts(flags["seats"], where="--max-num-seqs"),
        max_num_batched_tokens=parse_counts(flags["step_tokens"], where="--max-num-batched-tokens"),
        own=tuple(_values(text) for text in flags["own"]),
    )


def _values(text: str) -> tuple[str, tuple[str, ...]]:
    """``enable_chunked_prefill=true,false``"""
    name, equals, values = text.partition("=")
    if not equals or not all(value.strip() for value in values.split(",")):
        raise SpecError(f"{text!r} sets nothing", where="--set", allowed="NAME=VALUE,VALUE", try_="--set enable_chunked_prefill=true,false")
    return name.strip(), tuple(value.strip() for value in values.split(","))


def _quantizations(text: str | None, model: resolve.ResolvedModel) -> tuple[types.DType | None, ...]:
    """That in which the weights were published first, then those that are asked for."""
    known: tuple[types.AskedFormat, ...] = (*get_args(types.DType), "none")
    asked = [] if text is None else [number_format(item, allowed=known, where="--quantization") for item in text.split(",")]
    tried: list[types.DType | None] = [model.quantization(), *(model.quantization(item) for item in known if item in asked)]
    return tuple(dict.fromkeys(tried))


__all__ = ["Fit", "fit_named", "grid_of", "offers_of"]

"""How efficient are common devices and engines: step times of published rows, kept in the package.

Each file of the folder ``efficiency_data`` is of one device, or of all GPUs of a vendor without
rows of their own. An entry holds how far parameters lie from the prior of their model and device
(``device_prior``; logarithms), and how far off decode steps and prefills are: of one model where it has
rows of its own, else of all dense models or of all mixtures of experts. ``bench/efficiencies.py``
makes the files from the published tables. Letters of shapes: P unknowns.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import Final, NamedTuple

import msgspec
import numpy as np

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.fit.published.priors import UNKNOWNS, device_prior
from inferometer.inputs.catalog import load_models, nameless
from inferometer.inputs.types import DType, EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel.roofline import peaks_of
from inferometer.perfmodel.steptime import (
    FittedParameter,
    HeldOutError,
    StepTimeModel,
    TrainedOn,
    parameter_estimate,
)
from inferometer.perfmodel.steptime_levels import StepTimes, datasheet_levels, fitted_levels
from inferometer.perfmodel.steptime_limits import BoxRange, PhaseUncertainty, fastest_steps
from inferometer.perfmodel.steptime_terms import PARAMETERS
from inferometer.perfmodel.types import subject_of
from inferometer.stats.estimate import Estimate

FOLDER: Final = "efficiency_data"
SERVERS_FILE: Final = "servers_of_others.json"
ENGINES: Final = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
_PRECISIONS: Final[dict[DType, str]] = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "float8": "fp8",
    "float4": "fp4",
    "int8": "bf16",
    "int4": "bf16",
}
"""Formats of the tables; kernels that unpack integers multiply in 16 bit."""
_FEW_ROWS_OF: Final = frozenset({"int8", "int4"})
_UNPACKING_RATIO: Final = 0.2
"""Added standard deviation of log time where the tables have no rows of the format. An
assumption."""
_FRONT_END_RATIO: Final = 4.0
"""From likely to either end of the 90 % interval of a server's time outside of the engine: 1 to
20 ms. In others' load tests at light load it is about 1 ms in some laboratories, 10 in others; tables
do not tell it apart from their ways to measure TTFT."""
_FRONT_END_TOKENS: Final = 512
_HBM_BYTES_PER_S: Final = 1.9e12
"""No card of the catalogue with other memory is as fast."""
_LINK: Final = ("link_bytes_per_s", "message_s")
OUTSIDE: Final = frozenset({"front_end_s", "prompt_token_s"})
"""Time outside of the engine. The tables' is 20 to 80 ms, with their clients and by what they mean by
TTFT. It is learned, so that prompts are not called slower to compute for it, and left with the
tables: a file's distances of both are 0. Of 169 TTFTs of other people's servers in ``bench/results``
the median error is 25 % without the tables' and 45 % with it."""
_METHOD: Final = "published rows, pooled over models, devices and engines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Efficiency of one engine on one device, by published rows."""

    engine: str
    is_moe: bool
    precision: str
    model_id: str | None
    """None: of any model."""
    n_rows: int
    """Rows of this engine (and model) on this device; 0: carried over."""
    carried_from: str | None
    """Source of the transfer, where there are no own rows: devices, or an engine *on* a device."""
    distances: tuple[float, ...]
    """(P) From the prior, in the order of ``UNKNOWNS``."""
    decode_spread_ratio: float
    prefill_spread_ratio: float
    """Standard deviation of log time, by rows that were left out."""
    first_token_spread_ratio: float
    """The same of the time to the first token, besides that of steps."""
    held_out: tuple[HeldOutError, ...]
    """*decode* of TPOT, *prefill* of TTFT. Of any model: rows left out with all rows of their
    model on the device and engine; where carried over, with all rows of their device. Of a model
    with rows: what its parameters leave of these."""


class SortOfServers(NamedTuple):
    """Servers that differ alike from the rows."""

    devices: str
    """*blackwell* or older *nvidia* with HBM, *amd*, *other*; *any* of ``SHARED``."""
    engine: str
    is_moe: bool


SHARED: Final = SortOfServers("any", "any", is_moe=True)
"""Servers whose replicas share their experts (data-parallel attention), also of models with rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersOfOthers:
    """How far servers that other people run are from the published rows, by what they published.

    The rows are of two laboratories, which know the flags, kernels and tuned shapes of the models
    that they run. ``bench/between_servers.py`` finds these numbers.
    """

    sort: SortOfServers
    n_values: int
    n_sources: int
    slower_ratio: float
    """Their steps with a model that has no rows by the engine, over what rows of others say."""
    spread_ratio: float
    """Standard deviation of the logarithm of their speed around that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersFile:
    """The package's file of servers that other people run."""

    schema_version: int
    sources: tuple[str, ...]
    """Files of values, in ``bench/results``."""
    servers: tuple[ServersOfOthers, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A published table, and how many of its rows were used."""

    table: str
    where: str
    licence: str
    n_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencyFile:
    """Efficiencies of one device, or of all GPUs of a vendor without rows."""

    schema_version: int
    device: str
    """An id of the catalogue, or a vendor."""
    fitted: str
    """Date."""
    sources: tuple[SourceTable, ...]
    box: tuple[BoxRange, ...]
    """Steps of all rows."""
    efficiencies: tuple[Efficiency, ...]


def known_levels(
    model: ModelSpec,
    engine: EngineSpec,
    hardware: HardwareSpec,
    *,
    framework: str = "vllm",
    n_sharing: int = 1,
    is_datasheet: bool = False,
    all_reduce_s: float | None = None,
) -> StepTimes:
    """Step times where no fit is named: of the nearest published rows, else of the datasheet.

    ``n_sharing`` replicas share their experts. ``is_datasheet``: of the datasheet in any case, as
    where the links between the devices are stated: ``hardware`` has them, and ``all_reduce_s`` is
    the latency of one all-reduce.

    Raises
    ------
    SpecError
        The device does not compute in the format or is not one that the engine runs on, several
        devices have no known link between them, or there are no experts to share.
    """
    _check_runs(framework, hardware)
    found = (
        None
        if is_datasheet or all_reduce_s is not None or has_stated_links(hardware)
        else published_steps(model, engine, hardware, framework, shares_experts=n_sharing > 1)
    )
    if found is None:
        return datasheet_levels(
            model, engine, hardware, n_sharing=n_sharing, all_reduce_s=all_reduce_s
        )
    shared = f"; experts shared by {n_sharing} replicas, all chosen alike" if n_sharing > 1 else ""
    return replace(
        fitted_levels(found, n_sharing=n_sharing),
        basis="published",
        origin=f"{found.trained_on.hardware}{shared}",
    )


def _check_runs(framework: str, hardware: HardwareSpec) -> None:
    """Refuse other GPUs than NVIDIA's for TensorRT-LLM; a CPU stands for the host of a trial here."""
    if framework == "trtllm" and hardware.vendor != "nvidia" and hardware.kind != "cpu":
        raise SpecError(
            f"{ENGINES[framework]} on {hardware.name}",
            where="--policy",
            allowed="NVIDIA GPUs; vLLM and SGLang run on others too",
            try_=suggestions.flags("--policy", "vllm"),
        )


def has_stated_links(hardware: HardwareSpec) -> bool:
    """Were the links between devices given, in place of those of the rows?"""
    links = (hardware.link_bytes_per_s, hardware.pcie_bytes_per_s)
    return any(link is not None and link.source.kind == "config" for link in links)


@lru_cache(maxsize=128)
def published_steps(
    model: ModelSpec,
    engine: EngineSpec,
    hardware: HardwareSpec,
    framework: str,
    *,
    shares_experts: bool = False,
) -> StepTimeModel | None:
    """Step times of the nearest published rows; None where none are similar.

    ``shares_experts``: replicas that share their experts differ in their own way from other servers.

    Raises
    ------
    SpecError
        The device does not compute in the format, or is not one that the engine runs on.
    """
    _check_runs(framework, hardware)
    weights = engine.quantization or engine.dtype
    if (
        hardware.kind != "gpu"
        or weights not in _PRECISIONS
        or (engine.tensor_parallel_size > 1 and peaks_of(hardware, engine).link_bytes_per_s is None)
    ):
        return None
    peaks_of(hardware, engine)
    content = efficiency_file(hardware)
    file = None if content is None else _read(content)
    entry = None if file is None else _nearest(file, model, framework, weights)
    if file is None or entry is None:
        return None
    sort = SHARED if shares_experts else sort_of(model, hardware, entry.engine)
    return _model_of(file, entry, model, engine, hardware, servers_of_others(sort))


def efficiency_file(hardware: HardwareSpec) -> bytes | None:
    """The package's file of this GPU or its vendor; None where there is none."""
    folder = resources.files("inferometer.fit.published").joinpath(FOLDER)
    for name in (hardware.hardware_id, hardware.vendor):
        path = folder.joinpath(f"{name}.json")
        if hardware.kind == "gpu" and path.is_file():
            return path.read_bytes()
    return None


def servers_file() -> bytes:
    """The package's file of servers that other people run, which published step times follow too."""
    return resources.files("inferometer.fit.published").joinpath(SERVERS_FILE).read_bytes()


@lru_cache(maxsize=64)
def _read(content: bytes) -> EfficiencyFile:
    return msgspec.json.decode(content, type=EfficiencyFile)


def _nearest(
    file: EfficiencyFile, model: ModelSpec, framework: str, weights: DType
) -> Efficiency | None:
    """Rows of the model itself or of one with its matrices, else those of all models of its kind."""
    engine = framework if framework in ENGINES else "vllm"
    formats = (weights, _PRECISIONS[weights])
    of_kind = [
        one
        for one in file.efficiencies
        if one.engine == engine
        and one.is_moe == (model.moe is not None)
        and one.precision in formats
    ]
    names = frozenset({model.model_id})
    if all(one.model_id != model.model_id for one in of_kind):
        names = _names_of_shape(model)
    return min(
        (one for one in of_kind if one.model_id is None or one.model_id in names),
        key=lambda one: (one.model_id is None, formats.index(one.precision)),
        default=None,
    )


@lru_cache(maxsize=64)
def _names_of_shape(model: ModelSpec) -> frozenset[str]:
    """The model, and those of the catalogue that take its time: DeepSeek-R1 that of DeepSeek-V3.

    How long contexts may be and in which format the checkpoint is published take no time.
    """
    shape = _shape_of(model)
    alike = (one.model_id for one in load_models() if _shape_of(one) == shape)
    return frozenset({model.model_id, *alike})


def _shape_of(model: ModelSpec) -> ModelSpec:
    return replace(nameless(model), family=None, max_position_tokens=1, checkpoint_dtype=None)


def _model_of(
    file: EfficiencyFile,
    entry: Efficiency,
    model: ModelSpec,
    engine: EngineSpec,
    hardware: HardwareSpec,
    others: ServersOfOthers,
) -> StepTimeModel:
    prior = device_prior(model, engine, hardware, entry.engine)
    # No published row went over PCIe: there the link is the prior's, with its uncertainty.
    free = _LINK if engine.tensor_parallel_size > 1 and hardware.link_bytes_per_s is None else ()
    is_far = ~np.isin(UNKNOWNS, free)
    place = np.minimum(prior.mean + np.array(entry.distances) * is_far, prior.upper)
    is_own = _is_of_engine(entry) and others.sort != SHARED
    place += np.array(_slower(0.0 if is_own else float(np.log(others.slower_ratio))))
    n_rows = max(sum(one.n_rows for one in file.sources), 1)
    extra = _UNPACKING_RATIO if _has_few_rows(entry, engine, hardware) else 0.0
    spreads = {"decode": entry.decode_spread_ratio, "prefill": entry.prefill_spread_ratio}
    subject = subject_of(engine, hardware, device=None, name=entry.engine, version=None)
    return StepTimeModel(
        model=model,
        engine=engine,
        parameters=_parameters(place.tolist(), n_rows),
        kv_traffic_ratio=1.0,
        staircase_rows=(),
        staircase_log_ratio=(),
        free=free,
        covariance=tuple(map(tuple, np.diag(prior.sd[~is_far] ** 2).tolist())),
        uncertainties=tuple(
            PhaseUncertainty(phase=phase, spread_ratio=float(np.hypot(spreads[phase], extra)))
            for phase in ("decode", "prefill")
        ),
        box=file.box,
        trained_on=TrainedOn(
            run_ids=tuple(one.table for one in file.sources),
            hardware=_words(file, entry, hardware)
            + ("" if is_own else others_words(others))
            + ("; all-reduces over PCIe by its datasheet" if free else ""),
            attention_implementation=None,
            n_observations=n_rows,
            n_configurations=n_rows,
            is_drift_removed=False,
        ),
        held_out=entry.held_out,
        first_token_spread_ratio=entry.first_token_spread_ratio,
        front_end_s=_front_end(place.tolist(), n_rows),
        subject=replace(subject, transferred_from=_of_any_model(file, entry).carried_from),
        fastest=fastest_steps(hardware, engine),
        machine_ratio=others.spread_ratio,
    )


def devices_of(hardware: HardwareSpec) -> str:
    """Devices whose servers differ alike (``ServersOfOthers.devices``)."""
    if hardware.vendor == "amd":
        return "amd"
    if hardware.vendor != "nvidia" or hardware.memory_bytes_per_s.value < _HBM_BYTES_PER_S:
        return "other"
    return "blackwell" if hardware.is_blackwell else "nvidia"


def sort_of(model: ModelSpec, hardware: HardwareSpec, framework: str) -> SortOfServers:
    """Servers that differ alike from the rows: of such a model, device and engine."""
    return SortOfServers(devices_of(hardware), framework, model.moe is not None)


def servers_of_others(sort: SortOfServers) -> ServersOfOthers:
    """How servers of this sort that other people run differ."""
    return next(one for one in _servers() if one.sort == sort)


@lru_cache(maxsize=1)
def _servers() -> tuple[ServersOfOthers, ...]:
    return msgspec.json.decode(servers_file(), type=ServersFile).servers


def _is_of_engine(entry: Efficiency) -> bool:
    """Are there rows of the model by this engine, on whichever device and in whichever format?

    Then flags and kernels of the model are known. Were it by device or format, FP4 would be slower
    than FP8, or B300 than B200, for the rows of one of them alone.
    """
    by_another = (entry.carried_from or "").startswith(tuple(ENGINES.values()))
    return entry.model_id is not None and not by_another


def _slower(log_ratio: float) -> list[float]:
    """What the logarithms of the unknowns gain where steps take longer by this ratio."""
    return [
        0.0
        if name in OUTSIDE or not name.endswith("_s")
        else -log_ratio
        if name.endswith("_per_s")
        else log_ratio
        for name in UNKNOWNS
    ]


def others_words(others: ServersOfOthers) -> str:
    """The factor of a model without rows by the engine, in words."""
    if others.slower_ratio == 1.0:
        return ""
    sort = " that share experts" if others.sort == SHARED else ""
    return (
        f"; steps {others.slower_ratio:g} times as long, by {others.n_sources} sources of other"
        f" people's servers{sort}"
    )


def _has_few_rows(entry: Efficiency, engine: EngineSpec, hardware: HardwareSpec) -> bool:
    """Are there hardly rows of kernels that unpack this format on devices like this one?"""
    weights = engine.quantization or engine.dtype
    is_unpacked = weights == "float4" and hardware.peak_flop_per_s("float4") is None
    return weights in _FEW_ROWS_OF or (is_unpacked and entry.n_rows == 0)


def _parameters(place: list[float], n_rows: int) -> tuple[FittedParameter, ...]:
    return tuple(
        FittedParameter(
            name=name,
            estimate=parameter_estimate(name, value, 0.0, n_samples=n_rows, method=_METHOD),
            informed_by="data and prior",
        )
        for name, value in zip(PARAMETERS, place, strict=False)
    )


def _front_end(place: list[float], n_rows: int) -> Estimate:
    """Time of a request of usual length outside of the engine."""
    front_end_s, token_s = (
        float(np.exp(place[UNKNOWNS.index(name)])) for name in ("front_end_s", "prompt_token_s")
    )
    value = front_end_s + _FRONT_END_TOKENS * token_s
    return Estimate(
        value=value,
        low=value / _FRONT_END_RATIO,
        high=value * _FRONT_END_RATIO,
        confidence_fraction=0.9,
        n_samples=n_rows,
        method=_METHOD,
    )


def _of_any_model(file: EfficiencyFile, entry: Efficiency) -> Efficiency:
    """The rows of all models of this kind by the engine, in this format if there are such."""
    return max(
        (
            one
            for one in file.efficiencies
            if one.model_id is None and (one.engine, one.is_moe) == (entry.engine, entry.is_moe)
        ),
        key=lambda one: one.precision == entry.precision,
    )


def _words(file: EfficiencyFile, entry: Efficiency, hardware: HardwareSpec) -> str:
    """Source and number of the rows, with their held-out error, in words."""
    engine, told_by = ENGINES[entry.engine], entry.carried_from
    here, of_any = f"{engine} on {hardware.name}", _of_any_model(file, entry)
    more = ""
    if entry.model_id is not None and told_by is not None:
        by = told_by if " on " in told_by else f"{engine} on {told_by}"
        more = f", and of {entry.model_id} by {by}"
    whose = (
        f"{entry.n_rows} published rows of {entry.model_id} by {here}"
        if entry.model_id is not None and not more
        else f"{of_any.n_rows} published rows of other models by {here}{more}"
        if of_any.n_rows
        else f"published rows of {of_any.carried_from}{more}, none by {here}"
    )
    errors = ", ".join(
        f"{name} {one.median_fraction:.0%}"
        for name, one in zip(("TPOT", "TTFT"), entry.held_out, strict=False)
    )
    return f"{whose} (fitted {file.fitted}; median error of rows left out: {errors})"

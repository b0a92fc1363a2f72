"""Which replicas can be bought and set up: devices, how many to a replica, number formats, and the engine's knobs?"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from inferometer.errors import SpecError
from inferometer.perfmodel.steptime_levels import StepTimes, datasheet_levels
from inferometer.simulate.deployment import Deployment, Knobs, deploy
from inferometer.simulate.serving_config import check_knob
from inferometer.spec.prices import OwnedPrice
from inferometer.spec.types import Constant, DType, EngineSpec, HardwareSpec, ModelSpec, PriceSpec

DEFAULT_TP: Final = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A device and what it costs; None where nobody says."""

    hardware: HardwareSpec
    price: PriceSpec | None
    """Of the rent."""
    owned: OwnedPrice | None = None
    power: Constant | None = None
    """Of one device at work, as somebody measured it (W); None: that of the datasheet, which is an upper bound."""
    step_times: StepTimes | None = None
    """Fitted ones; None: those of the datasheet. They hold for one number format and number of devices."""

    @property
    def usd_per_hour(self) -> float | None:
        """The lower of rent and ownership."""
        return min((one.usd_per_hour for one in (self.price, self.owned) if one is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is tried on each device: all combinations."""

    tensor_parallel_sizes: tuple[int, ...] = DEFAULT_TP
    dtype: DType = "bfloat16"
    quantizations: tuple[DType | None, ...] = (None,)
    kv_cache_dtypes: tuple[DType | None, ...] = (None,)
    max_num_seqs: tuple[int, ...] = (256,)
    max_num_batched_tokens: tuple[int, ...] = (2048, 8192)
    policy: str = "vllm"
    own: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Other knobs under the engine's own names, with the values to try of each."""
    utilization_fraction: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One kind of replica."""

    offer: Offer
    deployment: Deployment
    own: tuple[tuple[str, str], ...] = ()
    """The engine's other knobs that were set."""

    @property
    def n_devices(self) -> int:
        """To a replica."""
        return self.deployment.engine.tensor_parallel_size

    @property
    def usd_per_hour(self) -> float | None:
        """Of a replica."""
        return None if self.offer.usd_per_hour is None else self.offer.usd_per_hour * self.n_devices

    @property
    def layout(self) -> str:
        """How is a replica set up, shortly?"""
        engine, config = self.deployment.engine, self.deployment.config
        formats = [engine.dtype if engine.quantization is None else f"{engine.quantization} weights"]
        formats += [f"{engine.kv_cache_dtype} KV"] if engine.kv_cache_dtype is not None else []
        others = "".join(f", {name} {value}" for name, value in self.own)
        return f"TP{engine.tensor_parallel_size} {', '.join(formats)}, {config.max_num_active} seats{others}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A kind of replica that cannot be, and why."""

    hardware: str
    tensor_parallel_size: int
    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What can be, and what cannot."""

    possible: tuple[Candidate, ...]
    refused: tuple[Refusal, ...]


def candidates_of(model: ModelSpec, offers: Sequence[Offer], grid: Grid) -> Candidates:
    """All replicas of the grid on all devices on offer; those that cannot be are named with the reason.

    Raises
    ------
    SpecError
        The engine has no knob of such a name.
    """
    for name, _ in grid.own:
        check_knob(grid.policy, name, where="--set")
    possible, refused = list[Candidate](), list[Refusal]()
    for offer in offers:
        for engine in _engines(offer, grid):
            for knobs in _knobs(grid):
                made = _candidate(model, offer, engine, knobs)
                if isinstance(made, Candidate):
                    possible.append(made)
                elif made not in refused:
                    refused.append(made)
    return Candidates(possible=tuple(possible), refused=tuple(refused))


def _engines(offer: Offer, grid: Grid) -> list[EngineSpec]:
    if offer.step_times is not None:
        return [offer.step_times.engine]
    is_cpu = offer.hardware.kind == "cpu"
    return [
        EngineSpec(
            dtype="float32" if is_cpu else grid.dtype,
            quantization=quantization,
            kv_cache_dtype=kv_dtype,
            device="cpu" if is_cpu else "cuda",
            tensor_parallel_size=tp,
        )
        for tp, quantization, kv_dtype in product(grid.tensor_parallel_sizes, grid.quantizations, grid.kv_cache_dtypes)
    ]


def _knobs(grid: Grid) -> list[Knobs]:
    others = [dict(zip((name for name, _ in grid.own), chosen, strict=True)) for chosen in product(*(values for _, values in grid.own))]
    return [
        Knobs(
            policy=grid.policy,
            shared={"max_num_seqs": seats, "max_num_batched_tokens": max(step_tokens, seats)},
            own=own,
            utilization_fraction=grid.utilization_fraction,
        )
        for seats, step_tokens, own in product(grid.max_num_seqs, grid.max_num_batched_tokens, others)
    ]


def _candidate(model: ModelSpec, offer: Offer, engine: EngineSpec, knobs: Knobs) -> Candidate | Refusal:
    """The replica, or why it cannot be."""
    tp = engine.tensor_parallel_size
    what = f"{engine.quantization or engine.dtype} on {tp} x {offer.hardware.name}"
    if model.attention.n_heads % tp:
        return Refusal(
            hardware=offer.hardware.name, tensor_parallel_size=tp, what=what, why=f"{model.attention.n_heads} heads are not divided by {tp}"
        )
    try:
        step_times = offer.step_times or datasheet_levels(model, engine, offer.hardware)
        deployment = deploy(model, engine, offer.hardware, step_times, knobs)
        return Candidate(offer=offer, deployment=deployment, own=tuple(knobs.own.items()))
    except SpecError as error:
        return Refusal(hardware=offer.hardware.name, tensor_parallel_size=tp, what=what, why=error.what)


__all__ = ["DEFAULT_TP", "Candidate", "Candidates", "Grid", "Offer", "Refusal", "candidates_of"]

"""Which replicas and fleets does a sizing try: devices, number formats, knobs, number of replicas?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Final, NamedTuple, Protocol

from inferometer.errors import SpecError, TooLargeError
from inferometer.fit.published.efficiencies import known_levels
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.prices import OwnedPrice
from inferometer.inputs.types import Constant, DType, EngineSpec, HardwareSpec, ModelSpec, PriceSpec
from inferometer.perfmodel.roofline import usual_kv_dtype
from inferometer.perfmodel.steptime_levels import StepTimes, launched_singly
from inferometer.perfmodel.weights import splits_heads, undivided_heads
from inferometer.perfmodel.whatif import Draft
from inferometer.simulate import prefill_pool as pools
from inferometer.simulate.deployment import Case, Deployment, Knobs, deploy, requested_plan
from inferometer.simulate.drafts import draft_settings
from inferometer.simulate.engine_config import check_knob
from inferometer.simulate.fleet import ClusterConfig, Fleet, Router

DEFAULT_TP: Final = (1, 2, 4, 8)


class Prepared(NamedTuple):
    """A replica as it runs in a fleet."""

    deployment: Deployment
    n_devices_beside: int
    """Devices of the replicas that compute its prompts."""


class Fleets(Protocol):
    """Settings of every fleet that is tried; ``api.fleet.Fleets`` makes it of a user's options."""

    @property
    def router(self) -> Router:
        """The router in front of the replicas."""
        ...

    @property
    def gate(self) -> GateSpec | None:
        """The gate in front of the engines."""
        ...

    @property
    def n_replicas(self) -> int | None:
        """Fixed number of replicas; None where it is searched."""
        ...

    @property
    def n_prefill(self) -> int:
        """Replicas that compute prompts alone, besides ``n_replicas``."""
        ...

    @property
    def is_plain(self) -> bool:
        """Does a share of the replicas under its share of the load behave like the whole fleet?"""
        ...

    @property
    def can_lose_one(self) -> bool:
        """Do the other replicas go on when one dies?"""
        ...

    def prepared(self, deployment: Deployment) -> Prepared:
        """The replica as it runs in these fleets; SpecError where it cannot."""
        ...

    def fleet(
        self, deployment: Deployment, case: Case, n_replicas: int, n_prefill: int | None = None
    ) -> Fleet:
        """The fleet to simulate: this number of replicas on one plausible server."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Equal replicas behind a router, and nothing else."""

    router: Router = "least-loaded"
    gate: GateSpec | None = None
    n_replicas: int | None = None
    n_prefill: int = 0
    is_plain: bool = True
    can_lose_one: bool = True

    def prepared(self, deployment: Deployment) -> Prepared:
        """The replica, unchanged."""
        return Prepared(deployment, 0)

    def fleet(
        self, deployment: Deployment, case: Case, n_replicas: int, n_prefill: int | None = None
    ) -> Fleet:
        """The fleet with this number of replicas; prefill replicas are unchanged."""
        known = deployment.at(case)
        is_lone = n_replicas == 1 and not n_prefill
        replicas = ClusterConfig(
            engine=known.config,
            n_replicas=n_replicas,
            # The router of one replica is never asked, and may be one that its engine refuses.
            router="round-robin" if is_lone else self.router,
        )
        fleet = Fleet(
            replicas=replicas,
            step_times=known.step_times.likely,
            front_end_s=known.front_end_s,
        )
        if not n_prefill:
            return fleet
        link, origin = pools.kv_link(known, known, pools.LinkAsked())
        prefill = replace(replicas, n_replicas=n_prefill)
        pool = pools.PrefillPool(deployment=known, cluster=prefill, link=link, link_origin=origin)
        return replace(fleet, prefill=pool.replicas)


_ALONE: Final = Alike()
NODE_DEVICES: Final = 8
"""Devices of a usual node (HGX or OAM board)."""
_STAGES_AS_NEEDED: Final = (1, 2, 4, 8)
_UNLESS_SAID: Final = {"trtllm": {"enable_chunked_prefill": "true"}}
"""Without it TensorRT-LLM wants steps as long as the longest context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A device and its price; None: the price is unknown."""

    hardware: HardwareSpec
    price: PriceSpec | None
    """Rent."""
    owned: OwnedPrice | None = None
    power: Constant | None = None
    """Measured power of a busy device (W); None: the datasheet's, an upper bound."""
    step_times: StepTimes | None = None
    """Fitted ones; None: those of published rows or the datasheet. They hold for one number format
    and number of devices."""
    is_datasheet: bool = False
    """Use the datasheet's step times even if rows were published?"""
    all_reduce_s: float | None = None
    """Latency of one all-reduce, where it is stated."""
    is_eager: bool = False
    """Without CUDA graphs?"""

    @property
    def usd_per_hour(self) -> float | None:
        """The lower of rent and ownership."""
        return min(
            (one.usd_per_hour for one in (self.price, self.owned) if one is not None), default=None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Settings to try on each device, in all combinations."""

    tensor_parallel_sizes: tuple[int, ...] = DEFAULT_TP
    pipeline_parallel_sizes: tuple[int, ...] | None = None
    """None: one stage, and more where the KV cache of fewer does not hold a context of the
    model's whole length."""
    dtype: DType | None = None
    """None: what is usual on the device."""
    quantizations: tuple[DType | None, ...] = (None,)
    kv_cache_dtypes: tuple[DType | None, ...] = (None,)
    max_num_seqs: tuple[int, ...] = (256,)
    max_num_batched_tokens: tuple[int, ...] = (2048, 8192)
    policy: str = "vllm"
    own: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Other knobs under the engine's own names, with the values to try of each."""
    utilization_fraction: float | None = None
    """None: the engine's default."""
    shared: tuple[tuple[str, int], ...] = ()
    """Settings that all of them have, under vLLM's names."""
    data_parallel_size: int = 1
    draft: Draft | None = None
    """Speculation by a named method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One kind of replica."""

    offer: Offer
    deployment: Deployment
    own: tuple[tuple[str, str], ...] = ()
    """The engine's other knobs that were set."""
    n_devices_beside: int = 0
    """Devices of the prefill replicas."""

    @property
    def n_devices(self) -> int:
        """To a replica."""
        return self.deployment.n_devices

    def devices_of(self, n_replicas: int) -> int:
        """Devices of this number of replicas, with their prefill replicas."""
        return n_replicas * self.n_devices + self.n_devices_beside

    def usd_per_hour_of(self, n_replicas: int) -> float | None:
        """The price of the same."""
        each = self.offer.usd_per_hour
        return None if each is None else each * self.devices_of(n_replicas)

    @property
    def parallelism(self) -> str:
        """``TP8``, or with pipeline stages ``TP8 PP2``."""
        return self.deployment.parallelism

    @property
    def step_budget_tokens(self) -> int:
        """``max_num_batched_tokens`` of this replica."""
        return self.deployment.knobs.shared["max_num_batched_tokens"]

    @property
    def layout(self) -> str:
        """The replica's settings in short."""
        engine, config = self.deployment.engine, self.deployment.config
        formats = [
            engine.dtype if engine.quantization is None else f"{engine.quantization} weights"
        ]
        formats += [f"{engine.kv_cache_dtype} KV"] if engine.kv_cache_dtype is not None else []
        others = "".join(f", {name} {value}" for name, value in self.own)
        return (
            f"{self.parallelism} {', '.join(formats)}, max_num_seqs {config.max_num_active}{others}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A kind of replica that cannot be, and why."""

    hardware: str
    tensor_parallel_size: int
    what: str
    why: str
    is_too_large: bool = False
    """More devices would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Replicas that are possible, and refusals of those that are not."""

    possible: tuple[Candidate, ...]
    refused: tuple[Refusal, ...]


def candidates_of(
    model: ModelSpec, offers: Sequence[Offer], grid: Grid, fleets: Fleets = _ALONE
) -> Candidates:
    """All replicas of the grid on all devices; impossible ones are listed with the reason.

    Raises
    ------
    SpecError
        The engine has no setting of such a name.
    """
    for name, _ in grid.own:
        check_knob(grid.policy, name, where="--set")
    possible, refused = list[Candidate](), list[Refusal]()
    for offer in offers:
        for engine in _engines(offer, grid):
            # once for all settings of the engine: step times depend on none of them
            kind = _Kind(model, offer, engine, cache(partial(_levels, model, offer, engine, grid)))
            for knobs in _knobs(grid, _drafts(grid, model, engine, offer.hardware)):
                made = [
                    _in_fleet(one, fleets) if isinstance(one, Candidate) else one
                    for one in _on_stages(kind, knobs, grid)
                ]
                possible += [one for one in made if isinstance(one, Candidate)]
                refused += [one for one in made if isinstance(one, Refusal) and one not in refused]
    return Candidates(possible=tuple(possible), refused=tuple(refused))


class _Kind(NamedTuple):
    """Replicas that differ in their engine's settings alone."""

    model: ModelSpec
    offer: Offer
    engine: EngineSpec
    levels: Callable[[], StepTimes]
    """Their step times."""


def _levels(model: ModelSpec, offer: Offer, engine: EngineSpec, grid: Grid) -> StepTimes:
    """The step times of a fit, else of published rows or a datasheet.

    Raises
    ------
    SpecError, TooLargeError
        The engine cannot run the model on such devices.
    """
    found = offer.step_times or known_levels(
        model,
        engine,
        offer.hardware,
        framework=grid.policy,
        n_sharing=grid.data_parallel_size,
        is_datasheet=offer.is_datasheet,
        all_reduce_s=offer.all_reduce_s,
    )
    is_eager = offer.is_eager and offer.hardware.kind != "cpu"
    return launched_singly(found, model) if is_eager else found


def _on_stages(kind: _Kind, knobs: Knobs, grid: Grid) -> list[Candidate | Refusal]:
    """The replica on each number of pipeline stages; the refusal of the most where none can be."""
    if grid.pipeline_parallel_sizes is not None:
        sizes = grid.pipeline_parallel_sizes
        return [_candidate(kind, _piped(knobs, n_stages)) for n_stages in sizes]
    made = list[Candidate | Refusal]()
    for n_stages in (
        _STAGES_AS_NEEDED if grid.policy == "vllm" and kind.offer.hardware.kind != "cpu" else (1,)
    ):
        made.append(_candidate(kind, _piped(knobs, n_stages)))
        if not _is_cramped(made[-1]):
            break
    return [one for one in made if isinstance(one, Candidate)] or made[-1:]


def _is_cramped(made: Candidate | Refusal) -> bool:
    """Would more pipeline stages allow longer contexts?"""
    if isinstance(made, Refusal):
        return made.is_too_large
    asked = made.deployment
    return (
        "max_model_len" not in asked.knobs.own
        and asked.config.max_model_len < asked.model.max_position_tokens
    )


def _piped(knobs: Knobs, n_stages: int) -> Knobs:
    return (
        knobs
        if n_stages == 1
        else replace(knobs, shared={**knobs.shared, "pipeline_parallel_size": n_stages})
    )


def _engines(offer: Offer, grid: Grid) -> list[EngineSpec]:
    if offer.step_times is not None:
        return [offer.step_times.engine]
    is_cpu = offer.hardware.kind == "cpu"
    engines = (
        EngineSpec(
            engine="vllm",
            dtype=offer.hardware.usual_dtype if is_cpu or grid.dtype is None else grid.dtype,
            quantization=quantization,
            kv_cache_dtype=kv_dtype or usual_kv_dtype(grid.policy, quantization),
            device="cpu" if is_cpu else "cuda",
            tensor_parallel_size=tp,
        )
        for tp, quantization, kv_dtype in product(
            grid.tensor_parallel_sizes, grid.quantizations, grid.kv_cache_dtypes
        )
    )
    return list(dict.fromkeys(engines))


def _drafts(
    grid: Grid, model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec
) -> dict[str, str]:
    """Settings of the scheduler for the grid's speculation; none without one."""
    if grid.draft is None:
        return {}
    return draft_settings(grid.draft, model, engine, hardware, grid.policy)


def _knobs(grid: Grid, drafts: dict[str, str]) -> list[Knobs]:
    others = [
        _UNLESS_SAID.get(grid.policy, {})
        | drafts
        | dict(zip((name for name, _ in grid.own), chosen, strict=True))
        for chosen in product(*(values for _, values in grid.own))
    ]
    return [
        Knobs(
            policy=grid.policy,
            shared={
                **dict(grid.shared),
                "max_num_seqs": max_num_seqs,
                "max_num_batched_tokens": max(step_tokens, max_num_seqs),
            },
            own=own,
            utilization_fraction=grid.utilization_fraction,
            data_parallel_size=grid.data_parallel_size,
        )
        for max_num_seqs, step_tokens, own in product(
            grid.max_num_seqs, grid.max_num_batched_tokens, others
        )
    ]


def _candidate(kind: _Kind, knobs: Knobs) -> Candidate | Refusal:
    """The replica, or why it cannot be."""
    model, offer, engine, levels = kind
    tp = engine.tensor_parallel_size

    def refusal(why: str, *, is_too_large: bool = False) -> Refusal:
        n_devices = requested_plan(engine, knobs).n_devices
        return _refusal(offer, engine, n_devices, why, is_too_large=is_too_large)

    if not splits_heads(model, tp):
        heads = undivided_heads(model, tp)
        return refusal(f"tensor parallelism does not divide its {heads}")
    try:
        deployment = deploy(model, engine, offer.hardware, levels(), knobs)
        return Candidate(offer=offer, deployment=deployment, own=tuple(knobs.own.items()))
    except TooLargeError as error:
        return refusal(f"{error.what}; try {error.try_}", is_too_large=True)
    except SpecError as error:
        return refusal(_why(error))


def _in_fleet(alone: Candidate, fleets: Fleets) -> Candidate | Refusal:
    """The replica as it runs in a fleet, or why it cannot."""
    try:
        deployment, n_devices_beside = fleets.prepared(alone.deployment)
    except SpecError as error:
        return _refusal(alone.offer, alone.deployment.engine, alone.n_devices, _why(error))
    return replace(alone, deployment=deployment, n_devices_beside=n_devices_beside)


def _refusal(
    offer: Offer, engine: EngineSpec, n_devices: int, why: str, *, is_too_large: bool = False
) -> Refusal:
    name = offer.hardware.name
    return Refusal(
        hardware=name,
        tensor_parallel_size=engine.tensor_parallel_size,
        what=f"{engine.quantization or engine.dtype} on {n_devices} x {name}",
        why=why,
        is_too_large=is_too_large,
    )


def _why(error: SpecError) -> str:
    return error.what if error.allowed is None else f"{error.what}, allowed: {error.allowed}"

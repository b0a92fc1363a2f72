"""Types: a step (its shape, its work, its bounds), and the subject of a fit.

Every fit stores its subject. A question that uses a fit is compared with it, so that no fit
is used for another device, model, format, number of devices or engine.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from inferometer.errors import OutOfRangeError, SpecError
from inferometer.inputs import catalog
from inferometer.inputs.types import DType, EngineSpec, HardwareSpec, ModelSpec, Source
from inferometer.stats.estimate import Estimate

Basis: TypeAlias = Literal["fitted", "published", "datasheet"]
"""Source of step times: the user's fit, the package's fit of published rows, or a datasheet."""
_WEAKEST_LAST: Final[tuple[Basis, ...]] = get_args(Basis)

Limit: TypeAlias = Literal[
    "weight bandwidth",
    "KV bandwidth",
    "compute",
    "attention",
    "launch overhead",
    "communication",
    "undecided",
]
"""What can limit a step, in the words of the reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """The counts of a step on which its predicted time depends (sufficient statistics).

    One prefilling request with q new tokens after c cached ones contributes q to ``prefill_tokens``
    and q·(c + (q + 1)/2) to ``prefill_context_product_tokens2``; one decoding request with context
    L (its new token included) adds L to ``decode_context_tokens``.
    """

    n_prefill_requests: int
    n_decode_requests: int
    prefill_tokens: int
    prefill_context_product_tokens2: int
    decode_context_tokens: int
    n_logit_positions: int
    """Positions for which logits are computed: the number of requests, unless an engine computes
    all of a prompt."""

    @property
    def n_rows(self) -> int:
        """Rows of every matrix product of the layers: the step's new tokens."""
        return self.prefill_tokens + self.n_decode_requests


def prefill_shape(*, batch_size: int, prompt_tokens: int, cached_tokens: int = 0) -> BatchShape:
    """A step that prefills ``batch_size`` equal prompts, ``cached_tokens`` of each cached."""
    new_tokens = prompt_tokens - cached_tokens
    product_tokens2 = new_tokens * cached_tokens + new_tokens * (new_tokens + 1) // 2
    return BatchShape(
        n_prefill_requests=batch_size,
        n_decode_requests=0,
        prefill_tokens=batch_size * new_tokens,
        prefill_context_product_tokens2=batch_size * product_tokens2,
        decode_context_tokens=0,
        n_logit_positions=batch_size,
    )


def decode_shape(*, batch_size: int, context_tokens: int) -> BatchShape:
    """A step that decodes ``batch_size`` equal sequences; contexts include the new token."""
    return BatchShape(
        n_prefill_requests=0,
        n_decode_requests=batch_size,
        prefill_tokens=0,
        prefill_context_product_tokens2=0,
        decode_context_tokens=batch_size * context_tokens,
        n_logit_positions=batch_size,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """FLOP and bytes of a step on one device."""

    matmul_flop: float
    attention_flop: float
    logits_flop: float
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    activation_bytes: float
    link_bytes: float
    """Bytes that one device sends for tensor, pipeline and expert parallelism."""
    n_link_messages: int

    @property
    def total_flop(self) -> float:
        """All floating-point operations of the step."""
        return self.matmul_flop + self.attention_flop + self.logits_flop

    @property
    def memory_bytes(self) -> float:
        """All bytes that are read from or written to device memory."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBound:
    """Times of compute, memory and link traffic, which bound a step's time."""

    compute_s: float
    memory_s: float
    link_s: float
    bound_by: Literal["compute", "memory", "link"]

    @property
    def lower_s(self) -> float:
        """Lower bound: the longest of the three times, everything else overlapping."""
        return max(self.compute_s, self.memory_s, self.link_s)

    @property
    def upper_s(self) -> float:
        """Upper bound: the sum of the three times, without overlap."""
        return self.compute_s + self.memory_s + self.link_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One part of a step's time."""

    name: str
    """launch, weights, kv, matmul, attention, logits, per_sequence, communication, unexplained."""
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """Duration of a step, its parts, its limit, and whether it is inside the fit's valid box."""

    duration_s: Estimate
    terms: tuple[Term, ...]
    """Parts that sum to ``duration_s.value``."""
    limited_by: Limit
    is_inside_box: bool
    outside_why: str | None
    """Which quantities are outside their ranges, if ``is_inside_box`` is False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFormat:
    """How a quantised matrix is stored.

    Each weight has ``value_bits``; each group of weights has a scale and a zero point.
    """

    value_bits: int
    group_size: int
    scale_bits: int
    zero_bits: int
    source: Source

    @property
    def weight_bits(self) -> float:
        """Bits per weight, scales and zero points included."""
        return self.value_bits + (self.scale_bits + self.zero_bits) / self.group_size


STORED_FORMATS: Final[dict[DType, StoredFormat]] = {
    "int4": StoredFormat(
        value_bits=4,
        group_size=128,
        scale_bits=16,
        zero_bits=4,
        source=Source(
            kind="page",
            where="arXiv 2306.00978 (AWQ): groups of 128, 16-bit scale, 4-bit zero point",
        ),
    ),
    "float4": StoredFormat(
        value_bits=4,
        group_size=32,
        scale_bits=8,
        zero_bits=0,
        source=Source(
            kind="page",
            where="OCP Microscaling Formats v1.0: MXFP4, blocks of 32 with an 8-bit scale",
        ),
    ),
    "int8": StoredFormat(
        value_bits=8,
        group_size=128,
        scale_bits=16,
        zero_bits=0,
        source=Source(
            kind="derived",
            where=(
                "a 16-bit scale for each 128 weights: an upper figure, per-channel scales cost less"
            ),
        ),
    ),
    "float8": StoredFormat(
        value_bits=8,
        group_size=128 * 128,
        scale_bits=32,
        zero_bits=0,
        source=Source(
            kind="page",
            where=(
                "arXiv 2412.19437 section 3.3 (DeepSeek-V3): blocks of 128 x 128 with a 32-bit"
                " scale"
            ),
        ),
    ),
}


ASKED_FORMATS: Final[dict[DType, StoredFormat]] = {
    **STORED_FORMATS,
    "float4": replace(
        STORED_FORMATS["float4"],
        group_size=16,
        source=Source(
            kind="page", where="NVIDIA, Introducing NVFP4: blocks of 16 with an 8-bit scale"
        ),
    ),
}
"""The same of models that are quantised to the format, where the checkpoint is in another."""


_WITH_SCHEDULER: Final = frozenset({"vllm", "sglang", "trtllm"})
"""Engines whose own scheduler is simulated; other engines run batches that the client forms."""
_WORDS: Final = {
    "model": "model",
    "hardware": "device",
    "engine": "engine",
    "tp": "number of devices",
}
TRANSFERABLE: Final = frozenset(
    {"hardware", "tp", "model", "dtype", "kv_dtype", "quantization", "engine"}
)
"""Properties for which ``fit.published.transfer`` can transfer a fit to another value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSubject:
    """Engine, device and number formats for which a fit is valid; None: not stated."""

    hardware_id: str | None
    """The device's id in the catalogue; None if it is not there."""
    device: str | None
    """The device's name in the catalogue, or as the machine reports it."""
    engine: str | None
    """vllm, sglang, trtllm, transformers or openvino."""
    engine_version: str | None
    dtype: DType | None
    kv_cache_dtype: DType | None
    """None: the same as ``dtype``."""
    quantization: DType | None
    """Number format of the weights; None: the same as ``dtype``."""
    tensor_parallel_size: int | None
    machine: HardwareSpec | None = None
    """A device that the catalogue does not have, with the ceilings that the sweep measured."""
    transferred_from: str | None = None
    """The measured device, if the step times were transferred from another one."""
    reservation: str | None = None
    """Why the fit is less certain than one of measured steps; None: steps were measured."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the properties that are not stated, in words."""
        facts = {
            "device": self.device,
            "engine": self.engine,
            "number format": self.dtype,
            "number of devices": self.tensor_parallel_size,
        }
        return tuple(name for name, value in facts.items() if value is None)

    @property
    def hardware(self) -> HardwareSpec | None:
        """The device with its datasheet; None if it is not known."""
        return self.machine if self.hardware_id is None else catalog.find_hardware(self.hardware_id)

    @property
    def text(self) -> str:
        """The subject in words, such as ``vllm 0.32.0, bfloat16, 2 x NVIDIA H100 SXM5 80GB``."""
        version = "" if self.engine_version is None else f" {self.engine_version}"
        formats = [self.dtype or "format not stated"] + (
            [f"{self.quantization} weights"] if self.quantization else []
        )
        formats += (
            [f"{self.kv_cache_dtype} KV"] if self.kv_cache_dtype not in {None, self.dtype} else []
        )
        n_devices = "?" if self.tensor_parallel_size is None else self.tensor_parallel_size
        devices = f"{n_devices} x {self.device or 'a device not stated'}"
        if self.tensor_parallel_size is None and self.device is None:
            devices = "device not stated"
        return ", ".join((f"{self.engine or 'engine not stated'}{version}", *formats, devices))

    def with_engine(self, engine: EngineSpec) -> "FitSubject":
        """The subject with the number formats and the number of devices of these settings."""
        return replace(
            self,
            dtype=engine.dtype,
            kv_cache_dtype=engine.kv_cache_dtype,
            quantization=engine.quantization,
            tensor_parallel_size=engine.tensor_parallel_size,
        )

    @property
    def is_of_batches(self) -> bool:
        """Is the engine known to run batches that the client forms, without a scheduler?"""
        return self.engine is not None and self.engine not in _WITH_SCHEDULER

    def reservations(self, policy: str | None = None) -> tuple[str, ...]:
        """Sentences: why predictions are less certain than those from measured step times.

        The step times were transferred, the subject is not stated, or the simulated scheduler
        (``policy``) is not that of the fitted engine.
        """
        found = [] if self.reservation is None else [self.reservation]
        if self.transferred_from is not None:
            found.append(
                f"transferred from {self.transferred_from}: nothing was measured on"
                f" {self.tensor_parallel_size or 1} x {self.device}"
                f"{' for this model, format and engine' * (' on ' in self.transferred_from)}"
            )
        if self.missing:
            found.append(
                f"the fit does not state its {', '.join(self.missing)}, so it cannot be checked"
                " against what is asked"
            )
        if policy in _WITH_SCHEDULER and self.is_of_batches:
            found.append(
                f"the step times are those of {self.engine}, the scheduler is that of {policy},"
                " whose own step times differ"
            )
        return tuple(found)


NOTHING_STATED: Final = FitSubject(
    hardware_id=None,
    device=None,
    engine=None,
    engine_version=None,
    dtype=None,
    kv_cache_dtype=None,
    quantization=None,
    tensor_parallel_size=None,
)
"""Subject of fits from versions of this package that stored none."""


class FitQuestion(NamedTuple):
    """Model, engine and device for which a fit is to be used; None: as in the fit."""

    model: ModelSpec | None
    hardware: HardwareSpec | None
    flags: Mapping[str, object]
    """Given values of dtype, kv_dtype, quantization and tp; a tuple: any of its values."""
    policy: str | None = None
    """Scheduler (engine), if given."""
    policy_flag: str = "--policy"


class Difference(NamedTuple):
    """A difference between the question and the fit."""

    name: str
    flag: str
    fitted: str
    asked: str


def subject_of(
    engine: EngineSpec,
    hardware: HardwareSpec | None,
    *,
    device: str | None,
    name: str | None,
    version: str | None,
) -> FitSubject:
    """The subject of runs with known engine settings; ``name`` is the engine's."""
    is_known = hardware is not None and hardware in catalog.load_hardware()
    facts = replace(
        NOTHING_STATED,
        hardware_id=hardware.hardware_id if hardware is not None and is_known else None,
        device=device if hardware is None else hardware.name,
        engine=name,
        engine_version=version,
        machine=None if is_known else hardware,
    )
    return facts.with_engine(engine)


def known_device(name: str | None, engine: EngineSpec) -> HardwareSpec | None:
    """The catalogue's device with this name or id; None if there is none.

    CPUs report a family and no exact model, so their name must match exactly.
    """
    named = next(
        (one for one in catalog.load_hardware() if name in {one.hardware_id, one.name}), None
    )
    if named is not None or name is None or engine.device == "cpu":
        return named
    try:
        return catalog.find_hardware(name)
    except SpecError:
        return None


def differences(
    subject: FitSubject, fitted_model: ModelSpec | None, question: FitQuestion
) -> tuple[Difference, ...]:
    """All differences between question and fit in properties that the fit states."""
    found = list[Difference]()
    model, hardware = question.model, question.hardware
    if model is not None and fitted_model is not None and _shape(model) != _shape(fitted_model):
        found.append(Difference("model", "MODEL", fitted_model.model_id, model.model_id))
    if hardware is not None and not _is_device(subject, hardware):
        found.append(
            Difference(
                "hardware",
                "--hardware",
                subject.hardware_id or subject.device or "",
                hardware.hardware_id,
            )
        )
    formats: dict[str, object] = {"dtype": subject.dtype, "tp": subject.tensor_parallel_size}
    if subject.dtype is not None:
        formats |= {
            "kv_dtype": subject.kv_cache_dtype or subject.dtype,
            "quantization": subject.quantization or "none",
        }
    for name, value in formats.items():
        asked = question.flags.get(name)
        tried = asked if isinstance(asked, tuple) else (asked,)
        if value is not None and asked is not None and value not in tried:
            found.append(
                Difference(
                    name, f"--{name.replace('_', '-')}", str(value), ",".join(map(str, tried))
                )
            )
    if {question.policy, subject.engine} <= _WITH_SCHEDULER and question.policy != subject.engine:
        found.append(
            Difference("engine", question.policy_flag, str(subject.engine), str(question.policy))
        )
    return tuple(found)


class Refusal(NamedTuple):
    """Parts of the error text about a difference (``refuse``)."""

    where: str
    is_transfer: bool
    """Was a transfer requested?"""
    is_transferable: bool
    """Would a transfer be possible?"""
    measure: str
    """Commands that measure what the question needs."""


def refuse(differing: Difference, refusal: Refusal) -> None:
    """Raise the error that names a difference between question and fit.

    Raises
    ------
    SpecError, OutOfRangeError
        Always. SpecError: a flag contradicts the fit. OutOfRangeError: a transfer was requested
        that is impossible.
    """
    flag = differing.flag
    words = _WORDS.get(differing.name, "number format")
    same = (
        f"with {differing.fitted} for {differing.asked}"
        if differing.name == "model"
        else f"without {flag}"
    )
    what = f"the fit is of the {words} {differing.fitted}, not of {differing.asked}"
    allowed = f"{flag} {differing.fitted}"
    if refusal.is_transfer:
        raise OutOfRangeError(
            f"{what}, and cannot be transferred to another {words}",
            where=f"{refusal.where}, --transfer, {flag}",
            allowed=(
                f"{allowed}; fits of sweeps and published tables are transferred between GPUs"
                " (--hardware), their number (--tp), models, formats and engines"
            ),
            try_=f"the same command {same}; or measure {differing.asked}: {refusal.measure}",
        )
    carried = (
        ", or --transfer, which carries step times over and widens their intervals"
        if refusal.is_transferable
        else ""
    )
    raise SpecError(
        what,
        where=f"{refusal.where}, {flag}",
        allowed=f"{allowed}{carried}",
        try_=(
            f"the same command {same}{' or with --transfer' * refusal.is_transferable}; or measure"
            f" {differing.asked}: {refusal.measure}"
        ),
    )


def _is_device(subject: FitSubject, hardware: HardwareSpec) -> bool:
    """Is this the fitted device? True if the fit states none."""
    if subject.hardware_id is not None:
        return subject.hardware_id == hardware.hardware_id
    return (
        subject.device is None
        or hardware.name == subject.device
        or hardware.name.startswith(f"{subject.device} (")
    )


def _shape(model: ModelSpec) -> tuple[int, int, int]:
    return (model.n_layers, model.hidden_size, model.mlp.intermediate_size)


def weakest_basis(bases: Iterable[Basis]) -> Basis:
    """The least certain of several sources of step times.

    Example
    -------
    >>> weakest_basis(["published", "datasheet", "fitted"])
    'datasheet'
    """
    return max(bases, key=_WEAKEST_LAST.index)


def least_share(shares: Iterable[float | None]) -> float | None:
    """The least of several shares; None where one of them is not known.

    Example
    -------
    >>> least_share([0.4, 0.2]), least_share([0.4, None])
    (0.2, None)
    """
    known = list(shares)
    return None if None in known else min(one for one in known if one is not None)

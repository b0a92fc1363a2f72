"""What was fitted: model, format, device, number of devices, and engine.

Every fit carries it. Every question that names a fit is compared with it here, so that no fit
answers for another device, model, format, number of devices or engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from inferometer.errors import OutOfRangeError, SpecError
from inferometer.inputs import catalog
from inferometer.inputs.types import DType, EngineSpec, HardwareSpec, ModelSpec

_WITH_SCHEDULER: Final = frozenset({"vllm", "sglang", "trtllm"})
"""Engines whose own scheduler is simulated; the others run batches that a client forms."""
_WORDS: Final = {
    "model": "model",
    "hardware": "device",
    "engine": "engine",
    "tp": "number of devices",
}
TRANSFERABLE: Final = frozenset(
    {"hardware", "tp", "model", "dtype", "kv_dtype", "quantization", "engine"}
)
"""Properties that ``fit.published.transfer`` can change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSubject:
    """Model, engine, device and formats that a fit is of; None: not stated."""

    hardware_id: str | None
    """Id in the catalogue; None where it does not have the device."""
    device: str | None
    """Name, by the catalogue or the machine."""
    engine: str | None
    """vllm, sglang, trtllm, transformers or openvino."""
    engine_version: str | None
    dtype: DType | None
    kv_cache_dtype: DType | None
    """None where it is that of the activations."""
    quantization: DType | None
    """None where weights have the format of the activations."""
    tensor_parallel_size: int | None
    machine: HardwareSpec | None = None
    """A device that the catalogue does not have, with the ceilings that the sweep measured."""
    transferred_from: str | None = None
    """The measured device, where step times were carried over to another one."""
    reservation: str | None = None
    """Why it is less certain than measured steps, where no steps were measured."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Device, engine, number format or number of devices that are not stated."""
        facts = {
            "device": self.device,
            "engine": self.engine,
            "number format": self.dtype,
            "number of devices": self.tensor_parallel_size,
        }
        return tuple(name for name, value in facts.items() if value is None)

    @property
    def hardware(self) -> HardwareSpec | None:
        """The device, where enough is known of it to compute its memory."""
        return self.machine if self.hardware_id is None else catalog.find_hardware(self.hardware_id)

    @property
    def text(self) -> str:
        """``vllm 0.32.0, bfloat16, 2 x NVIDIA H100 SXM5 80GB``, with parts not stated named."""
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
        """The same with the number formats and the number of devices of these engine settings."""
        return replace(
            self,
            dtype=engine.dtype,
            kv_cache_dtype=engine.kv_cache_dtype,
            quantization=engine.quantization,
            tensor_parallel_size=engine.tensor_parallel_size,
        )

    @property
    def is_of_batches(self) -> bool:
        """Whether the engine is known to run the batches that a client forms, without a scheduler."""
        return self.engine is not None and self.engine not in _WITH_SCHEDULER

    def reservations(self, policy: str | None = None) -> tuple[str, ...]:
        """Why answers are less certain than from measured step times.

        They were carried over, their subject is not stated, or the engine's rules are another's.
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
"""Subject of fits by versions that did not store it."""


class FitQuestion(NamedTuple):
    """Model, engine and device of a question; None: as in the fit."""

    model: ModelSpec | None
    hardware: HardwareSpec | None
    flags: Mapping[str, object]
    """dtype, kv_dtype, quantization and tp, where they were given; a tuple of acceptable values."""
    policy: str | None = None
    """Scheduler, if given."""
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
    """The catalogue's device with this name.

    Processors report a family and no model, so for them only the exact name counts.
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
    """All differences between question and fit; what the fit does not state cannot differ."""
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
    """Parts of an error besides the difference."""

    where: str
    is_transfer: bool
    """A transfer was requested."""
    is_transferable: bool
    """Would a transfer have been possible?"""
    measure: str
    """The commands that would measure it."""


def refuse(differing: Difference, refusal: Refusal) -> None:
    """The error that names the difference.

    Raises
    ------
    SpecError, OutOfRangeError
        Always: a bad question where a flag contradicts the fit, out of range where a transfer was
        asked for that nobody can make.
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
    """Could this be the fitted device? If the fit does not state one, yes."""
    if subject.hardware_id is not None:
        return subject.hardware_id == hardware.hardware_id
    return (
        subject.device is None
        or hardware.name == subject.device
        or hardware.name.startswith(f"{subject.device} (")
    )


def _shape(model: ModelSpec) -> tuple[int, int, int]:
    return (model.n_layers, model.hidden_size, model.mlp.intermediate_size)

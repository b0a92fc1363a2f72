"""Which fit does ``--fit`` name, does it answer the question, and which device does a name mean?

The one door through which every verb reads a fit, of steps or of a server's load tests, and finds
its device.
"""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from inferometer.errors import SpecError
from inferometer.fit.loads.server_fit import ServerDraw, ServerFit, is_server_fit, load_server_fit
from inferometer.fit.published.transfer import Changed, transferred
from inferometer.inputs import resolve
from inferometer.inputs.catalog import find_hardware
from inferometer.inputs.types import (
    AskedFormat,
    AttentionSpec,
    Constant,
    DType,
    HardwareSpec,
    MlpSpec,
    ModelSpec,
    Source,
)
from inferometer.measure.this_machine import THIS_MACHINE, this_hardware
from inferometer.perfmodel import steptime
from inferometer.perfmodel.kv_cache import kv_groups
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.types import (
    NOTHING_STATED,
    TRANSFERABLE,
    FitQuestion,
    FitSubject,
    Refusal,
    differences,
    known_device,
    refuse,
    subject_of,
)
from inferometer.simulate.deployment import Deployment, Draw, Knobs, deploy
from inferometer.units import parse_bytes_per_s

_PCIE_BYTES_PER_S: Final = {"pcie3": 15.75e9, "pcie4": 31.5e9, "pcie5": 63e9}
"""16 lanes, one way."""
STATING_FLAGS: Final = ("dtype", "kv_dtype", "tp", "quantization")
_MEASURE_STEPS: Final = "inferometer sweep, then inferometer fit"
_MEASURE_SERVER: Final = "inferometer load, then inferometer fit --load"


class StepFit(NamedTuple):
    """Step times of a fit, for the device of the answer."""

    model: StepTimeModel
    hardware: HardwareSpec | None
    """The named device, else the fit's; None where neither is known."""


def check_transfer(*, is_transfer: bool, has_fit: bool) -> None:
    """Refuse a transfer of nothing."""
    if is_transfer and not has_fit:
        raise SpecError(
            "nothing to transfer",
            where="--transfer",
            allowed="with --fit",
            try_="the same command without --transfer",
        )


def is_server(path: Path | None) -> bool:
    """Is this a fit of load tests (None: no fit)?"""
    return path is not None and is_server_fit(path)


def question_of(
    flags: Mapping[str, object], model: ModelSpec | None, hardware: HardwareSpec | None
) -> FitQuestion:
    """The question of these flags; None: not given. ``size`` calls the policy its engine."""
    stated = {name: flags.get(name) for name in STATING_FLAGS}
    if "policy" not in flags and "engine" in flags:
        return FitQuestion(model, hardware, stated, str(flags["engine"]), "--engine")
    policy = flags.get("policy")
    return FitQuestion(model, hardware, stated, None if policy is None else str(policy))


def step_fit(path: Path, question: FitQuestion, *, is_transfer: bool = False) -> StepFit:
    """The step times of the fit at ``path`` for the server in question.

    Raises
    ------
    ModelError, SpecError
        The fit cannot be read, or is one of load tests; it is one of another model or device
        about.
    OutOfRangeError
        A transfer was requested that is not possible.
    """
    where = f"--fit {shlex.quote(str(path))}"
    if is_server_fit(path):
        what = "a fit of load tests describes how a server answers, not how long a step of its model takes"
        raise SpecError(
            what,
            where=where,
            allowed="a fit of a sweep",
            try_="simulate or capacity, which take it",
        )
    fit = steptime.load_step_time_model(path)
    subject = fit.subject or _of_old_file(fit)
    fit = replace(fit, subject=subject)
    differing = differences(subject, fit.model, question)
    source = subject.hardware
    target = question.hardware or source
    are_gpus = all(device is not None and device.kind == "gpu" for device in (source, target))
    for one in differing:
        is_transferable = are_gpus and one.name in TRANSFERABLE
        if not (is_transfer and is_transferable):
            refuse(one, Refusal(where, is_transfer, is_transferable, _MEASURE_STEPS))
    if not differing or source is None or target is None:
        return StepFit(fit, target)
    other = {one.name: one.asked.partition(",")[0] for one in differing}
    changed = Changed(
        model=question.model if "model" in other else None,
        dtype=cast("DType | None", other.get("dtype")),
        kv_dtype=cast("DType | None", other.get("kv_dtype")),
        quantization=cast("AskedFormat | None", other.get("quantization")),
        framework=other.get("engine"),
    )
    n_tensor = int(other.get("tp", fit.engine.tensor_parallel_size))
    carried = transferred(fit, source, target, n_tensor=n_tensor, changed=changed)
    return StepFit(carried, target)


def server_fit(path: Path, question: FitQuestion, *, is_transfer: bool = False) -> ServerFit:
    """The fitted server at ``path``.

    Raises
    ------
    ModelError, SpecError
        The fit cannot be read, or is one of another server.
    OutOfRangeError
        A transfer was requested: limits of a server are those of its device.
    """
    fit, where = load_server_fit(path), f"--fit {shlex.quote(str(path))}"
    for one in differences(fit.subject or NOTHING_STATED, fit.model, question):
        refuse(one, Refusal(where, is_transfer, is_transferable=False, measure=_MEASURE_SERVER))
    return fit


def _of_old_file(fit: StepTimeModel) -> FitSubject:
    """Subject of a fit in a file of an older version, which does not name it.

    Number formats, the number of devices, and mostly the device by its name.
    """
    name = fit.trained_on.hardware
    hardware = known_device(name, fit.engine) or known_device(
        (name or "").rpartition(" (")[0] or None, fit.engine
    )
    return subject_of(fit.engine, hardware, device=name, name=None, version=None)


_SWITCHES: Final = ("enable_chunked_prefill", "enable_prefix_caching", "async_scheduling")
_FAR_TOKENS: Final = 2**20


def server_deployment(
    path: Path, name: str, requested: Mapping[str, Any], hardware: HardwareSpec | None, knobs: Knobs
) -> Deployment:
    """The replica by the fit at ``path``; settings in ``knobs`` override the fit.

    ``name`` is the model: as the server calls it, or one of the catalogue. ``hardware`` None: the
    fit's device.

    Raises
    ------
    ModelError, SpecError
        The fit cannot be read, is one of another model, or a flag asks for other step times than it
        has.
    """
    fit = load_server(path, name, requested, hardware)
    stated = fit.subject or NOTHING_STATED
    known = {
        "dtype": stated.dtype,
        "kv_dtype": stated.dtype,
        "quantization": stated.dtype,
        "tp": stated.tensor_parallel_size,
    }
    changed = next(
        (flag for flag in STATING_FLAGS if requested.get(flag) is not None and known[flag] is None),
        None,
    )
    if changed is not None:
        flag = f"--{changed.replace('_', '-')}"
        raise SpecError(
            f"{flag} {requested[changed]} changes the step times of a server that was fitted as it is",
            where=f"--fit, {flag}",
            try_="a fit of load tests of the changed server",
        )
    hardware = hardware or stated.hardware
    model, likely = fitted_model(fit, name), {knob.name: knob.value for knob in fit.knobs}
    most = max(model.max_position_tokens, fit.max_model_len)  # as long as it was seen to take
    model = replace(model, max_position_tokens=most)

    found = _every_knob(fit, knobs, likely, fit.max_model_len)
    deployed = deploy(model, fit.engine, hardware, fit.levels(), found)
    longest = max(fit.max_model_len, deployed.config.max_model_len)

    def drawn(draw: ServerDraw) -> Draw:
        one = deploy(
            *(model, fit.engine, hardware, fit.drawn_levels(draw)),
            _every_knob(fit, knobs, draw.knobs, longest),
        )
        return Draw(config=one.config, steps=one.step_times.likely, front_end_s=one.front_end_s)

    return replace(
        _with_front_end(deployed, fit, knobs), draws=tuple(drawn(draw) for draw in fit.draws)
    )


def load_server(
    path: Path, name: str, requested: Mapping[str, Any], hardware: HardwareSpec | None
) -> ServerFit:
    """The fit at ``path``, which must be one of the server in question."""
    served = load_server_fit(path).served_model
    model = None if name == served else resolve.resolve_model(name, load_format="dummy").spec
    question = question_of(requested, model, hardware)
    return server_fit(path, question, is_transfer=requested.get("transfer") is True)


def fitted_model(fit: ServerFit, name: str) -> ModelSpec:
    """Model of the fit; or a placeholder of this name where it is unknown."""
    if name != fit.served_model:
        return resolve.resolve_model(name, load_format="dummy").spec
    return _nameless(fit) if fit.model is None else fit.model


def _every_knob(
    fit: ServerFit, knobs: Knobs, found: Mapping[str, int | bool], longest_tokens: int
) -> Knobs:
    """Settings from flags, else the values ``found`` by the fit.

    ``longest_tokens`` is the context that the server takes, also without chunked prefill: a draw
    differs in what the load tests leave open, not in the requests that it refuses.
    """
    if knobs.shared.get(
        "max_num_batched_tokens", fit.max_model_len
    ) < fit.max_model_len and fit.knob("enable_chunked_prefill"):
        # whatever the load tests leave open: vLLM does not start without it on such a budget
        found = {**found, "enable_chunked_prefill": True}
    shared, own = {**_limits(fit, knobs, found, longest_tokens), **knobs.shared}, dict(knobs.own)
    if knobs.policy == "vllm":
        switches = {switch: str(found[switch]) for switch in _SWITCHES}
        if fit.model is not None and kv_groups(fit.model).n_sliding:
            switches["sliding_window"] = "0"  # as load tests are fitted: blocks of whole contexts
        own = switches | own
    return replace(knobs, shared=_possible(shared, knobs.shared), own=own)


def _limits(
    fit: ServerFit, knobs: Knobs, found: Mapping[str, int | bool], longest_tokens: int
) -> dict[str, int]:
    limits = {name: int(found[name]) for name in ("max_num_seqs", "max_num_batched_tokens")}
    if not found["enable_chunked_prefill"]:
        limits["max_model_len"] = longest_tokens
        limits["max_num_batched_tokens"] = max(limits["max_num_batched_tokens"], longest_tokens)
    if "num_blocks" in knobs.own:
        return limits
    return limits | {"num_blocks": int(found["n_kv_blocks"]) + 1, "block_size": fit.block_tokens}


def _possible(limits: dict[str, int], given: Mapping[str, int]) -> dict[str, int]:
    """A step has a token for each sequence: a lower token budget lowers max_num_seqs, if not given."""
    if "max_num_seqs" in given:
        limits["max_num_batched_tokens"] = max(
            limits["max_num_batched_tokens"],
            given.get("max_num_batched_tokens", given["max_num_seqs"]),
        )
        return limits
    return limits | {"max_num_seqs": min(limits["max_num_seqs"], limits["max_num_batched_tokens"])}


def _with_front_end(deployment: Deployment, fit: ServerFit, knobs: Knobs) -> Deployment:
    text = next(knob.text for knob in fit.knobs if knob.name == "n_kv_blocks")
    origin = deployment.kv_origin if "num_blocks" in knobs.shared else f"as the fit says: {text}"
    return replace(deployment, front_end_s=fit.front_end_s, kv_origin=origin)


UNKNOWN_ARCHITECTURE: Final = "unknown"
"""A model of unknown shape: its memory and its bounds mean nothing."""


def _nameless(fit: ServerFit) -> ModelSpec:
    """A placeholder for a model that the catalogue does not know, under its served name."""
    return ModelSpec(
        model_id=fit.served_model,
        architecture=UNKNOWN_ARCHITECTURE,
        n_layers=1,
        hidden_size=1,
        vocab_size=1,
        max_position_tokens=_FAR_TOKENS,
        attention=AttentionSpec(n_heads=1, n_kv_heads=1, head_dim=1),
        mlp=MlpSpec(intermediate_size=1),
        source=Source(kind="measured", where="load tests, which do not tell a model's shape"),
        tie_word_embeddings=True,
    )


def device_named(name: str, link: str | None = None) -> HardwareSpec:
    """The catalogue's device of this name, or ``this`` machine; ``link`` joins several of them.

    Raises
    ------
    SpecError
        The catalogue does not know it, the ceilings of this machine cannot be measured, or the
        device has no such link.
    """
    return _with_link(this_hardware() if name == THIS_MACHINE else find_hardware(name), link)


def _with_link(hardware: HardwareSpec, link: str | None) -> HardwareSpec:
    """The device with this link; None: its own."""
    if link is None:
        return hardware
    if link == "nvlink":
        if hardware.link_bytes_per_s is None:
            raise SpecError(
                f"{hardware.name} has no link of its own in the catalogue",
                where="--link nvlink",
                allowed="pcie3, pcie4, pcie5, or a rate",
                try_="--link pcie4",
            )
        return hardware
    source = Source(kind="config", where=f"--link {link}")
    if link in _PCIE_BYTES_PER_S:
        rate = Constant(value=_PCIE_BYTES_PER_S[link], source=source)
        return replace(hardware, link_bytes_per_s=None, linked_devices=None, pcie_bytes_per_s=rate)
    rate = Constant(value=parse_bytes_per_s(link, where="--link"), source=source)
    return replace(hardware, link_bytes_per_s=rate, linked_devices=None)

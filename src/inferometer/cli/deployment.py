"""Which flags say what server is simulated, the same for every verb that simulates or emulates one?"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from inferometer.cli import named_fit, server_fits
from inferometer.cli.format_option import FORMAT, FORMAT_OR_NONE
from inferometer.errors import SpecError
from inferometer.perfmodel.steptime_levels import StepTimes, datasheet_levels, fitted_levels
from inferometer.simulate import serving_config
from inferometer.simulate.deployment import Deployment, Knobs, deploy
from inferometer.spec import catalog, resolve
from inferometer.spec.types import EngineSpec, HardwareSpec

_COUNT: Final = click.IntRange(min=1)
_SHARED: Final = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "block_size",
    "num_blocks",
)

_SHARING: Final = "data_parallel_size"
"""Of verbs that have it: it tells what is left of a device's memory."""

transfer_option: Final = click.option(
    "--transfer",
    is_flag=True,
    help="Carry the step times of --fit over to another device or --tp, with wider intervals.",
)
_OPTIONS: Final = (
    click.argument("model"),
    click.option(
        "--hardware",
        metavar="ID",
        help=(
            "A device of the catalogue: for memory, and for step times without --fit. [that of"
            " --fit]"
        ),
    ),
    click.option(
        "--fit",
        "fit_path",
        type=click.Path(path_type=Path),
        help=(
            "Of `inferometer fit`: its file, or the run's folder. One of --load brings the server's"
            " limits too."
        ),
    ),
    transfer_option,
    click.option(
        "--dtype", type=FORMAT, help="Of weights and activations. [that of --fit, else bfloat16]"
    ),
    click.option(
        "--kv-dtype",
        "--kv-cache-dtype",
        "kv_dtype",
        type=FORMAT,
        help="Of the KV cache. [as --dtype]",
    ),
    click.option(
        "--quantization", type=FORMAT_OR_NONE, help="Of weights alone. [as they were published]"
    ),
    click.option(
        "--tp",
        "--tensor-parallel-size",
        "tp",
        type=_COUNT,
        help="Tensor-parallel devices. [that of --fit, else 1]",
    ),
    click.option(
        "--policy",
        type=click.Choice(serving_config.ENGINE_NAMES),
        help="Whose scheduler decides. [that of --fit's engine, else vllm]",
    ),
    click.option(
        "--max-num-seqs",
        type=_COUNT,
        help="Seats: requests that run at once. [the engine's default]",
    ),
    click.option(
        "--max-num-batched-tokens",
        type=_COUNT,
        help="Tokens computed in a step. [the engine's default]",
    ),
    click.option(
        "--max-model-len",
        type=_COUNT,
        help="Prompt and output together. [what the model and the KV cache can hold]",
    ),
    click.option("--block-size", type=_COUNT, help="Tokens in a KV block. [the engine's default]"),
    click.option(
        "--num-blocks",
        type=_COUNT,
        help="KV blocks, as the server's log says. [reckoned from --hardware]",
    ),
    click.option(
        "--gpu-memory-utilization",
        type=float,
        default=Knobs().utilization_fraction,
        show_default=True,
        help="Share of memory given to the engine.",
    ),
    click.option(
        "--set",
        "own",
        multiple=True,
        metavar="NAME=VALUE",
        help="Another knob of the engine, under its own name; repeatable.",
    ),
)


def takes_deployment(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags that describe a server; the command gets ``deployment: Deployment``."""

    @functools.wraps(command)
    def with_deployment(**flags: object) -> None:
        names = (
            "model",
            "hardware",
            "fit_path",
            "transfer",
            "dtype",
            "kv_dtype",
            "quantization",
            "tp",
            "policy",
            "gpu_memory_utilization",
            "own",
        )
        asked = {name: flags.pop(name) for name in (*names, *_SHARED)}
        command(deployment=deployment_of(asked | {_SHARING: flags.get(_SHARING, 1)}), **flags)

    wrapped: Callable[..., None] = with_deployment
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def deployment_of(flags: Mapping[str, Any]) -> Deployment:
    """The server that these flags describe, all of which are there, None where nobody gave them.

    Raises
    ------
    SpecError, ModelError
        An unknown model or device, a fit that is another one's, a knob that cannot be, or no memory
        for a KV cache.
    """
    named_fit.check_transfer(
        is_transfer=flags.get("transfer") is True, has_fit=flags["fit_path"] is not None
    )
    hardware = catalog.find_hardware(flags["hardware"]) if flags["hardware"] else None
    if named_fit.is_server(flags["fit_path"]):
        return server_fits.server_deployment(
            flags["fit_path"], flags["model"], flags, _knobs(flags, None)
        )
    model = resolve.resolve_model(flags["model"], load_format="dummy")
    found = step_times_of(flags, model, hardware)
    return deploy(
        model.spec, found.times.engine, found.hardware, found.times, _knobs(flags, found.times)
    )


def _knobs(flags: Mapping[str, Any], times: StepTimes | None) -> Knobs:
    fitted_engine = None if times is None or times.subject is None else times.subject.engine
    return Knobs(
        policy=flags["policy"]
        or (fitted_engine if fitted_engine in serving_config.ENGINE_NAMES else Knobs().policy),
        shared={name: flags[name] for name in _SHARED if flags[name] is not None},
        own=dict(own_knob(text, where="--set") for text in flags["own"]),
        utilization_fraction=flags["gpu_memory_utilization"],
        data_parallel_size=flags.get(_SHARING, 1),
    )


class Steps(NamedTuple):
    """Step times, and the device that they are of; None where it is not known."""

    times: StepTimes
    hardware: HardwareSpec | None


def step_times_of(
    flags: Mapping[str, Any], model: resolve.ResolvedModel, hardware: HardwareSpec | None
) -> Steps:
    """How long do steps of this model take: as a fit says, else the datasheet of a device?

    Raises
    ------
    SpecError, ModelError
        Neither is named, or the fit is another one's.
    """
    if flags["fit_path"] is not None:
        question = named_fit.question_of(flags, model.spec, hardware)
        fit = named_fit.step_fit(
            flags["fit_path"], question, is_transfer=flags.get("transfer") is True
        )
        return Steps(fitted_levels(fit.model), fit.hardware)
    if hardware is not None:
        engine = EngineSpec(
            dtype=flags["dtype"] or ("float32" if hardware.kind == "cpu" else "bfloat16"),
            kv_cache_dtype=flags["kv_dtype"],
            quantization=model.quantization(flags["quantization"]),
            device="cpu" if hardware.kind == "cpu" else "cuda",
            tensor_parallel_size=flags["tp"] or 1,
        )
        return Steps(datasheet_levels(model.spec, engine, hardware), hardware)
    raise SpecError(
        "nothing says how long a step takes",
        where="--hardware, --fit",
        allowed="a device of the catalogue, or a fit",
        try_="--hardware h100_sxm",
    )


def own_knob(text: str, *, where: str) -> tuple[str, str]:
    """A knob and its value, of ``NAME=VALUE``.

    Raises
    ------
    SpecError
        It is not of that form.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise SpecError(
            f"{text!r} sets nothing",
            where=where,
            allowed="NAME=VALUE",
            try_=f"{where} policy=priority",
        )
    return name.strip(), value.strip()

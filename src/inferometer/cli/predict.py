"""inferometer predict: what would a model do on a device, from its datasheet or from a fitted model?"""

import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from inferometer.cli import named_fit, server_fits
from inferometer.cli.answer import give, json_option
from inferometer.cli.deployment import transfer_option
from inferometer.cli.format_option import FORMAT, FORMAT_OR_NONE
from inferometer.cli.predict_text import predict_text
from inferometer.cli.prediction import (
    FittedSpeeds,
    PredictAnswer,
    fitted_speeds,
    likely_changes,
    server_speeds,
    sparsity_gain,
)
from inferometer.errors import SizingError, SpecError
from inferometer.fit.loads.server_fit import ServerFit
from inferometer.measure.this_machine import this_hardware
from inferometer.perfmodel import communication, datasheet, memory
from inferometer.perfmodel.scenario import Scenario, Speculation
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.spec import catalog, resolve, types

ANSWER = PredictAnswer
_COUNT = click.IntRange(min=1)


@click.command(
    "predict",
    short_help="What would a model do on a device?",
    epilog="""\b
Examples:
  inferometer predict llama-3.1-8b --hardware h100_sxm --batch 32 --prompt 1024 --output 256
  inferometer predict smollm2-135m --hardware this --batch 4 --dtype float32
  inferometer predict llama-2-70b --hardware a100_80gb_sxm --tp 4 --quantization int8 --what-if

\b
With --fit device, number formats and number of devices are those of the fit, and others are refused:
  predict qwen2.5-0.5b --fit runs/example --batch 8
Another device is answered with --transfer: step times are carried over as far as published tables say that devices resemble one another.
""",
)
@click.argument("model")
@click.option(
    "--hardware",
    metavar="ID|this",
    help="A device of the catalogue, or this machine, probed now. [that of --fit]",
)
@click.option("--batch", type=_COUNT, default=1, show_default=True, help="Sequences at once.")
@click.option(
    "--prompt", type=_COUNT, default=512, show_default=True, help="Prompt tokens of each."
)
@click.option(
    "--output", type=_COUNT, default=128, show_default=True, help="Output tokens of each."
)
@click.option(
    "--dtype",
    type=FORMAT,
    help="Of weights and activations. Default: that of --fit, else bfloat16; float32 on a CPU.",
)
@click.option(
    "--kv-dtype",
    "--kv-cache-dtype",
    "kv_dtype",
    type=FORMAT,
    help="Of the KV cache. Default: as --dtype.",
)
@click.option(
    "--quantization", type=FORMAT_OR_NONE, help="Of weights alone. Default: as they were published."
)
@click.option(
    "--tp",
    "--tensor-parallel-size",
    "tp",
    type=_COUNT,
    help="Tensor-parallel devices. [that of --fit, else 1]",
)
@click.option(
    "--pp",
    "--pipeline-parallel-size",
    "pp",
    type=_COUNT,
    default=1,
    show_default=True,
    help="Pipeline-parallel stages.",
)
@click.option("--ep", is_flag=True, help="Experts spread over the tensor-parallel devices.")
@click.option(
    "--sparsity",
    is_flag=True,
    help="2:4 sparse weights: what they gain, and where the model newly fits.",
)
@click.option(
    "--speculative",
    metavar="K,ACCEPTANCE,COST",
    help="Draft K tokens; chance of each; a draft step's cost against a step.",
)
@click.option(
    "--prefix-hit",
    type=float,
    default=0.0,
    help="Share of each prompt that the prefix cache holds.",
)
@click.option(
    "--usd-per-hour", type=float, help="Price of one device. Default: the catalogue's first."
)
@click.option(
    "--gpu-memory-utilization",
    type=float,
    default=memory.DEFAULT_UTILIZATION.value,
    show_default=True,
    help="Share of memory given to the engine.",
)
@click.option(
    "--fit",
    "fit_file",
    type=click.Path(path_type=Path),
    help="Of `inferometer fit`: its file, or the run's folder.",
)
@transfer_option
@click.option("--what-if", is_flag=True, help="Add what the usual changes would gain.")
@json_option
def command(
    model: str, hardware: str | None, *, what_if: bool, as_json: bool, **flags: Any
) -> None:
    """What would MODEL do on a device: parameters, memory, largest batch, bounds, TTFT, TPOT, throughput, cost, energy?

    Answers say what they rest on: *datasheet*, *measured ceilings* (--hardware this) or *fitted*
    (--fit), always with an interval. Exit 6: it does not fit; the smallest --tp that does is named.
    """
    asked = _asked(model, hardware, flags)
    scenario = _scenario(asked, flags)
    sheet = datasheet.predict_scenario(
        scenario,
        price=_price(flags["usd_per_hour"]),
        utilization_fraction=flags["gpu_memory_utilization"],
    )
    fitted = _fitted(asked.fit, scenario)
    answer = PredictAnswer(
        basis=(
            "fitted"
            if fitted is not None
            else "measured ceilings"
            if hardware == "this"
            else "datasheet"
        ),
        datasheet=sheet,
        fitted=fitted,
        sparsity=sparsity_gain(scenario),
        what_ifs=likely_changes(scenario) if what_if else (),
        fewest_tensor_parallel=(
            None if sheet.sizes.memory.fits else _fewest_tensor_parallel(scenario, flags)
        ),
    )
    give(answer, as_json=as_json, show=predict_text)
    sys.exit(0 if sheet.sizes.memory.fits else SizingError.exit_code)


def _fewest_tensor_parallel(scenario: Scenario, flags: dict[str, Any]) -> int | None:
    question = datasheet.memory_question(
        scenario, utilization_fraction=flags["gpu_memory_utilization"]
    )
    return memory.fewest_tensor_parallel(
        question, lambda one: memory.memory_budget(one, scenario.batch_size).fits
    )


class _Asked(NamedTuple):
    model: types.ModelSpec
    engine: types.EngineSpec
    hardware: types.HardwareSpec
    fit: StepTimeModel | ServerFit | None


def _asked(name: str, hardware: str | None, flags: dict[str, Any]) -> _Asked:
    """What the flags say, and what the fit says of the rest."""
    device = (
        None
        if hardware is None
        else this_hardware()
        if hardware == "this"
        else catalog.find_hardware(hardware)
    )
    path = flags["fit_file"]
    named_fit.check_transfer(is_transfer=flags["transfer"], has_fit=path is not None)
    if path is None:
        if device is None:
            raise SpecError(
                "no device is named",
                where="--hardware",
                allowed="a device of the catalogue, this, or --fit",
                try_="--hardware h100_sxm",
            )
        found = resolve.resolve_model(name, load_format="dummy")
        return _Asked(found.spec, _engine(found, device, flags), device, None)
    _check_measured(flags)
    if named_fit.is_server(path):
        server = server_fits.load_server(
            path, name, flags | {"hardware": None if hardware == "this" else hardware}
        )
        return _Asked(
            server_fits.fitted_model(server, name),
            server.engine,
            _known(path, device or _device_of(server)),
            server,
        )
    model = resolve.resolve_model(name, load_format="dummy").spec
    fit = named_fit.step_fit(
        path, named_fit.question_of(flags, model, device), is_transfer=flags["transfer"]
    )
    return _Asked(model, fit.model.engine, _known(path, fit.hardware), fit.model)


def _device_of(server: ServerFit) -> types.HardwareSpec | None:
    return None if server.subject is None else server.subject.hardware


def _known(path: Path, device: types.HardwareSpec | None) -> types.HardwareSpec:
    if device is None:
        raise SpecError(
            "the fit does not say on which device it was measured",
            where=f"--fit {shlex.quote(str(path))}",
            allowed="with --hardware, or a fit that states its device",
            try_="--hardware h100_sxm",
        )
    return device


def _check_measured(flags: dict[str, Any]) -> None:
    """Refuse changes to an engine that was fitted as it is."""
    changes = {"--pp": flags["pp"] > 1, "--ep": flags["ep"], "--sparsity": flags["sparsity"]}
    changes |= {
        "--speculative": flags["speculative"] is not None,
        "--prefix-hit": flags["prefix_hit"] > 0,
    }
    changed = next((flag for flag, is_set in changes.items() if is_set), None)
    if changed is not None:
        raise SpecError(
            f"{changed} changes the steps that were fitted",
            where=f"--fit, {changed}",
            allowed="a batch on the engine as it was measured",
            try_=(
                f"the same command without {changed}, or without --fit, which the datasheet answers"
            ),
        )


def _fitted(fit: StepTimeModel | ServerFit | None, scenario: Scenario) -> FittedSpeeds | None:
    if fit is None:
        return None
    return (
        server_speeds(fit, scenario) if isinstance(fit, ServerFit) else fitted_speeds(fit, scenario)
    )


def _engine(
    model: resolve.ResolvedModel, device: types.HardwareSpec, flags: dict[str, Any]
) -> types.EngineSpec:
    return types.EngineSpec(
        dtype=flags["dtype"] or ("float32" if device.kind == "cpu" else "bfloat16"),
        kv_cache_dtype=flags["kv_dtype"],
        quantization=model.quantization(flags["quantization"]),
        device="cpu" if device.kind == "cpu" else "cuda",
        tensor_parallel_size=flags["tp"] or 1,
    )


def _scenario(asked: _Asked, flags: dict[str, Any]) -> Scenario:
    plan = communication.ParallelPlan(
        n_tensor=asked.engine.tensor_parallel_size,
        n_pipeline=flags["pp"],
        has_expert_parallelism=flags["ep"],
    )
    return Scenario(
        model=asked.model,
        engine=asked.engine,
        hardware=asked.hardware,
        batch_size=flags["batch"],
        prompt_tokens=flags["prompt"],
        output_tokens=flags["output"],
        plan=plan,
        is_sparse=flags["sparsity"],
        speculation=_speculation(flags["speculative"]),
        prefix_hit_fraction=flags["prefix_hit"],
    )


def _speculation(text: str | None) -> Speculation | None:
    if text is None:
        return None
    try:
        n_draft_tokens, acceptance, cost = text.split(",")
        return Speculation(
            n_draft_tokens=int(n_draft_tokens),
            acceptance_fraction=float(acceptance),
            draft_cost_ratio=float(cost),
        )
    except ValueError:
        raise SpecError(
            f"{text!r} is no speculation",
            where="--speculative",
            allowed="K,ACCEPTANCE,COST",
            try_="4,0.8,0.05",
        ) from None


def _price(usd_per_hour: float | None) -> types.PriceSpec | None:
    if usd_per_hour is None:
        return None
    if not 0 < usd_per_hour < float("inf"):
        raise SpecError(
            f"a price of {usd_per_hour:g} $ per hour",
            where="--usd-per-hour",
            allowed="above 0",
            try_="2.5",
        )
    source = types.Source(kind="config", where="--usd-per-hour")
    return types.PriceSpec(usd_per_hour=usd_per_hour, basis="as given", source=source)

"""inferometer size: what must be bought, and how set up, to keep a promise under some traffic?"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from inferometer.cli import (
    answer,
    decision_pages,
    deployment_folder,
    executor_options,
    named_fit,
    size_best_use,
    size_text,
    sized_folder,
    sizing_cautions,
    sizing_offers,
    sizing_over_time,
    terminal,
    time_limit,
)
from inferometer.cli.deployment import transfer_option
from inferometer.cli.format_option import FORMAT
from inferometer.cli.sizing import SizeAnswer, pick_of, size_answer
from inferometer.cli.sizing_question import Asked, asked_of, takes_promise
from inferometer.cli.workload_options import takes_workload
from inferometer.decide import candidates, failure, sizing, sizing_types
from inferometer.errors import SizingError, SpecError
from inferometer.spec import prices, resolve

ANSWER = SizeAnswer
_ENGINES: Final = ("vllm", "sglang", "trtllm")
_EXIT_CODES: Final = {"met": 0, "missed": 10, "undecided": 11}


@click.command(
    "size",
    short_help="What must be bought to keep a promise under some traffic?",
    epilog="""\b
Examples:
  inferometer size llama-3.1-8b --rate 20 --workload chat --slo 'ttft:p95<1s, tpot:p95<100ms' --gpus h100_sxm,l40s --tp 1,2
  inferometer size llama-3.1-8b --rate 2 --slo 'ttft:p95<2s' --gpus a100_80gb_sxm --tp 1 --quantization int4
  inferometer size llama-3.1-8b --total-gpus 2 --slo 'ttft:p95<1s, tpot:p95<50ms' --gpus h100_sxm

A trace (--workload FILE) or a workload with a profile is sized for its busiest window; then replicas come and go with it.
""",
)
@click.argument("model")
@takes_workload
@takes_promise
@click.option(
    "--gpus",
    required=True,
    metavar="IDS",
    help="Devices on offer, with commas between (inferometer catalog hardware).",
)
@click.option(
    "--fit",
    "fits",
    multiple=True,
    metavar="[ID=]FILE",
    help="Step times of `inferometer fit`, not the datasheet's; one for each format and TP.",
)
@transfer_option
@click.option(
    "--prices",
    "price_file",
    type=click.Path(path_type=Path),
    help="YAML of rents, bought devices, APIs. [the catalogue's rents]",
)
@click.option(
    "--engine",
    type=click.Choice(_ENGINES),
    default="vllm",
    show_default=True,
    help="Whose scheduler; --out writes vLLM's files.",
)
@click.option("--tp", default="1,2,4,8", show_default=True, help="Tensor-parallel sizes to try.")
@click.option(
    "--pp",
    metavar="SIZES",
    help=(
        "Pipeline stages to try, vLLM's. [1; more where the KV cache is too small for the model's"
        " contexts]"
    ),
)
@click.option(
    "--dtype",
    type=FORMAT,
    default="bfloat16",
    show_default=True,
    help="Of weights and activations.",
)
@click.option(
    "--quantization",
    metavar="FORMATS",
    help=(
        "Of weights, tried besides that in which they were published: float8,int4; none: as"
        " --dtype."
    ),
)
@click.option("--max-num-seqs", "seats", default="64,256", show_default=True, help="Seats to try.")
@click.option(
    "--max-num-batched-tokens",
    "step_tokens",
    default="2048,8192",
    show_default=True,
    help="Step budgets to try.",
)
@click.option(
    "--set",
    "own",
    multiple=True,
    metavar="NAME=VALUES",
    help="Values to try of another knob of the engine: enable_chunked_prefill=true,false.",
)
@click.option(
    "--probe-requests",
    type=click.IntRange(min=100),
    default=1000,
    show_default=True,
    help="Of a short simulation; long: 4 times.",
)
@click.option(
    "--total-gpus",
    type=click.IntRange(min=1, max=1024),
    help=(
        "I have this number of them: the layout that carries the most requests/s within the SLO, in"
        " the published format and in others."
    ),
)
@time_limit.time_limit_option("10s")
@decision_pages.report_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the files that run, watch and check the answer.",
)
@click.option("--force", is_flag=True, help="Over what is in --out.")
@executor_options.takes_executor("processes")
@answer.json_option
def command(
    model: str, workload: Any, where: executor_options.ExecutorChoice, **flags: Any
) -> None:
    """How many replicas of which kind meet the SLO for MODEL under this traffic, and what do they cost?

    Exit 0 met at fast, likely and slow step times, 11 undecided, 10 nothing on offer meets it, 6
    nothing on offer holds the model.
    """
    resolved = resolve.resolve_model(model, load_format="dummy")
    spec = resolved.spec
    asked = asked_of(workload, flags)
    table = None if flags["price_file"] is None else prices.read_prices(flags["price_file"])
    fits = [sizing_offers.fit_named(text) for text in flags["fits"]]
    if flags["out"] is not None:
        _check_is_deployed(flags["engine"])
        deployment_folder.check_free(flags["out"], is_forced=flags["force"])
    if flags["total_gpus"] is not None:
        size_best_use.check_flags(flags)
    named_fit.check_transfer(is_transfer=flags["transfer"], has_fit=bool(fits))
    grid = sizing_offers.grid_of(flags, resolved)
    offers = sizing_offers.offers_of(
        flags["gpus"], table, fits, spec, sizing_offers.asked_of_fits(flags, _given())
    )
    tried = candidates.candidates_of(spec, offers, grid)
    if not tried.possible:
        first = tried.refused[0]
        raise SizingError(
            f"nothing that is on offer can serve {spec.model_id!r}: {first.what}: {first.why}",
            where="--gpus, --tp",
            try_=(
                "larger devices, more of them (--tp), fewer bits (--quantization), or another"
                " --dtype"
            ),
        )
    sizing_cautions.check_contexts(asked.question, tried)
    if flags["total_gpus"] is not None:
        best = size_best_use.answer_of(resolved, asked.question, tried, where, flags)
        answer.give(best, as_json=flags["as_json"], show=size_text.size_text)
        sys.exit(_EXIT_CODES[best.verdict])
    n_devices = len({one.offer.hardware.hardware_id for one in tried.possible})
    limit: time_limit.TimeLimit = flags["time_limit"].share(
        executor_options.share_of_part(where, n_devices)
    )
    asked = asked._replace(question=replace(asked.question, time_limit=limit))
    terminal.talk(
        f"{len(tried.possible)} kinds of replica to try on {n_devices}"
        f" device{'s' * (n_devices > 1)}, at most {limit.limit_s:.3g} s of computing for each"
        " device (the engine's rules are compiled once)"
    )
    with executor_options.opened(where, "devices") as executor:
        found = sizing.size_by_device(asked.question, tried.possible, executor.map)
    said = size_answer(
        asked.question, spec.model_id, tried, found, () if table is None else table.apis
    )
    pick = pick_of(found)
    said = replace(said, failure=_failure(asked, pick), over_time=_over_time(asked, pick))
    decision_pages.write_size_page(
        said,
        asked.question,
        [done.best for done in found if done.best is not None],
        flags["report"],
    )
    if flags["out"] is not None:
        sized_folder.write_answer(
            flags["out"], asked.question, found, grid.utilization_fraction, is_forced=flags["force"]
        )
    answer.give(said, as_json=flags["as_json"], show=size_text.size_text)
    sys.exit(_EXIT_CODES[said.verdict])


def _given() -> frozenset[str]:
    """The flags that were given, rather than left to their defaults."""
    context = click.get_current_context()
    return frozenset(
        name
        for name in context.params
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    )


def _check_is_deployed(engine: str) -> None:
    """Only vLLM's command line, metrics and images are known: said before the search."""
    if engine != "vllm":
        raise SpecError(
            f"files that deploy {engine} cannot be written",
            where="--out",
            allowed="--engine vllm",
            try_="--json, which has its knobs",
        )


def _failure(asked: Asked, pick: sizing_types.SizedKind | None) -> failure.FailureOutcome | None:
    """What comes of it if one of the pick's replicas dies."""
    return None if pick is None else failure.failure_of(asked.question, pick, asked.start_up_s)


def _over_time(
    asked: Asked, pick: sizing_types.SizedKind | None
) -> sizing_over_time.OverTime | None:
    """The pick with replicas that come and go, where the traffic changes."""
    if asked.course is None or pick is None:
        return None
    terminal.talk(f"{asked.course.n_windows} windows of traffic under each policy")
    return sizing_over_time.over_time(
        asked.question,
        pick,
        asked.course,
        start_up_s=asked.start_up_s,
        target_fraction=asked.target_fraction,
    )

"""inferometer size: what must be bought, and how set up, to keep a promise under some traffic?"""

import sys
from pathlib import Path
from typing import Any, Final, get_args

import click

from inferometer.cli import answer, executor, size_text, sizing_offers
from inferometer.cli.sizing import SizeAnswer, size_answer
from inferometer.cli.workload_options import takes_workload
from inferometer.decide import candidates, sizing, sizing_types
from inferometer.errors import SizingError, SpecError
from inferometer.spec import objectives, resolve
from inferometer.spec.types import DType
from inferometer.spec.workload import types

ANSWER = SizeAnswer
_EXIT_CODES: Final = {"met": 0, "missed": 10, "undecided": 11}


@click.command(
    "size",
    short_help="What must be bought to keep a promise under some traffic?",
    epilog="""\b
Examples:
  inferometer size llama-3.1-8b --rate 20 --workload chat --slo 'ttft:p95<1s, tpot:p95<100ms' --gpus h100_sxm,l40s --tp 1,2
  inferometer size llama-3.1-8b --rate 2 --slo 'ttft:p95<2s' --gpus a100_80gb_sxm --tp 1 --quantization int4
""",
)
@click.argument("model")
@takes_workload
@click.option("--slo", required=True, metavar="TEXT", help="What is promised: 'ttft:p95<500ms, tpot:p95<50ms'.")
@click.option("--gpus", required=True, metavar="IDS", help="Devices on offer, with commas between (inferometer catalog hardware).")
@click.option("--prices", "price_file", type=click.Path(path_type=Path), help="YAML: source, date_utc, usd_per_hour. [the catalogue's]")
@click.option("--tp", default="1,2,4,8", show_default=True, help="Tensor-parallel sizes to try.")
@click.option("--dtype", type=click.Choice(get_args(DType)), default="bfloat16", show_default=True, help="Of weights and activations.")
@click.option("--quantization", metavar="FORMATS", help="Weights in fewer bits, tried besides none: float8,int4.")
@click.option("--max-num-seqs", "seats", default="64,256", show_default=True, help="Seats to try.")
@click.option("--max-num-batched-tokens", "step_tokens", default="2048,8192", show_default=True, help="Step budgets to try.")
@click.option(
    "--probe-requests", type=click.IntRange(min=100), default=1000, show_default=True, help="Of a short simulation; long: 4 times."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes. [all cores]")
@answer.json_option
def command(model: str, workload: types.WorkloadSpec, **flags: Any) -> None:
    """How many replicas of which kind keep the promise for MODEL under this traffic, and what do they cost?

    Exit 0 met at fast, likely and slow step times, 11 undecided, 10 nothing on offer keeps it.
    """
    spec = resolve.resolve_model(model, load_format="dummy").spec
    question = sizing_types.SizingQuestion(
        spec=workload,
        rate_per_s=_rate(workload),
        objective=objectives.parse_objective(flags["slo"]),
        n_requests=flags["probe_requests"],
    )
    tried = candidates.candidates_of(spec, sizing_offers.offers_of(flags["gpus"], flags["price_file"]), sizing_offers.grid_of(flags))
    if not tried.possible:
        first = tried.refused[0]
        raise SizingError(
            f"{spec.model_id!r} fits on nothing that is on offer: {first.what}: {first.why}",
            where="--gpus, --tp",
            try_="larger devices, more of them (--tp), or fewer bits (--quantization)",
        )
    answer.talk(f"{len(tried.possible)} kinds of replica to try (the engine's rules are compiled once)")
    in_parts = executor.on_processes(flags["jobs"] or executor.n_cores())
    said = size_answer(question, spec.model_id, tried, sizing.size_by_device(question, tried.possible, in_parts))
    answer.give(said, as_json=flags["as_json"], show=size_text.size_text)
    sys.exit(_EXIT_CODES[said.verdict])


def _rate(workload: types.WorkloadSpec) -> float:
    if not isinstance(workload.arrivals, types.OpenArrivals):
        raise SpecError("the workload has no rate", where="--rate, --workload", allowed="requests that come at a rate", try_="--rate 20")
    return workload.arrivals.rate_per_s


__all__ = ["ANSWER", "command"]

"""inferometer fit.

Which step-time model do runs carry, or which server do load tests show, and how far may it be
trusted?
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from inferometer.cli.answer import give, json_option
from inferometer.cli.fit_text import fit_text, refused_text, server_fit_text
from inferometer.cli.kernel_fitting import HeldOutStatistic, fit_served
from inferometer.cli.known_facts import ServerKnowledge, takes_known
from inferometer.cli.load_fitting import fit_load_tests
from inferometer.cli.published_tables import TableChoice, takes_table_choice
from inferometer.cli.rate_fitting import fit_rate_statistics, rate_statistics
from inferometer.cli.runs import RunRequest, takes_runs
from inferometer.cli.step_fitting import fit_steps
from inferometer.cli.terminal import talk
from inferometer.errors import EXIT_UNDECIDED, RecordError
from inferometer.fit.loads.conclusions import Refusal
from inferometer.fit.loads.server_fit import SERVER_FIT_NAME, ServerFit
from inferometer.fit.sweeps.diagnostics import Unidentified, unidentified
from inferometer.perfmodel import steptime


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAnswer:
    """The fitted model, or server, and the file that holds it."""

    model_file: str | None
    """None where the fit was refused: nothing is written."""
    model: steptime.StepTimeModel | None
    """Of sweeps; None of load tests."""
    server: ServerFit | None = None
    """Of load tests."""
    unidentified: tuple[Unidentified, ...] = ()
    """Parameters that the data do not tell, or would have beyond the device's peak, and what to
    measure or to check."""
    held_out: tuple[HeldOutStatistic, ...] = ()
    """Of a published serving run."""
    refusal: Refusal | None = None
    """Why load tests were not fitted (UNDECIDED, exit 11): the residual says that the model of
    the server is wrong."""


ANSWER = FitAnswer


@click.command(
    "fit",
    short_help="Learn a step-time model, or a server, from runs.",
    epilog="""\b
Example:
  inferometer fit runs/example

\b
Load tests of a server that cannot be seen into, at several rates of which one is beyond what it carries, are fitted with --load:
  fit --load runs/slow runs/busy runs/beyond --out server.json
  fit --load runs/busy --server-log vllm.log --known num_gpu_blocks=2588,max_num_seqs=256 --out server.json
What is found serves `inferometer simulate NAME --fit server.json`; capacity, emulate, predict and size take it too.

Somebody's table of a sweep (CSV with prompt or seq, batch, prefill ms, decode ms/tok) is fitted the same way,
with --model, --dtype and --hardware to say what was measured. So are published tables of closed loops, InferenceX's agg_*.json
and AIConfigurator's silicon_sample.csv, with --model gpt-oss-120b --hardware h200_sxm --framework vllm --tp 4 to say which of
their rows; a device without rows is told by the others'.

\b
Kernels that were timed alone (AIConfigurator's folder of a device) give step times before any step was measured:
  fit KERNELS/h100_sxm --model llama-3.1-8b --hardware h100_sxm --tp 2 --out step_time.json
With a published serving run of vLLM they are where the fit to its first half starts; the second half says how far off that is:
  fit rtxpro6000_llama-3.1-8b_tp1 --kernels KERNELS/rtx_pro_6000_server --hardware rtx_pro_6000_server --workload workload.jsonl
Of a rate sweep statistics suffice (inference-perf's stages), where --known names the server's limits; one rate is held out:
  fit stages.csv --series vllm --model llama-3.1-8b --hardware h100_sxm --kernels KERNELS/h100_sxm --known max_num_seqs=128
""",
)
@takes_runs
@takes_table_choice
@click.option(
    "--load",
    "is_load",
    is_flag=True,
    help="The runs are load tests of one server: find its step times and limits.",
)
@takes_known
@click.option("--force", is_flag=True, help="With --load: take INVALID load tests too.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The fit's file. [step_time.json or server_fit.json beside the first run]",
)
@json_option
def command(
    request: RunRequest,
    choice: TableChoice,
    known: ServerKnowledge,
    out: Path | None,
    *,
    is_load: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Which step-time model do these runs of one model on one engine carry?

    Parameters come with intervals, the model with its error on points held out and the box of
    shapes in which it was checked.

    With --load the runs are load tests, and nothing of the server need be known (--model and
    --hardware sharpen what is believed): its step times, seats, step budget, KV cache, switches and
    front end are found by simulating the requests until they do as they did. What they do not show
    is reported, with the load test that would. What is known already is named with --server-log,
    --known and --workload. Where no server explains the requests, the answer is UNDECIDED (exit 11)
    and nothing is written.
    """
    known.check_is_for(is_load=is_load)
    first = request.paths[0]
    path = out or (first if first.is_dir() else first.parent) / (
        SERVER_FIT_NAME if is_load else steptime.FIT_NAME
    )
    if is_load:
        talk("simulating the load tests until they do as they did: about a minute")
        judged = fit_load_tests(request, known, n_tensor=choice.n_tensor, forced=force)
        server, refusal = judged.fit, judged.refusal
        if refusal is not None:
            answer = FitAnswer(model_file=None, model=None, refusal=refusal)
            give(answer, as_json=as_json, show=lambda _: refused_text(server, refusal))
            sys.exit(EXIT_UNDECIDED)
        _save(server, path)
        give(
            FitAnswer(model_file=str(path), model=None, server=server),
            as_json=as_json,
            show=lambda _: server_fit_text(server, str(path)),
        )
        return
    rates = rate_statistics(request.paths)
    served = (
        fit_rate_statistics(request, choice, known, rates)
        if rates
        else None
        if known.kernels is None
        else fit_served(request, known)
    )
    model = fit_steps(request, choice) if served is None else served.model
    held_out = () if served is None else served.held_out
    _save(model, path)
    answer = FitAnswer(
        model_file=str(path), model=model, unidentified=unidentified(model), held_out=held_out
    )
    give(answer, as_json=as_json, show=lambda _: fit_text(model, str(path), served))


def _save(fit: steptime.StepTimeModel | ServerFit, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fit.save(path)
    except OSError as error:
        raise RecordError(
            f"the fit cannot be written: {error.strerror}",
            where=str(path),
            try_="--out with another file",
        ) from error

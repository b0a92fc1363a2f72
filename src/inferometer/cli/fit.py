"""inferometer fit: which step-time model do runs carry?"""

import sys

import click

from inferometer.api import fit
from inferometer.cli.answer import give
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.progress import heard
from inferometer.errors import EXIT_UNDECIDED

ANSWER = fit.FitAnswer


@click.command(
    "fit",
    cls=QuestionCommand,
    epilog="""\b
Example:
  inferometer fit runs/example

\b
Load tests of a server at several rates, one of them beyond its capacity, are fitted with --load:
  fit --load runs/slow runs/busy runs/beyond --out server.json
  fit --load runs/busy --server-log vllm.log --known num_gpu_blocks=2588,max_num_seqs=256 --out server.json
What is found serves `inferometer simulate NAME --fit server.json`; capacity, emulate, predict and size take it too.

A table of a sweep (CSV with prompt or seq, batch, prefill ms, decode ms/tok) is fitted the same way, with
--model, --dtype and --hardware to say what was measured. So are published tables of closed loops
(InferenceX's agg_*.json, AIConfigurator's silicon_sample.csv), whose rows --model gpt-oss-120b --hardware
h200_sxm --framework vllm --tp 4 select; a device without rows is based on the others'.

\b
Kernels that were timed alone (AIConfigurator's folder of a device) give step times before any step was measured:
  fit KERNELS/h100_sxm --model llama-3.1-8b --hardware h100_sxm --tp 2 --out step_time.json
A published serving run of vLLM is fitted from them: its first half; the second half measures the error:
  fit rtxpro6000_llama-3.1-8b_tp1 --kernels KERNELS/rtx_pro_6000_server --hardware rtx_pro_6000_server
Of a rate sweep, statistics suffice (inference-perf's stages) with the server's limits; one rate is held out:
  fit stages.csv --series vllm --model llama-3.1-8b --hardware h100_sxm --known max_num_seqs=128
""",
)
@asks(fit.Fit)
def command(question: fit.Fit, *, as_json: bool) -> None:
    """Which step-time model do these runs of one model on one engine carry?

    Parameters come with intervals, the model with its error on points held out and the box of
    shapes in which it was checked.

    With --load the runs are load tests, and nothing of the server need be known (--model and
    --hardware sharpen what is believed): its step times, concurrent sequences, step budget, KV
    cache, switches and front end are found by simulating the requests until they do as they
    did. What they do not show is reported, with the load test that would. What is known already
    is named with --server-log, --known and --workload. Where no server explains the requests,
    the answer is UNDECIDED (exit 11) and nothing is written.
    """
    with heard():
        fitted = fit.fit(question)
    give(fitted.answer, as_json=as_json, show=lambda _: fitted.page)
    if fitted.answer.refusal is not None:
        sys.exit(EXIT_UNDECIDED)

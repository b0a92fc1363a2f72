"""inferometer simulate: what would happen if this server got this traffic?"""

import sys
from functools import partial

import click

from inferometer.api import simulate
from inferometer.api.grid import GridAnswer
from inferometer.api.simulation import SimulateAnswer
from inferometer.api.studies import SIMULATE
from inferometer.cli.answer import give_answer
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.study import give_grid
from inferometer.errors import EXIT_OF_SLO

ANSWER = SimulateAnswer | GridAnswer


@click.command(
    "simulate",
    cls=QuestionCommand,
    epilog="""\b
Examples:
  inferometer simulate llama-3.1-8b --hardware h100_sxm --workload chat --rate 5
  inferometer simulate llama-3.1-8b --hardware h100_sxm --concurrency 64 --requests 500 --max-num-seqs 32
  inferometer simulate qwen3-8b --hardware h100 --rate 5 --set num_speculative_tokens=3 --set acceptance_fraction=0.7
  inferometer simulate llama-3.1-8b --hardware h100_sxm --rate 40 --replicas 4 --router prefix-affine
  inferometer simulate qwen3-30b-a3b --hardware h100_sxm --rate 40 --data-parallel-size 2
  inferometer simulate llama-3.1-8b --hardware h100_sxm --rate 40 --prefill-replicas 2 --replicas 2 --kv-link 50GB/s
  inferometer simulate llama-3.1-8b --hardware h100_sxm --rate 40 --order shortest-remaining
  inferometer simulate llama-2-70b --hardware h100_sxm --tp 4 --rate 0.5 --slo 'ttft:p95<20s, tpot:p95<500ms'
""",
)
@asks(simulate.Simulate, grid=partial(give_grid, SIMULATE))
def command(question: simulate.Simulate, *, as_json: bool) -> None:
    """What would happen if MODEL on this server got this traffic.

    Throughput, TTFT, TPOT, E2E, and is the objective met?

    The scheduler is the engine's own, step by step; step times are those of a fit (--fit), or
    those that published rows of such devices tell (--hardware; --datasheet: the datasheet alone).
    The same requests are simulated on 19 servers that may be the one; of a datasheet, at both ends
    of what it leaves open.
    """
    answer = give_answer(simulate.simulate, question, as_json=as_json)
    sys.exit(EXIT_OF_SLO[answer.verdict])

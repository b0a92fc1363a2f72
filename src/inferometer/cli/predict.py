"""inferometer predict: what would a model do on a device, from its datasheet or from a fitted model?"""

import sys
from functools import partial

import click

from inferometer.api import predict
from inferometer.api.grid import GridAnswer
from inferometer.api.prediction import PredictAnswer
from inferometer.api.studies import PREDICT
from inferometer.cli.answer import give_answer
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.study import give_grid
from inferometer.errors import EXIT_OF_SLO, SizingError

ANSWER = PredictAnswer | GridAnswer


@click.command(
    "predict",
    cls=QuestionCommand,
    epilog="""\b
Examples:
  inferometer predict llama-3.1-8b --hardware h100_sxm --batch 32 --prompt 1024 --output 256
  inferometer predict smollm2-135m --hardware this --batch 4 --dtype float32
  inferometer predict llama-2-70b --hardware a100_80gb_sxm --tp 4 --quantization int8 --what-if

\b
With --fit device, number formats and number of devices are those of the fit, and others are refused:
  predict qwen2.5-0.5b --fit runs/example --batch 8
Another device: --transfer carries step times over, as far as published tables say that devices are alike.
""",
)
@asks(predict.Predict, grid=partial(give_grid, PREDICT))
def command(question: predict.Predict, *, as_json: bool) -> None:
    """What would MODEL do on a device: parameters, memory, largest batch, bounds, TTFT, TPOT, throughput, cost, energy?

    Answers say what they rest on: *published* rows of such devices, *datasheet*, *measured
    ceilings* (--hardware this) or *fitted* (--fit), always with an interval. Exit 6: it does not
    fit; the smallest --tp that does is named.
    """
    answer = give_answer(predict.predict, question, as_json=as_json)
    if not answer.datasheet.sizes.memory.fits:
        sys.exit(SizingError.exit_code)
    sys.exit(EXIT_OF_SLO[None if answer.slo is None else answer.slo.verdict])

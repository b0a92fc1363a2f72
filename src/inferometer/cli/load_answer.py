"""How is the answer of a load test printed, and with which exit code?

The second half of ``inferometer load``.
"""

import sys

from inferometer.api.load import LoadAnswer, Loaded, answered, write_exports
from inferometer.cli.answer import give
from inferometer.cli.load import AnswerableLoad
from inferometer.cli.progress import heard
from inferometer.errors import EXIT_OF_SLO, MeasureError
from inferometer.report.request_page import request_page_of

ANSWER = LoadAnswer


def answer(made: AnswerableLoad) -> None:
    """Decode, judge and store the test, and say how it went."""
    with heard(as_json=made.as_json):
        loaded = answered(made.ended)
        give(
            loaded.answer,
            as_json=made.as_json,
            show=lambda _: request_page_of(loaded.view),
        )
        if loaded.answer.is_interrupted:
            raise KeyboardInterrupt
        write_exports(loaded.run, made.ended)
    sys.exit(_exit_code(loaded))


def _exit_code(loaded: Loaded) -> int:
    """INVALID counts before any objective."""
    validity, judgement = loaded.run.manifest.validity, loaded.view.judgement
    if validity is not None and validity.verdict == "INVALID":
        return MeasureError.exit_code
    return EXIT_OF_SLO[None if judgement is None else judgement.verdict]

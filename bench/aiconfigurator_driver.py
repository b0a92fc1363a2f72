"""What does AIConfigurator foretell of loads that it is asked about?

Runs in its own environment; JSON lines in, JSON lines out.

``python aiconfigurator_driver.py QUESTIONS ANSWERS``: a question is the keyword arguments of its
``cli_estimate``; the answer TTFT and TPOT in milliseconds, or why there is none. Questions of one
device and engine should follow one another: it loads tables once for each.
"""

import json
import logging
import sys
from pathlib import Path

from aiconfigurator.cli.api import cli_estimate

logging.disable(logging.WARNING)


def answer(question):
    try:
        told = cli_estimate(**question)
    except Exception as error:  # noqa: BLE001 -- theirs may be any
        return {"why_not": f"{type(error).__name__}: {str(error)[:200]}"}
    return {"ttft_ms": float(told.ttft), "tpot_ms": float(told.tpot)}


def main():
    questions, answers = (Path(name) for name in sys.argv[1:])
    with answers.open("w") as out:
        for line in questions.read_text().splitlines():
            out.write(json.dumps(answer(json.loads(line))) + "\n")
            out.flush()


if __name__ == "__main__":
    main()

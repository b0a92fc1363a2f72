"""How is a load test written for other tools, beside its record?"""

from inferometer.cli.load import AnswerableLoad
from inferometer.cli.terminal import talk
from inferometer.records.durability import replace_file
from inferometer.records.exports.formats import FILE_NAMES
from inferometer.records.exports.writing import exported_text
from inferometer.records.promises import judge_objective
from inferometer.records.types import Run


def write_exports(run: Run, made: AnswerableLoad) -> None:
    """Write the run in each format that was asked for, into its folder.

    What stands there of an earlier answer is replaced.
    """
    judgement = None if made.objective is None else judge_objective(run, made.objective)
    for format_ in made.exports:
        path = made.folder / FILE_NAMES[format_]
        replace_file(path, exported_text(run, format_, judgement=judgement).encode())
        talk(f"as {format_}: {path}")

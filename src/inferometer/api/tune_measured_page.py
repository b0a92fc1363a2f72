"""What is there to read of a measured tuning?"""

from typing import Final

from inferometer import __version__
from inferometer.api.tune_answer import interval_words, ratio_words
from inferometer.api.tune_page import chip_of, gains_chart, latency_numbers, settled_sections
from inferometer.api.tuning import MeasuredTune
from inferometer.report.page import Line, Page, Section, lines_of
from inferometer.report.tables import TextTable
from inferometer.stats.estimate import Estimate
from inferometer.units import format_duration

_WORDS: Final = {"check quality": "needs a quality check"}


def measured_tune_page(answer: MeasuredTune) -> Page:
    """The gain first, then each step, the command and the checklist."""
    version = "" if answer.version is None else f" {answer.version}"
    return Page(
        title=_title(answer),
        subtitle=(
            f"{answer.engine}{version} at {answer.url} · {answer.workload_name} at {answer.load:g}"
            f" {answer.load_unit} · goal {answer.goal}: {answer.score_words}"
        ),
        chips=(chip_of(answer),),
        numbers=latency_numbers(answer),
        table=_steps(answer, is_short=True),
        chart=gains_chart(
            [(one.change, one.gain_fraction, one.decision == "keep") for one in answer.steps],
            _title(answer),
        ),
        lines=(
            Line(label="ANSWER", text="", command=answer.command),
            *lines_of(
                ("WHY", _why(answer)),
                ("OR", "; ".join(answer.quality_checks)),
                ("COST", _cost(answer)),
                ("TRUST", _trust(answer)),
                ("DATA", f"{answer.folder}/answer.json"),
                ("NEXT", answer.next_step),
            ),
        ),
        cautions=answer.cautions,
        sections=(
            *settled_sections(answer),
            Section(
                id="tried",
                title="What was looked at in each step?",
                nav="Steps",
                tables=(_steps(answer, is_short=False),),
            ),
        ),
        tool_version=__version__,
    )


def _title(answer: MeasuredTune) -> str:
    taken = [one.change or one.name for one in answer.steps if one.decision == "keep"]
    gain = answer.gain_fraction
    if not taken:
        return f"{answer.model}: no change of the flags is sure to help"
    if not answer.is_confirmed or gain is None:
        return f"{answer.model}: nothing is changed; what looked better was not so in fresh pairs"
    more = f" and {len(taken) - 2} more" if len(taken) > 2 else ""
    return f"{answer.model}: {interval_words(gain)} with {' and '.join(taken[-2:])}{more}"


def _steps(answer: MeasuredTune, *, is_short: bool) -> TextTable:
    rows = tuple(
        (
            one.title if one.title != "of your own" else one.name,
            _WORDS.get(one.decision, one.decision),
            one.change or "–",
            _words(one.predicted_gain_fraction),
            _words(one.gain_fraction),
            one.why,
        )
        for one in answer.steps
        if one.change is not None or not is_short
    )
    header = ("step", "decision", "change", "predicted", "measured", "reason")
    return TextTable(caption="The playbook, step by step", header=header, rows=rows)


def _words(gain: Estimate | None) -> str:
    return "–" if gain is None else interval_words(gain)


def _why(answer: MeasuredTune) -> str:
    if answer.gain_fraction is None or answer.selected_gain_fraction is None:
        return ""
    return (
        f"{ratio_words(answer.selected_gain_fraction)} in the pairs in which the changes were chosen,"
        f" {interval_words(answer.gain_fraction)} in {answer.gain_fraction.n_samples} fresh ones:"
        " the second is what is reported"
    )


def _cost(answer: MeasuredTune) -> str:
    return (
        f"{answer.n_servers} servers were started, each in {format_duration(answer.start_s)} or so;"
        " none is left"
    )


def _trust(answer: MeasuredTune) -> str:
    same = answer.same_gain_fraction
    noise = f"pairs of the same command scatter by {answer.noise_fraction:.1%}"
    mean = "" if same is None else f" and differ by {interval_words(same)}"
    return (
        f"measured; {noise}{mean}; intervals of 90 % that hold at every look, so that a change"
        " that does nothing is taken in at most 1 of 20 steps, and must gain again in the end;"
        f" {answer.n_simulations:,} simulations chose what to measure"
    )

"""What is there to read of a tuning: what to change, what it gains, what was not worth it?"""

from collections.abc import Sequence
from typing import Final

from inferometer.api.tune_answer import gain_words, interval_words, ratio_words
from inferometer.api.tuning import MeasuredTune, PlannedTune, PresetAnswer, TuneAnswer
from inferometer.decide.tuning.playbook import PLAYBOOK
from inferometer.records.pitfalls import found_sentence
from inferometer.report.charts.plot import Chart
from inferometer.report.charts.predicted import Effect, effects_chart
from inferometer.report.page import Chip, Line, Number, Page, Section, duration_number, lines_of
from inferometer.report.tables import TextTable, known_cell
from inferometer.stats.estimate import Estimate
from inferometer.units import counted, format_duration

_TITLES: Final = {one.name: one.title for one in PLAYBOOK}
_UNPREDICTED: Final = {one.name: one.unpredicted for one in PLAYBOOK}
_TICKS: Final = {True: "✔", False: "✘", None: "?"}
_WORDS: Final = {
    "keep": "keep",
    "drop": "drop",
    "not worth measuring": "not worth measuring",
    "measure": "worth measuring",
    "check quality": "needs a quality check",
    "not predicted": "not predicted",
}


_ONE: Final = {"users": "user", "requests/s": "request/s", "sequences": "sequence"}


def tune_page(answer: TuneAnswer) -> Page:
    """The gain first, then each step, the command and the checklist."""
    return _page_of(
        answer,
        title=_title(answer),
        where=f"on {answer.hardware or 'its fit'}",
        short=_steps(answer, is_short=True),
        gains=[(one.change, one.gain_ratio, one.decision == "keep") for one in answer.steps],
        lines=lines_of(
            ("WHY", _why(answer)),
            ("ALSO", found_sentence(answer.checks)),
            ("OR", _offers(answer)),
            ("TRUST", _trust(answer)),
        ),
        tried=Section(
            id="tried",
            title="What was tried in each step?",
            nav="Tried",
            tables=(_steps(answer, is_short=False), _tried(answer), _unpredicted(answer)),
        ),
    )


def _page_of(
    answer: TuneAnswer | MeasuredTune,
    *,
    title: str,
    where: str,
    short: TextTable,
    gains: Sequence[tuple[str | None, Estimate | None, bool]],
    lines: tuple[Line, ...],
    tried: Section,
) -> Page:
    """The page of tuning, common to simulation and measurement."""
    unit = _ONE[answer.load_unit] if answer.load == 1 else answer.load_unit
    return Page(
        title=title,
        subtitle=(
            f"{answer.engine} {where} · {answer.workload_name} at {answer.load:g}"
            f" {unit} · goal {answer.goal}: {answer.score_words}"
        ),
        chips=chips_of(answer),
        numbers=_numbers(answer) if isinstance(answer, TuneAnswer) else latency_numbers(answer),
        table=short,
        chart=gains_chart(gains, title),
        lines=(
            Line(
                label="ANSWER",
                text=_before_command(answer) if isinstance(answer, TuneAnswer) else "",
                command=answer.command or "",
            ),
            *lines,
            *lines_of(
                ("DATA", "" if answer.folder is None else f"{answer.folder}/answer.json"),
                ("NEXT", answer.next_step),
            ),
        ),
        cautions=answer.cautions,
        sections=(*settled_sections(answer), tried),
    )


def _before_command(answer: TuneAnswer) -> str:
    """Why there is no command, or how many servers it starts."""
    if answer.command_why_not is not None:
        return answer.command_why_not
    if answer.router is None:
        return ""
    return f"{answer.n_replicas} replicas behind a router ({answer.router}), each of them:"


def _title(answer: TuneAnswer) -> str:
    taken = [one for one in answer.steps if one.decision == "keep"]
    gain = answer.gain_fraction
    if not taken or gain is None:
        return f"{answer.model}: no change of the settings is sure to help"
    if not answer.is_confirmed:
        return (
            f"{answer.model}: nothing is changed; what looked better was not so in fresh pairs"
            f" ({interval_words(gain)})"
        )
    words = " and ".join(one.change or "" for one in taken[-2:])
    more = f" and {len(taken) - 2} more" if len(taken) > 2 else ""
    return f"{answer.model}: {interval_words(gain)} with {words}{more}"


def gains_chart(
    changes: Sequence[tuple[str | None, Estimate | None, bool]], finding: str
) -> Chart | None:
    """The best change of each step with its gain, and whether it was taken."""
    effects = [
        Effect(change, gain.scaled(100), interval_words(gain), is_taken)
        for change, gain, is_taken in changes
        if change is not None and gain is not None
    ]
    return effects_chart(
        effects,
        chart_id="gains",
        title="What each change gains",
        finding=f"{finding}.",
        axis="gain, %",
        legend="filled: taken · lines: intervals",
    )


def chips_of(answer: TuneAnswer | MeasuredTune) -> tuple[Chip, ...]:
    """Whether the SLO is met, afterwards and before; nothing without an SLO."""
    if answer.slo_after is None:
        return ()
    words = {"met": "meets", "missed": "misses", "undecided": "undecided:"}
    before = "" if answer.slo_before == answer.slo_after else f" (as it is: {answer.slo_before})"
    is_of_each = isinstance(answer, MeasuredTune) and answer.slo_after != "undecided"
    where = " in every run" if is_of_each else ""
    text = f"{words[answer.slo_after]} {answer.objective}{where}{before}"
    return (Chip(verdict=answer.slo_after, text=text),)


def latency_numbers(answer: TuneAnswer | MeasuredTune) -> tuple[Number, ...]:
    """Each latency of the SLO and of classes' own, before and after."""
    numbers = list[Number]()
    for one in answer.latencies:
        owner, _, limit = one.text.rpartition(": ")
        latency = limit.partition("<")[0].replace(":", " ").upper().replace(" P", " p")
        name = f"{owner} {latency}".lstrip()
        numbers += duration_number(f"{name} now", one.before_s, limit_s=one.limit_s)
        if answer.is_confirmed:
            numbers += duration_number(f"{name} then", one.after_s, limit_s=one.limit_s)
    return tuple(numbers)


def _numbers(answer: TuneAnswer) -> tuple[Number, ...]:
    numbers = list(latency_numbers(answer))
    if answer.goal != "interactive":
        for name, score in (("now", answer.score_before), ("then", answer.score_after)):
            if score is not None and (name == "now" or answer.is_confirmed):
                share = " a device" * (answer.goal == "cost")
                numbers.append(
                    Number(
                        name=f"rate {name}",
                        value=score.value,
                        unit=f"requests/s{share}",
                        low=score.low,
                        high=score.high,
                    )
                )
    return tuple(numbers)


def _steps(answer: TuneAnswer, *, is_short: bool) -> TextTable:
    """Table of the steps; short: those in which a change was tried."""
    rows = tuple(
        (
            _TITLES[one.name],
            _WORDS[one.decision],
            one.change or "–",
            gain_words(one) or "–",
            one.why,
        )
        for one in answer.steps
        if one.change is not None or not is_short
    )
    header = ("step", "decision", "best change", "gain", "reason")
    return TextTable(caption="The playbook, step by step", header=header, rows=rows)


def _why(answer: TuneAnswer) -> str:
    selected, gain = answer.selected_gain_fraction, answer.gain_fraction
    if selected is None or gain is None:
        return ""
    return (
        f"{interval_words(selected)} in the pairs in which the changes were chosen,"
        f" {interval_words(gain)} in fresh ones: the second is what is reported"
    )


def _offers(answer: TuneAnswer) -> str:
    lossy = [one for one in answer.steps if one.decision == "check quality"]
    offers = [f"{one.change}: {gain_words(one)}" for one in lossy]
    if not offers:
        return ""
    checks = "; ".join(answer.quality_checks)
    return f"{'; '.join(offers)}; quality decides: {checks}"


def _trust(answer: TuneAnswer) -> str:
    return (
        f"{answer.n_simulations:,} simulations, nothing measured; step times: {answer.step_times};"
        " intervals: least … most of 19 pairs of a machine and its traffic"
    )


def settled_sections(answer: TuneAnswer | MeasuredTune) -> tuple[Section, Section]:
    """The command with the reason of each setting, and the ten boxes with their evidence."""
    settings = TextTable(
        caption="Where it departs from the defaults",
        header=("setting", "value", "default", "why"),
        rows=tuple((one.name, one.value, one.default, one.why) for one in answer.settings),
    )
    boxes = TextTable(
        caption="Ten boxes",
        header=("", "box", "evidence"),
        rows=tuple((_TICKS[one.is_ticked], one.name, one.evidence) for one in answer.checklist),
    )
    return (
        Section(
            id="command",
            title="With which command, and why these values?",
            nav="Command",
            tables=(settings,) if settings.rows else (),
            command=answer.command or "",
        ),
        Section(
            id="checklist", title="What of the checklist is done?", nav="Checklist", tables=(boxes,)
        ),
    )


def _tried(answer: TuneAnswer) -> TextTable:
    rows = tuple(
        (
            step.name,
            one.words,
            known_cell(one.gain_ratio, interval_words),
            one.why_not,
        )
        for step in answer.steps
        if step.name != "again"
        for one in step.tried
    )
    header = ("step", "change", "gain", "refused because")
    return TextTable(caption="All changes but those together", header=header, rows=rows)


def _unpredicted(answer: TuneAnswer) -> TextTable:
    rows = tuple(
        (one.name, _UNPREDICTED[one.name]) for one in answer.steps if _UNPREDICTED[one.name]
    )
    return TextTable(caption="What no simulation predicts", header=("step", "what"), rows=rows)


def planned_page(answer: PlannedTune) -> Page:
    """A page of what would be tried."""
    rows = tuple(
        (one.title, one.flags, ", ".join(one.changes[:6]) + _more(one.changes) or one.why_none)
        for one in answer.steps
    )
    changes, steps = counted(answer.n_candidates, "change"), counted(len(answer.steps), "step")
    if answer.is_engine:
        title = f"{changes} in {steps}, measured in pairs"
    elif answer.n_restarts or answer.duration_s is None:
        title = f"{steps}, measured in pairs of fresh servers"
    else:
        title = (
            f"{changes} to simulate in {steps}: at most"
            f" {answer.n_simulations:,} simulations, {format_duration(answer.duration_s)}"
        )
    return Page(
        title=title,
        table=TextTable(caption="The plan", header=("step", "flags", "changes"), rows=rows),
        lines=(Line(label="COST", text=answer.cost),),
    )


def _more(changes: tuple[str, ...]) -> str:
    return f" and {len(changes) - 6} more" if len(changes) > 6 else ""


def preset_page(answer: PresetAnswer) -> Page:
    """A page of values with reasons, and the command."""
    rows = tuple((one.setting, one.value, one.flag or "–", one.why) for one in answer.values)
    return Page(
        title=f"{answer.model} on {answer.hardware}: where to begin, {answer.preset} endpoint",
        subtitle=answer.engine,
        table=TextTable(
            caption="Values and reasons", header=("setting", "value", "flag", "why"), rows=rows
        ),
        lines=(
            Line(label="ANSWER", text="", command=answer.command),
            *lines_of(("TRUST", answer.trust), ("NEXT", answer.next_step)),
        ),
    )


_MEASURED_WORDS: Final = {"check quality": "needs a quality check"}


def measured_tune_page(answer: MeasuredTune) -> Page:
    """The gain first, then each step, the command and the checklist."""
    version = "" if answer.version is None else f"{answer.version} "
    return _page_of(
        answer,
        title=_measured_title(answer),
        where=f"{version}{'on this machine' if answer.url is None else f'at {answer.url}'}",
        short=_measured_steps(answer, is_short=True),
        gains=[(one.change, one.gain_fraction, one.decision == "keep") for one in answer.steps],
        lines=lines_of(
            ("WHY", _measured_why(answer)),
            ("ALSO", found_sentence(answer.checks)),
            ("OR", "; ".join(answer.quality_checks)),
            ("COST", _cost(answer)),
            ("TRUST", _measured_trust(answer)),
        ),
        tried=Section(
            id="tried",
            title="What was looked at in each step?",
            nav="Steps",
            tables=(_measured_steps(answer, is_short=False),),
        ),
    )


def _measured_title(answer: MeasuredTune) -> str:
    taken = [one.change or one.name for one in answer.steps if one.decision == "keep"]
    gain = answer.gain_fraction
    if not taken:
        return f"{answer.model}: no change of the {_what(answer)} is sure to help"
    if not answer.is_confirmed or gain is None:
        return f"{answer.model}: nothing is changed; what looked better was not so in fresh pairs"
    more = f" and {len(taken) - 2} more" if len(taken) > 2 else ""
    return f"{answer.model}: {interval_words(gain)} with {' and '.join(taken[-2:])}{more}"


def _what(answer: MeasuredTune) -> str:
    return "options" if answer.url is None else "flags"


def _measured_steps(answer: MeasuredTune, *, is_short: bool) -> TextTable:
    rows = tuple(
        (
            one.title if one.title != "of your own" else one.name,
            _MEASURED_WORDS.get(one.decision, one.decision),
            one.change or "–",
            known_cell(one.predicted_gain_fraction, interval_words),
            known_cell(one.gain_fraction, interval_words),
            one.why,
        )
        for one in answer.steps
        if one.change is not None or not is_short
    )
    header = ("step", "decision", "change", "predicted", "measured", "reason")
    return TextTable(caption="The playbook, step by step", header=header, rows=rows)


def _measured_why(answer: MeasuredTune) -> str:
    if answer.gain_fraction is None or answer.selected_gain_fraction is None:
        return ""
    return (
        f"{ratio_words(answer.selected_gain_fraction)} in the pairs in which the changes were chosen,"
        f" {interval_words(answer.gain_fraction)} in {answer.gain_fraction.n_samples} fresh ones:"
        " the second is what is reported"
    )


def _cost(answer: MeasuredTune) -> str:
    if answer.url is None:
        each = format_duration(answer.start_s)
        return f"{answer.n_servers} loads of the model, the first in {each}"
    return (
        f"{answer.n_servers} servers were started, each in {format_duration(answer.start_s)} or so;"
        " none is left"
    )


def _measured_trust(answer: MeasuredTune) -> str:
    same = answer.same_gain_fraction
    noise = f"pairs of the same command scatter by {answer.noise_fraction:.1%}"
    mean = "" if same is None else f" and differ by {interval_words(same)}"
    n_simulations = answer.n_simulations
    chosen = f"; {n_simulations:,} simulations chose what to measure" if n_simulations else ""
    return (
        f"measured; {noise}{mean}; intervals of 90 % that hold at every look, so that a change"
        " that does nothing is taken in at most 1 of 20 steps, and must gain again in the end"
        + chosen
    )

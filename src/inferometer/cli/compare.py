"""inferometer compare: are these runs faster than those, or can nobody tell?

With ``--ab`` the runs are made for it: two servers are loaded in turns.
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import click

from inferometer import suggestions
from inferometer.api import ab_pairs, compare
from inferometer.api.compare import CompareAnswer, Rule, compare_page, rule_of
from inferometer.api.load_request import Load, Other, requests_of_both
from inferometer.api.question import Option
from inferometer.cli.answer import give, give_answer
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.progress import heard
from inferometer.cli.terminal import talk
from inferometer.errors import EXIT_ANSWERED, EXIT_UNDECIDED, SpecError
from inferometer.inputs.objectives import ObjectiveSpec, parse_objective
from inferometer.records import request_summaries, run_comparison, types
from inferometer.stats.quantiles import min_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareServers:
    """Which servers are loaded in turns, and how they are compared."""

    ab: Annotated[
        bool, Option("A and B are servers, not runs.", heading="Runs", is_common=True)
    ] = False
    url: Annotated[str, Option("", is_argument=True)]
    load: Load = field(default_factory=Load)
    other: Other = field(default_factory=Other)
    repeats: Annotated[
        int,
        Option("Pairs; settled before the first is made.", heading="Runs", is_common=True, least=1),
    ] = 6
    rule: Rule = field(default_factory=Rule)
    slo: Annotated[
        str | None,
        Option(
            "Also say how often each side met this SLO: 'ttft:p95<500ms'.",
            heading="Limits",
            is_common=True,
            metavar="TEXT",
        ),
    ] = None
    out: Annotated[
        Path | None,
        Option("Folder of the runs; the same one resumes.", is_common=True, metavar="DIR"),
    ] = None
    dry_run: Annotated[bool, Option("Say what would be sent.", is_common=True)] = False
    given: frozenset[str] = frozenset()


@click.command(
    "compare",
    cls=QuestionCommand,
    epilog="""\b
Examples (servers must listen there):
  inferometer compare --ab http://127.0.0.1:8000 http://127.0.0.1:8001 --model NAME --rate 5 --for 60s --repeats 8
  inferometer compare --ab http://127.0.0.1:8000 --model NAME --b-model OTHER --rate 5 --metric tpot_p50_s
  inferometer compare --ab http://127.0.0.1:8000 --model NAME --b-body 'top_k=1' --concurrency 8 --for 30s
""",
)
@asks(CompareServers)
def ab_command(question: CompareServers, *, as_json: bool) -> None:
    """Is the server at B better than that at URL, worse, equivalent, or is that undecided?

    Without B, the same URL under other settings.

    Pairs of load tests, one of each side with the same arrivals and lengths; who comes first is
    drawn, half of the pairs each. Both sides of a pair get the same texts where the URLs differ,
    else others (the first would warm the prefix cache for the second). The number of pairs is
    settled before: to stop when the answer pleases would make false alarms. An interval at 95 %
    needs 6. The same command goes on after Ctrl-C or a crash; a pair with one half cut
    short is made again, next to each other. Exit 0 decided, 11 undecided.
    """
    requests = requests_of_both(question.url, question.load, question.other)
    rule = rule_of(question.rule)
    _check_repeats(question.repeats, rule.confidence_fraction)
    objective = None if question.slo is None else parse_objective(question.slo)
    pairs = ab_pairs.Pairs(
        requests=requests,
        n_pairs=question.repeats,
        folder=question.out or ab_pairs.default_folder(requests),
        objective=objective,
    )
    talk(pairs.sentence)
    if question.dry_run:
        return
    with heard():
        olds, news = ab_pairs.made(pairs, takes_invalid=rule.takes_invalid)
    comparison = run_comparison.compare_runs(olds, news, replace(rule, is_paired=True))
    said = compare.CompareAnswer(
        old=tuple(map(str, pairs.folders(0))),
        new=tuple(map(str, pairs.folders(1))),
        comparison=comparison,
        slos=(
            ()
            if objective is None
            else (_promise("A", olds, objective), _promise("B", news, objective))
        ),
    )
    give(said, as_json=as_json, show=compare_page)
    sys.exit(EXIT_UNDECIDED if comparison.answer.verdict == "undecided" else EXIT_ANSWERED)


def _check_repeats(n_pairs: int, confidence_fraction: float) -> None:
    """Refuse what cannot be decided, before hours are spent."""
    enough = min_samples(0.5, confidence_fraction=confidence_fraction)
    if n_pairs < enough:
        raise SpecError(
            f"{n_pairs} pairs carry no interval at {confidence_fraction:.4g}",
            where="--repeats, --confidence",
            allowed=f"{enough} pairs or more",
            try_=suggestions.flags("--repeats", enough),
        )


def _promise(side: str, runs: tuple[types.Run, ...], objective: ObjectiveSpec) -> compare.SideSlo:
    verdicts = [request_summaries.judge_objective(run, objective).verdict for run in runs]
    return compare.SideSlo(
        side=side,
        objective=objective.text,
        n_met=verdicts.count("met"),
        n_missed=verdicts.count("missed"),
        n_undecided=verdicts.count("undecided"),
    )


ANSWER = CompareAnswer


class OfRunsOrServers(QuestionCommand):
    """The same question of runs that are there, and of servers (``--ab``), which are loaded for it.

    Each has its own flags.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the flags of the one that is asked."""
        if "--ab" in args:
            return ab_command.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    "compare",
    cls=OfRunsOrServers,
    epilog="""\b
Examples:
  inferometer compare runs/a runs/b
  inferometer compare runs/before runs/after --metric ttft_p95_s --margin 0.05
""",
)
@asks(compare.Compare)
def command(question: compare.Compare, *, as_json: bool) -> None:
    """Is B better than A, worse, equivalent, or is that undecided?

    A and B are runs, or folders of runs of one configuration each; with --ab they are servers,
    which are loaded in turns: `inferometer compare --ab --help`. The run is the unit of
    replication: 4 of each side, made in turns, carry a 95 % interval. Of two single sweeps the
    repetitions are compared. Load tests that are INVALID are refused (exit 3). Exit 0 decided, 11
    undecided.
    """
    answer = give_answer(compare.compare, question, as_json=as_json)
    is_undecided = answer.comparison.answer.verdict == "undecided"
    sys.exit(EXIT_UNDECIDED if is_undecided else EXIT_ANSWERED)

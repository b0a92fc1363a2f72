"""Which flags say what counts as different, the same for runs that are there and for runs that are made for it?"""

import functools
from collections.abc import Callable
from typing import Any, Final

import click

from inferometer.records.run_comparison import ComparisonRule

_OPTIONS: Final = (
    click.option(
        "--metric",
        help=(
            "What the answer is about.  [default: e2e_p50_s of requests, the decode step of all"
            " points of sweeps]"
        ),
    ),
    click.option(
        "--margin",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.02,
        show_default=True,
        help="Differences up to this do not matter.",
    ),
    click.option(
        "--confidence",
        type=click.FloatRange(0.5, 0.999),
        default=0.95,
        show_default=True,
        help="Of the answer's interval.",
    ),
    click.option("--force", is_flag=True, help="Compare INVALID load tests too."),
)


def takes_rule(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of a comparison; the command gets ``rule: ComparisonRule``, which knows of no pairs."""

    @functools.wraps(command)
    def with_rule(**flags: Any) -> None:
        rule = ComparisonRule(
            metric=flags.pop("metric"),
            margin_ratio=flags.pop("margin"),
            confidence_fraction=flags.pop("confidence"),
            takes_invalid=flags.pop("force"),
        )
        command(rule=rule, **flags)

    wrapped: Callable[..., None] = with_rule
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped

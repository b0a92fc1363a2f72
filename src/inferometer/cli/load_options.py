"""Which flags describe a load test, the same for every verb that makes one?"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from inferometer.api.load_request import Load, Other, request_of, requests_of_both
from inferometer.cli.flags import takes

Brought = TypeVar("Brought")


def takes_load(command: Callable[..., Brought]) -> Callable[..., Brought]:
    """Add the flags of a load test and of its workload; the command gets ``request: LoadRequest``."""

    @functools.wraps(command)
    def with_load(url: str, options: Load, **flags: Any) -> Brought:
        return command(request=request_of(url, options), **flags)

    wrapped: Callable[..., Brought] = takes(Load, "options")(with_load)
    return click.argument("url")(wrapped)


def takes_two_loads(command: Callable[..., Brought]) -> Callable[..., Brought]:
    """Add the flags of load tests of two servers, or of one that is asked in two ways.

    The command gets ``requests``, A's and B's.
    """

    @functools.wraps(command)
    def with_loads(url: str, options: Load, other: Other, **flags: Any) -> Brought:
        return command(requests=requests_of_both(url, options, other), **flags)

    wrapped: Callable[..., Brought] = takes(Other, "other")(takes(Load, "options")(with_loads))
    return click.argument("url")(wrapped)

"""Which flags say how many replicas there are and who gets which request, the same for every verb that simulates?"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from inferometer.simulate.cluster_config import ROUTERS, ClusterConfig, Router
from inferometer.simulate.deployment import Deployment

_OPTIONS = (
    click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, help="Servers of this kind behind a router."),
    click.option(
        "--router",
        type=click.Choice(ROUTERS),
        default="least-loaded",
        show_default=True,
        help="Who gets a request; prefix-affine: where its prefix went; class-aware: each class has replicas of its own.",
    ),
)


class Servers(NamedTuple):
    """How many of which server behind which router, which draws by this seed?"""

    deployment: Deployment
    n_replicas: int = 1
    router: Router = "least-loaded"
    seed: int = 0

    @property
    def cluster(self) -> ClusterConfig:
        """The rules of the cluster."""
        return ClusterConfig(engine=self.deployment.config, n_replicas=self.n_replicas, router=self.router, seed=self.seed)


def takes_replicas(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags that make a cluster of the ``deployment`` of ``takes_deployment``; the command gets ``servers: Servers``."""

    @functools.wraps(command)
    def with_replicas(**flags: Any) -> None:
        command(servers=Servers(flags.pop("deployment"), flags.pop("replicas"), flags.pop("router")), **flags)

    wrapped: Callable[..., None] = with_replicas
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


__all__ = ["Servers", "takes_replicas"]

"""Which flags say how many replicas there are and who gets which request, the same for every verb that simulates?"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import click

from inferometer.cli import data_parallel
from inferometer.errors import SpecError
from inferometer.simulate.cluster_config import ROUTERS, ClusterConfig, Router
from inferometer.simulate.deployment import Case, Deployment
from inferometer.simulate.disaggregated_deployment import PrefillPool
from inferometer.simulate.disaggregation_config import DisaggregatedConfig

replicas_option: Final = click.option(
    "--replicas",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Servers of this kind behind a router.",
)
_OPTIONS: Final = (
    replicas_option,
    data_parallel.data_parallel_option,
    click.option(
        "--router",
        type=click.Choice(ROUTERS),
        help=(
            "Who gets a request; prefix-affine: where its prefix went; class-aware: each class has"
            " replicas of its own; vllm: as its data parallelism does. [least-loaded; vllm with"
            " --data-parallel-size]"
        ),
    ),
    click.option(
        "--class-replicas",
        "class_replicas",
        multiple=True,
        metavar="CLASS=N,...",
        help="class-aware: the replicas of a class, from 0; repeatable. [shared evenly]",
    ),
    click.option(
        "--prefix-threshold",
        type=click.FloatRange(0, 1),
        default=0.3,
        show_default=True,
        help="prefix-affine: a known prefix counts where it is more than this share of the prompt.",
    ),
    click.option(
        "--balance-abs",
        type=click.IntRange(min=0),
        default=64,
        show_default=True,
        help="prefix-affine: loads that differ by more, and",
    ),
    click.option(
        "--balance-rel",
        type=click.FloatRange(min=0),
        default=1.5,
        show_default=True,
        help="… by more than this factor, are evened out.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRules:
    """Who gets which request?"""

    router: Router = "least-loaded"
    prefix_threshold_fraction: float = 0.3
    balance_abs: int = 64
    balance_rel_ratio: float = 1.5
    class_replicas: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names of classes, and which replicas are theirs."""

    def replicas_of(self, class_names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The replicas of each class of the workload, in its order; empty where they share them evenly.

        Raises
        ------
        SpecError
            A class of the workload has none, or a name is of no class.
        """
        named = dict(self.class_replicas)
        if named and set(named) != set(class_names):
            raise SpecError(
                f"replicas for the classes {', '.join(sorted(named))}",
                where="--class-replicas",
                allowed=f"each class of the workload once: {', '.join(class_names)}",
            )
        return tuple(named[name] for name in class_names) if named else ()


class Servers(NamedTuple):
    """How many of which server behind which router, which draws by this seed?

    Before them others may compute the prompts.
    """

    deployment: Deployment
    n_replicas: int = 1
    rules: RouterRules = RouterRules()
    seed: int = 0
    prefill: PrefillPool | None = None
    class_replicas: tuple[tuple[int, ...], ...] = ()
    in_lockstep: bool = False
    """Do they share experts, and take each step together?"""

    @property
    def n_in_all(self) -> int:
        """All replicas."""
        return self.n_replicas + (0 if self.prefill is None else self.prefill.cluster.n_replicas)

    def at(self, case: Case) -> "Servers":
        """The same as if they were known to be these."""
        return self._replace(
            deployment=self.deployment.at(case),
            prefill=None if self.prefill is None else self.prefill.at(case),
        )

    @property
    def cluster(self) -> ClusterConfig:
        """The rules of the cluster, or of those that generate answers."""
        return ClusterConfig(
            engine=self.deployment.config,
            n_replicas=self.n_replicas,
            in_lockstep=self.in_lockstep,
            router=self.rules.router,
            seed=self.seed,
            class_replicas=self.class_replicas,
            cache_threshold_fraction=self.rules.prefix_threshold_fraction,
            balance_abs_threshold=self.rules.balance_abs,
            balance_rel_threshold_ratio=self.rules.balance_rel_ratio,
        )

    @property
    def pools(self) -> DisaggregatedConfig | None:
        """The rules of both pools, where prompts are computed by others."""
        return None if self.prefill is None else self.prefill.before(self.cluster)


def takes_replicas(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags that make a cluster of the ``deployment`` of ``takes_deployment``.

    The command gets ``servers: Servers``.
    """

    @functools.wraps(command)
    def with_replicas(**flags: Any) -> None:
        n_replicas, n_sharing = flags.pop("replicas"), flags.pop("data_parallel_size")
        if n_replicas > 1 and n_sharing > 1:
            raise SpecError(
                f"{n_replicas} groups of {n_sharing} replicas",
                where="--replicas, --data-parallel-size",
                allowed="one of them",
            )
        rules = RouterRules(
            router=flags.pop("router") or ("vllm" if n_sharing > 1 else "least-loaded"),
            prefix_threshold_fraction=flags.pop("prefix_threshold"),
            balance_abs=flags.pop("balance_abs"),
            balance_rel_ratio=flags.pop("balance_rel"),
            class_replicas=tuple(_class_replicas(text) for text in flags.pop("class_replicas")),
        )
        if rules.class_replicas and rules.router != "class-aware":
            raise SpecError(
                f"--router {rules.router}", where="--class-replicas", allowed="class-aware"
            )
        deployment = data_parallel.sharing_experts(flags.pop("deployment"))
        command(
            servers=Servers(
                deployment, max(n_replicas, n_sharing), rules, in_lockstep=n_sharing > 1
            ),
            **flags,
        )

    wrapped: Callable[..., None] = with_replicas
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def _class_replicas(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, numbers = text.partition("=")
    listed = [number.strip() for number in numbers.split(",")]
    if not equals or not name.strip() or not all(number.isdigit() for number in listed):
        raise SpecError(
            f"{text!r}",
            where="--class-replicas",
            allowed="CLASS=N,... with replicas from 0",
            try_="--class-replicas chat=0,1",
        )
    return name.strip(), tuple(int(number) for number in listed)

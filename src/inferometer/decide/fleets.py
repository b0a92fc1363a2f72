"""Which fleets does a search try: around any replica, and with any number of them?"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from inferometer.simulate import deployment as pools
from inferometer.simulate.deployment import Case, Deployment
from inferometer.simulate.fleet import ClusterConfig, Fleet, Router


class Prepared(NamedTuple):
    """A replica as it stands in a fleet."""

    deployment: Deployment
    n_devices_beside: int
    """Devices of the replicas that compute its prompts."""


class Fleets(Protocol):
    """What holds for every fleet that is tried: ``api.fleet.Fleets`` makes it of a user's options."""

    @property
    def router(self) -> Router:
        """Who distributes requests."""
        ...

    @property
    def n_replicas(self) -> int | None:
        """Where their number is fixed."""
        ...

    @property
    def n_prefill(self) -> int:
        """Replicas that compute prompts alone, besides ``n_replicas``."""
        ...

    @property
    def is_plain(self) -> bool:
        """Is a part of the replicas with its part of the load like all of them?"""
        ...

    @property
    def can_lose_one(self) -> bool:
        """Do the others go on where one replica dies?"""
        ...

    def prepared(self, deployment: Deployment) -> Prepared:
        """The replica as it stands in these fleets; SpecError where it cannot."""
        ...

    def fleet(
        self, deployment: Deployment, case: Case, n_replicas: int, n_prefill: int | None = None
    ) -> Fleet:
        """What is simulated: this number of these replicas, as if they were known to be these."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Equal replicas behind a router, and nothing else."""

    router: Router = "least-loaded"
    n_replicas: int | None = None
    n_prefill: int = 0
    is_plain: bool = True
    can_lose_one: bool = True

    def prepared(self, deployment: Deployment) -> Prepared:
        """The replica itself."""
        return Prepared(deployment, 0)

    def fleet(
        self, deployment: Deployment, case: Case, n_replicas: int, n_prefill: int | None = None
    ) -> Fleet:
        """These replicas; those that compute prompts are as they are."""
        known = deployment.at(case)
        is_lone = n_replicas == 1 and not n_prefill
        replicas = ClusterConfig(
            engine=known.config,
            n_replicas=n_replicas,
            # The router of one replica is never asked, and may be one that its engine refuses.
            router="round-robin" if is_lone else self.router,
        )
        fleet = Fleet(
            replicas=replicas,
            step_times=known.step_times.likely,
            front_end_s=known.front_end_s,
        )
        if not n_prefill:
            return fleet
        link, origin = pools.kv_link(known, known, pools.LinkAsked())
        prefill = replace(replicas, n_replicas=n_prefill)
        pool = pools.PrefillPool(deployment=known, cluster=prefill, link=link, link_origin=origin)
        return replace(fleet, prefill=pool.replicas)

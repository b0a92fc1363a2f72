"""Simulations of fleets of one form each, with the arguments of their plain forms in ``reference``."""

from typing import NamedTuple

from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.simulate.fleet import Fleet, PrefillReplicas
from inferometer.simulate.run import Recording, simulate_fleet, simulate_replicas


class PoolCosts(NamedTuple):
    """Step times of the prefill and the decode replicas."""

    prefill: StepTimeArrays
    decode: StepTimeArrays


def simulate_cluster(requests, cluster, cost, *, gate=None, **recording):
    """Several replicas, or one by the loop for several."""
    fleet = Fleet(replicas=cluster, step_times=cost, gate=gate)
    names = {name.removeprefix("record_"): value for name, value in recording.items()}
    return simulate_replicas(fleet, requests, Recording(**names))


def simulate_disaggregated(requests, config, costs, *, gate=None, **recording):
    """Prefill and decode replicas, numbered in this order."""
    return simulate_fleet(fleet_of_pools(config, costs, gate), requests, **recording)


def fleet_of_pools(config, costs, gate=None):
    prefill = PrefillReplicas(
        replicas=config.prefill,
        step_times=costs.prefill,
        link=config.link,
        answer_begins_at=config.answer_begins_at,
    )
    return Fleet(replicas=config.decode, step_times=costs.decode, prefill=prefill, gate=gate)


def simulate_groups(requests, placement, **recording):
    """Replicas of different kinds."""
    return simulate_fleet(fleet_of_groups(placement), requests, **recording)


def fleet_of_groups(placement):
    return Fleet(
        replicas=placement.cluster,
        step_times=placement.groups[0].step_times,
        placement=placement,
    )

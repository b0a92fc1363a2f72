"""How does a workload's plan become what a simulator is asked?"""

import numpy as np

from inferometer.records.types import ABSENT
from inferometer.simulate.demand import Demand, demand
from inferometer.spec.workload.plan import NONE, RequestPlan, block_contents


def demand_of(plan: RequestPlan, block_size: int, *, has_contents: bool = True) -> Demand:
    """The plan's requests, with an id for each full block of ``block_size`` tokens where ``has_contents`` (prefix caching asks for them).

    Raises
    ------
    SpecError
        More blocks than can be numbered.
    """
    is_follower = plan.follows != NONE
    leaves = plan.abort_after_ns != NONE
    requests = demand(
        np.where(is_follower, 0, plan.arrival_ns),
        plan.prompt_tokens,
        plan.output_tokens,
        max_tokens=plan.max_tokens,
        priority=plan.priority,
        class_index=plan.class_index,
        tenant_index=plan.tenant_index,
        abort_ns=np.where(
            leaves, np.where(is_follower, 0, plan.arrival_ns) + plan.abort_after_ns, ABSENT
        ),
        follows=plan.follows,
        think_ns=np.where(is_follower, plan.think_ns, 0),
    )
    if not has_contents:
        return requests
    contents = block_contents(plan, block_size)
    return requests._replace(content_start=contents.start, contents=contents.ids)

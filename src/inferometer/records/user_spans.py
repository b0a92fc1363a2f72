"""From when to when was each user of a load, or each session, at work?"""

import numpy as np

from inferometer.inputs.workload.plan import RequestPlan, first_of_each
from inferometer.records.columns import I64
from inferometer.records.types import ABSENT, RequestTable


def user_spans_ns(requests: RequestTable, plan: RequestPlan) -> tuple[I64, I64]:
    """Start of each user's first think time, and end of its last request.

    By the index in the plan (N) of the first request of each user; the end is ABSENT where there is none.
    """
    user = first_of_each(plan.follows)[requests.request_index]
    began_ns = requests.intended_send_ns - np.maximum(plan.think_ns[requests.request_index], 0)
    is_ended = requests.finished_ns != ABSENT
    last_ns = np.full(plan.n_requests, ABSENT, np.int64)
    np.maximum.at(last_ns, user[is_ended], requests.finished_ns[is_ended])
    first_ns = np.full(plan.n_requests, np.iinfo(np.int64).max)
    np.minimum.at(first_ns, user[is_ended], began_ns[is_ended])
    return first_ns, last_ns

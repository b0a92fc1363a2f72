"""Hypothesis strategies: any plan of requests that can be sent."""

import numpy as np
from hypothesis import strategies as st

from inferometer.inputs.workload.plan import NONE, request_plan


@st.composite
def plans(draw):
    """Requests of which some follow others, some wait for several, and some begin with the tokens of earlier ones."""
    n = draw(st.integers(1, 12))
    numbers = st.lists(st.integers(0, 60), min_size=n, max_size=n)
    prompt, output, extra, share = (np.array(draw(numbers)) for _ in range(4))
    follows, owner, shared = np.full(n, NONE), np.full(n, NONE), np.zeros(n, np.int64)
    prompt, output = prompt + 1, output + 1
    for row in range(1, n):
        if draw(st.booleans()):
            follows[row] = draw(st.integers(0, row - 1))
        if draw(st.booleans()):
            owner[row] = draw(st.integers(0, row - 1))
            shared[row] = min(
                int(share[row]), int(prompt[row]), int(prompt[owner[row]] + output[owner[row]])
            )
    joins, accompanies = np.full((2, n), NONE)
    for row in range(n):
        those = np.flatnonzero((follows[:row] != NONE) & (accompanies[:row] == NONE))
        if len(those) and draw(st.booleans()):
            accompanies[row] = lead = draw(st.sampled_from(those.tolist()))
            follows[row] = follows[lead]
    for row in range(n - 1):
        those = (follows[row + 1 :] != NONE) & (accompanies[row + 1 :] == NONE)
        those = row + 1 + np.flatnonzero(those)
        if len(those) and draw(st.booleans()):
            joins[row] = draw(st.sampled_from(those.tolist()))
    arrival = np.cumsum(np.array(draw(numbers)) * 10**7)
    is_follower = follows != NONE
    return request_plan(
        "here",
        arrival_ns=np.where(is_follower, NONE, arrival),
        follows=follows,
        joins=joins,
        accompanies=accompanies,
        think_ns=np.where(is_follower, np.array(draw(numbers)), NONE),
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output + extra,
        class_index=np.array(draw(numbers)) % 2,
        tenant_index=np.array(draw(numbers)) % 3,
        priority=np.array(draw(numbers)) - 30,
        abort_after_ns=np.array(draw(numbers)) - 1,
        session_index=np.array(draw(numbers)) - 1,
        prefix_request=owner,
        prefix_tokens=shared,
    )

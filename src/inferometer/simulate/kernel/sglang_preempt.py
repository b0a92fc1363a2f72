"""Who has to go for somebody more urgent? SGLang's rules, compiled.

The same as ``reference.sglang_admission.PrefillAdder.victims_of`` and
``reference.sglang.SglangScheduler._preempt_for``.
"""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel import sglang_admission as admission, sglang_cache as cache
from inferometer.simulate.kernel.state import NOTHING, State
from inferometer.simulate.sglang_config import CLIP_MAX_NEW_TOKENS


@compiled
def preempt_for(state: State, index: int) -> bool:
    """Throw out those who generate and are much less urgent than one that waits, if that is enough."""
    own = state.sglang[0]
    n_victims = _mark_victims(state, index)
    if n_victims == 0:
        return False
    i_running = 0
    while i_running < own.n_generating:
        victim = state.running[i_running]
        if not state.chunks[i_running]:
            i_running += 1
            continue
        for i_later in range(i_running + 1, own.n_generating):
            state.running[i_later - 1] = state.running[i_later]
            state.chunks[i_later - 1] = state.chunks[i_later]
        own.n_generating -= 1
        own.total_offset -= admission.n_expected(state, victim)
        cache.throw_out(state, victim)
    return True


@compiled
def _mark_victims(state: State, index: int) -> int:
    """How many, noted in ``chunks``?

    The least urgent first, of equals the last to come; nobody, if all of them are not enough.
    """
    own, config, request, n_victims = state.sglang[0], state.config[0], state.requests[index], 0
    for i_running in range(own.n_generating):
        state.chunks[i_running] = 0
    n_wanted = (
        request.num_known_tokens
        + min(admission.max_new_tokens(state, index), CLIP_MAX_NEW_TOKENS)
        - admission.total_left(state)
    )
    while True:
        i_worst = NOTHING
        for i_running in range(own.n_generating):
            if not state.chunks[i_running] and (
                i_worst == NOTHING or _is_less_urgent(state, i_running, i_worst)
            ):
                i_worst = i_running
        if i_worst == NOTHING:
            return 0
        worst = state.requests[state.running[i_worst]]
        if (
            config.priority_sign * (worst.priority - request.priority)
            <= config.preemption_threshold
        ):
            return 0
        state.chunks[i_worst] = 1
        n_victims += 1
        n_wanted -= admission.n_expected(state, state.running[i_worst])
        if n_wanted <= 0:
            return n_victims


@compiled
def _is_less_urgent(state: State, i_one: int, i_other: int) -> bool:
    one, other = state.requests[state.running[i_one]], state.requests[state.running[i_other]]
    if one.priority != other.priority:
        is_less: bool = state.config[0].priority_sign * (one.priority - other.priority) > 0
        return is_less
    came_later: bool = one.turn > other.turn
    return came_later

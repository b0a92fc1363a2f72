"""Compare the twins' radix tree, admission, retraction and preemption with those of SGLang 0.5.23, and record what these say.

Where ``sglang`` can be imported (no GPU is needed, nor most of what it depends on), from the root
of the repository::

    PYTHONPATH=src:tests/simulate python tests/simulate/record_sglang_traces.py fuzz 3000
    PYTHONPATH=src:tests/simulate python tests/simulate/record_sglang_traces.py record 150
"""

import sys
from array import array
from types import SimpleNamespace

import torch
from sglang.srt.managers import schedule_batch, schedule_policy
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.prefill_budget import PrefillBudget
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang_cases import (
    GOLDEN,
    OwnTree,
    TreeCase,
    play_admission,
    play_preemption,
    play_retraction,
    play_tree,
    random_admission_case,
    random_pressure_case,
    random_tree_case,
    store,
)


class Allocator:
    """Counts pages, and none of what it is given back."""

    device = torch.device("cpu")

    def __init__(self, page_size, n_free_tokens):
        self.page_size, self.n_free_tokens = page_size, n_free_tokens

    def free_segment(self, *_, **__): ...
    def free(self, *_): ...
    def available_size(self):
        return self.n_free_tokens

    def mamba_full_cache_donor(self): ...
    def get_kvcache(self): ...
    def request_slot_reserve(self, **_):
        return 0

    def check_decode_capacity(self, *, num_tokens, **_):
        return self.n_free_tokens >= num_tokens

    def create_prefill_budget(self, tree_cache, *, num_mixed_decode_tokens=0):
        return PrefillBudget(self, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)


class RealTree:
    def __init__(self, case, n_free_tokens=0):
        self.allocator = Allocator(case.page_size, n_free_tokens)
        parts = (ComponentType.FULL,)
        self.cache = UnifiedRadixCache(
            CacheInitParams(False, None, self.allocator, case.page_size, tree_components=parts)
        )
        self.sequences = case.sequences

    def _key(self, which, n_tokens):
        return RadixKey(array("q", self.sequences[which][:n_tokens]))

    def insert(self, which, n_tokens):
        return self.cache.insert(
            InsertParams(key=self._key(which, n_tokens), value=torch.arange(n_tokens))
        ).prefix_len

    def match(self, which, n_tokens):
        result = self.cache.match_prefix(MatchPrefixParams(key=self._key(which, n_tokens)))
        return result.device_prefix_len, result.last_device_node

    def lock(self, node):
        return self.cache.lock(node)

    def unlock(self, lock):
        self.cache.unlock(lock)

    def evict(self, n_tokens):
        return self.cache.evict(EvictParams(num_tokens=n_tokens)).num_tokens_evicted

    def n_evictable(self):
        return self.cache.evictable_size()


class RealRequest(SimpleNamespace):
    __eq__, __hash__ = object.__eq__, object.__hash__

    def needs_host_load_back(self):
        return False


def real_request(tokens, n_said, most):
    return RealRequest(
        sampling_params=SimpleNamespace(max_new_tokens=most, ignore_eos=False),
        output_ids=[0] * n_said,
        full_untruncated_fill_ids=tokens,
        prefix_len=0,
        extend_end=None,
        last_node=None,
        host_hit_length=0,
        swa_host_hit_length=0,
        auxiliary_swa_host_hit_length=0,
        mamba_host_hit_length=0,
        retracted_stain=False,
        kv=SimpleNamespace(req_pool_idx=None, holds_mamba=False, holds_kv=False),
    )


class Adder(PrefillAdder):
    """Without what needs a server's configuration: replay and accounting of other tiers."""

    def _replay_len(self, *_):
        return 0

    def _account_prefill_cache_admission(self, *_): ...


def play_real_admission(case):
    tree, size = RealTree(case.tree, case.n_free_pages * case.tree.page_size), case.tree.page_size
    play_tree(case.tree, tree)
    running = SimpleNamespace(reqs=[real_request([], said, most) for _, said, most in case.running])
    chunk = None if case.chunked_prefill_size == -1 else case.chunked_prefill_size
    n_mixed = len(case.running) if case.is_mixed else 0
    adder, said = (
        Adder(
            size,
            tree.cache,
            tree.allocator,
            running,
            case.ratio,
            case.max_prefill_tokens,
            chunk,
            n_mixed,
        ),
        [],
    )
    for which, most in case.waiting:
        if adder.budget_state().name == "OTHER":
            break
        request = real_request(case.tree.sequences[which], 0, most)
        request.prefix_len, request.last_node = tree.match(
            which, len(case.tree.sequences[which]) - 1
        )
        request.best_match_node = request.last_node
        verdict = adder.add_one_req(request, has_chunked_req=False, truncation_align_size=None).name
        is_chosen = bool(adder.can_run_list) and adder.can_run_list[-1] is request
        number = ("CONTINUE", "NO_TOKEN", "OTHER").index(verdict)
        said.append([number, request.prefix_len, request.extend_end if is_chosen else -1])
        if verdict != "CONTINUE":
            break
    return said


class RealBatch(schedule_batch.ScheduleBatch):
    """Those who generate; ``release_req`` counts the pages that come free."""

    def __init__(self, case, tree):
        self.reqs, self.tree_cache, self.token_to_kv_pool_allocator = [], tree.cache, tree.allocator
        self.spec_algorithm, self.released = SimpleNamespace(is_none=lambda: True), []
        for index, (prompt, said, most, priority) in enumerate(case.running):
            request = real_request([0] * prompt, said, most)
            request.index, request.priority, request.beam_group, request.rid = (
                index,
                priority,
                None,
                str(index),
            )
            request.origin_input_ids, request.finished = [0] * prompt, lambda: False
            request.kv.kv_committed_len = prompt + said - 1
            request.time_stats = SimpleNamespace(wait_queue_entry_time=index)
            self.reqs.append(request)

    def release_req(self, idx, *_, **__):
        self.released.append(self.reqs[idx].index)
        size = self.token_to_kv_pool_allocator.page_size
        self.token_to_kv_pool_allocator.n_free_tokens += (
            -(-self.reqs[idx].kv.kv_committed_len // size) * size
        )
        return True

    def filter_batch(self, keep_indices, **_):
        self.reqs = [self.reqs[index] for index in keep_indices]


def under_pressure(case):
    schedule = SimpleNamespace(
        retraction_policy="default",
        schedule_low_priority_values_first=case.is_low_first,
        schedule_policy="fcfs",
    )
    schedule_batch.get_schedule = schedule_policy.get_schedule = lambda: schedule
    tree = RealTree(TreeCase(case.page_size, [], []), case.n_free_pages * case.page_size)
    return tree, RealBatch(case, tree)


def play_real_retraction(case):
    _, batch = under_pressure(case)
    if batch.check_decode_mem():
        return []
    retracted, ratio, aborted = batch.retract_decode()
    return [*(request.index for request in retracted), -1 if aborted else ratio]


def play_real_preemption(case):
    tree, batch = under_pressure(case)
    prompt, most, priority = case.waiting
    waiting = real_request([0] * prompt, 0, most)
    waiting.priority = priority
    adder = Adder(
        case.page_size,
        tree.cache,
        tree.allocator,
        batch,
        case.ratio,
        16384,
        None,
        0,
        case.threshold,
    )
    adder.preempt_to_schedule(waiting)
    return sorted(batch.released)


PLAYS = {
    "trees": (
        random_tree_case,
        lambda case: play_tree(case, RealTree(case)),
        lambda case: play_tree(case, OwnTree(case)),
    ),
    "admissions": (random_admission_case, play_real_admission, play_admission),
    "retractions": (random_pressure_case, play_real_retraction, play_retraction),
    "preemptions": (random_pressure_case, play_real_preemption, play_preemption),
}


def main():
    what, n_cases = sys.argv[1], int(sys.argv[2])
    recorded, n_different = {name: [] for name in PLAYS}, 0
    for name, (random_case, real, own) in PLAYS.items():
        for seed in range(n_cases):
            case = random_case(seed)
            said = real(case)
            recorded[name].append([case, said])
            if said != own(case):
                n_different += 1
                sys.stderr.write(f"{name} {seed}: {case}\n  {said}\n  {own(case)}\n")
    counts = ", ".join(
        f"{sum(len(said) for _, said in cases)} answers of {n_cases} {name}"
        for name, cases in recorded.items()
    )
    sys.stdout.write(f"{counts}; {n_different} different\n")
    if what == "record":
        store(GOLDEN, **recorded)
    return min(n_different, 1)


if __name__ == "__main__":
    sys.exit(main())

"""Random uses of SGLang's radix tree and of its admission, played on the real ones and on the twins alike."""

import gzip
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cases import Case
from reference.request import Request
from reference.sglang import SglangScheduler
from reference.sglang_admission import PrefillAdder
from reference.sglang_cache import PageCache
from reference.sglang_tree import RadixTree

from inferometer.simulate.kernel.sglang_admission import Verdict
from inferometer.simulate.outcome import Status
from inferometer.simulate.sglang_config import SglangConfig

GOLDEN = Path(__file__).with_name("sglang_0_5_23_traces.json.gz")


class TreeCase(NamedTuple):
    page_size: int
    sequences: list[list[int]]
    calls: list[list[int]]
    """(0 insert, sequence, tokens) (1 match, sequence, tokens) (2 match and lock) (3 unlock,
    which) (4 evict, tokens)"""


def random_tree_case(seed: int) -> TreeCase:
    rng = np.random.default_rng(seed)
    page_size = int(rng.choice([1, 2, 4]))
    sequences: list[list[int]] = []
    for _ in range(12):
        fresh = [int(token) for token in rng.integers(0, 2, int(rng.integers(1, 40)))]
        if sequences and rng.random() < 0.6:
            other = sequences[int(rng.integers(len(sequences)))]
            fresh = other[: int(rng.integers(1, len(other) + 1))] + fresh
        sequences.append(fresh[:60])
    calls, n_locks = [], 0
    for _ in range(60):
        call = int(rng.choice([0, 0, 1, 2, 3, 4, 4]))
        which = int(rng.integers(12))
        n_tokens = int(rng.integers(1, len(sequences[which]) + 1))
        if call == 3:
            if n_locks:
                calls.append([3, int(rng.integers(n_locks))])
                n_locks -= 1
        elif call == 4:
            calls.append([4, int(rng.integers(1, 20))])
        else:
            calls.append([call, which, n_tokens])
            n_locks += call == 2
    return TreeCase(page_size, sequences, calls)


class OwnTree:
    def __init__(self, case: TreeCase) -> None:
        self.size, self.tree = case.page_size, RadixTree()
        ids: dict = {}
        self.contents = [
            Case._chain(tuple(sequence), case.page_size, ids) for sequence in case.sequences
        ]

    def insert(self, which, n_tokens):
        return self.tree.insert(self.contents[which], n_tokens // self.size)[0] * self.size

    def match(self, which, n_tokens):
        n_pages, node = (
            self.tree.match(self.contents[which], n_tokens // self.size)
            if n_tokens >= self.size
            else (0, self.tree.root)
        )
        return n_pages * self.size, node

    def lock(self, node):
        self.tree.lock(node)
        return node

    def unlock(self, node):
        self.tree.unlock(node)

    def evict(self, n_tokens):
        return self.tree.evict(-(-n_tokens // self.size)) * self.size

    def n_evictable(self):
        return self.tree.n_evictable_pages * self.size


def play_tree(case: TreeCase, tree) -> list[list[int]]:
    """What each call says, and how much could go after it."""
    said, locks = [], []
    for call, *arguments in case.calls:
        if call == 0:
            answer = tree.insert(*arguments)
        elif call in (1, 2):
            answer, node = tree.match(*arguments)
            if call == 2:
                locks.append(tree.lock(node))
        elif call == 3:
            answer = tree.unlock(locks.pop(arguments[0])) or 0
        else:
            answer = tree.evict(*arguments)
        said.append([answer, tree.n_evictable()])
    return said


class AdmissionCase(NamedTuple):
    tree: TreeCase
    n_free_pages: int
    max_prefill_tokens: int
    chunked_prefill_size: int
    ratio: float
    running: list[list[int]]
    """(prompt tokens, tokens said, max_new_tokens) of those who generate; they hold no pages
    here."""
    waiting: list[list[int]]
    """(sequence, max_new_tokens)"""
    is_mixed: bool
    """Those who generate take part in the step of prompts."""


def random_admission_case(seed: int) -> AdmissionCase:
    rng = np.random.default_rng([seed, 1])
    tree = random_tree_case(seed)
    chunk = int(rng.choice([-1, 8, 16, 64]))
    running = [
        [int(rng.integers(1, 50)), said, said + int(rng.integers(0, 60))]
        for said in map(int, rng.integers(1, 9, int(rng.integers(0, 5))))
    ]
    waiting = [[int(rng.integers(12)), int(rng.integers(1, 30))] for _ in range(8)]
    return AdmissionCase(
        tree=tree,
        n_free_pages=int(rng.integers(0, rng.choice([60, 200, 600]))),
        max_prefill_tokens=int(rng.choice([16, 64, 400])),
        chunked_prefill_size=chunk,
        ratio=float(rng.choice([0.1, 0.35, 0.7])),
        running=running,
        waiting=waiting,
        is_mixed=bool(rng.random() < 0.5) and chunk != -1,
    )


def play_admission(case: AdmissionCase) -> list[list[int]]:
    """For each that waits until one stops the queue.

    The verdict, and where it would begin and end computing (-1: it may not).
    """
    own = OwnTree(case.tree)
    play_tree(case.tree, own)
    size = case.tree.page_size
    config = SglangConfig(
        max_total_num_tokens=100_000 * size,
        context_length=100_000,
        max_running_requests=4,
        page_size=size,
        max_prefill_tokens=case.max_prefill_tokens,
        chunked_prefill_size=case.chunked_prefill_size,
        enable_mixed_chunk=case.is_mixed,
    )
    cache = PageCache(config)
    cache.tree, cache.n_free_pages = own.tree, case.n_free_pages
    running = [
        request_of(i, prompt, said, most, []) for i, (prompt, said, most) in enumerate(case.running)
    ]
    adder, said = PrefillAdder(config, cache, running, case.ratio), []
    for which, most in case.waiting:
        if adder.verdict is Verdict.OTHER:
            break
        request = request_of(which, len(case.tree.sequences[which]), 0, most, own.contents[which])
        num_cached, node = cache.match(request, request.num_tokens - 1)
        n_before = len(adder.chosen)
        verdict = adder.try_to_add(request, node, num_cached)
        end = num_cached + adder.chosen[-1][1] if len(adder.chosen) > n_before else -1
        said.append([int(verdict), num_cached, end])
        if verdict is not Verdict.CONTINUE:
            break
    return said


class PressureCase(NamedTuple):
    """Memory lacks for those who generate, or for one more urgent than they are."""

    page_size: int
    n_free_pages: int
    ratio: float
    threshold: int
    is_low_first: bool
    running: list[list[int]]
    """(prompt tokens, tokens said, max_new_tokens, priority)"""
    waiting: list[int]
    """(prompt tokens, max_new_tokens, priority)"""


def random_pressure_case(seed: int) -> PressureCase:
    rng = np.random.default_rng([seed, 2])
    running = []
    for _ in range(int(rng.integers(1, 9))):
        n_said = int(rng.integers(1, 9))
        running.append(
            [
                int(rng.integers(1, 30)),
                n_said,
                n_said + int(rng.integers(1, 60)),
                int(rng.integers(0, 5)),
            ]
        )
    return PressureCase(
        page_size=int(rng.choice([1, 2, 4])),
        n_free_pages=int(rng.integers(0, rng.choice([2, 8, 60]))),
        ratio=float(rng.choice([0.1, 0.35, 0.7])),
        threshold=int(rng.integers(0, 3)),
        is_low_first=bool(rng.random() < 0.5),
        running=running,
        waiting=[int(rng.integers(1, 20)), int(rng.integers(1, 20)), int(rng.integers(0, 5))],
    )


def play_retraction(case: PressureCase) -> list[float]:
    """Who has to go so that the others can go on, in order, and the ratio after it, -1 where not even the last can; nothing where nobody

    has to.
    """
    size = case.page_size
    scheduler = SglangScheduler(
        SglangConfig(max_total_num_tokens=100_000 * size, context_length=100_000, page_size=size)
    )
    for index, (prompt, said, most, _) in enumerate(case.running):
        request = request_of(index, prompt, said, most, [])
        request.num_computed_tokens = prompt + said - 1
        scheduler.cache.open(request, scheduler.cache.tree.root, 0)
        scheduler.cache.extend(request, request.num_computed_tokens)
        scheduler.running.append(request)
    for request in scheduler.running:
        scheduler._slots.take(request)
    scheduler.cache.n_free_pages = case.n_free_pages
    if scheduler._fits(scheduler.running):
        return []
    retracted = [request.index for request in scheduler._retract()]
    return [*retracted, scheduler.new_token_ratio if scheduler._fits(scheduler.running) else -1]


def play_preemption(case: PressureCase) -> list[int]:
    """Who has to go for the one that waits; nobody, if all who may are not enough."""
    size = case.page_size
    config = SglangConfig(
        max_total_num_tokens=100_000 * size,
        context_length=100_000,
        page_size=size,
        enable_priority_scheduling=True,
        schedule_low_priority_values_first=case.is_low_first,
        priority_scheduling_preemption_threshold=case.threshold,
    )
    cache = PageCache(config)
    cache.n_free_pages = case.n_free_pages
    running = []
    for index, (prompt, said, most, priority) in enumerate(case.running):
        request = request_of(index, prompt, said, most, [])
        request.priority, request.turn = priority, index
        running.append(request)
    prompt, most, priority = case.waiting
    waiting = request_of(len(running), prompt, 0, most, [])
    waiting.priority, waiting.num_known_tokens = priority, prompt
    victims = PrefillAdder(config, cache, running, case.ratio).victims_of(waiting, running)
    return sorted(victim.index for victim in victims)


def request_of(index, prompt, said, most, contents):
    request = Request(
        index,
        arrival_ns=0,
        prompt=prompt,
        stop=most,
        max_tokens=most,
        priority=0,
        contents=contents,
    )
    request.status = Status.WAITING
    request.num_tokens += said
    return request


def store(path: Path, **recorded) -> None:
    path.write_bytes(gzip.compress(json.dumps(recorded, separators=(",", ":")).encode(), mtime=0))


def load(path: Path):
    return json.loads(gzip.decompress(path.read_bytes()))

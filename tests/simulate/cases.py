"""Random workloads over the scheduler's whole configuration grid, the same for the real scheduler and for its twins."""

from dataclasses import dataclass, field, replace

import numpy as np

from inferometer.simulate.scheduler_config import SchedulerConfig

STOP_TOKEN = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRequest:
    prompt: tuple[int, ...]
    outputs: tuple[int, ...]
    """What the model would say; the last one is the stop token where that is before
    ``max_tokens``."""
    max_tokens: int
    priority: int
    arrival_step: int
    arrival: int
    """Rank of the arrival; requests that arrive together share it."""
    abort_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    seed: int
    config: SchedulerConfig
    requests: tuple[CaseRequest, ...]
    drain_steps: frozenset[int] = field(default_factory=frozenset)
    """Steps after which every batch in flight is processed, as when the host falls behind."""
    max_steps: int = 400

    def contents(self) -> list[list[int]]:
        """What each full block of prompt and output holds: dense integers, equal where all tokens so far are."""
        size = self.config.block_size
        ids: dict[tuple[int, tuple[int, ...]], int] = {}
        return [
            self._chain(request.prompt + request.outputs, size, ids) for request in self.requests
        ]

    @staticmethod
    def _chain(tokens, size, ids):
        chain, parent = [], -1
        for start in range(0, len(tokens) - size + 1, size):
            parent = ids.setdefault((parent, tokens[start : start + size]), len(ids))
            chain.append(parent)
        return chain


def random_case(seed: int) -> Case:
    """A small one, which reaches every corner of the rules; every fiftieth is of the size of real servers."""
    rng = np.random.default_rng(seed)
    is_large = seed % 50 == 49
    config = random_config(rng)
    if is_large:
        config = large_config(rng, config)
    n_requests = int(rng.integers(80, 160)) if is_large else int(rng.integers(2, 24))
    requests = random_requests(rng, config, n_requests)
    drain_rate = rng.choice([0.0, 0.1, 0.5])
    drains = frozenset(int(step) for step in np.flatnonzero(rng.random(400) < drain_rate))
    return Case(
        seed=seed,
        config=config,
        requests=requests,
        drain_steps=drains,
        max_steps=2000 if is_large else 400,
    )


def speculating_case(seed: int) -> Case:
    """The same workload with drafts that are verified.

    A threshold below theirs is one that the real scheduler fails on.
    """
    case, rng = random_case(seed), np.random.default_rng([seed, 2])
    n_drafts = int(rng.choice([1, 2, 3, 5]))
    acceptance = float(rng.choice([0.0, 0.3, 0.7, 0.95, 1.0]))
    if rng.random() < 0.3:
        acceptance = tuple(float(fraction) for fraction in np.round(rng.random(n_drafts), 2))
    threshold = case.config.long_prefill_token_threshold
    config = replace(
        case.config,
        num_speculative_tokens=n_drafts,
        draft_method=str(rng.choice(["ngram", "draft_model", "eagle"])),
        acceptance_fraction=acceptance,
        draft_cost_ratio=0.0,
        long_prefill_token_threshold=0 if threshold <= n_drafts else threshold,
    )
    return replace(case, config=config)


def piped_case(seed: int) -> Case:
    """The same workload on a pipeline."""
    case, rng = random_case(seed), np.random.default_rng([seed, 3])
    return replace(
        case, config=replace(case.config, pipeline_parallel_size=int(rng.choice([2, 3, 4])))
    )


def windowed_case(seed: int) -> Case:
    """The same workload on a model some of whose layers attend to a window; at times with drafts."""
    case = (random_case, piped_case, speculating_case)[seed % 3](seed)
    rng, config = np.random.default_rng([seed, 4]), case.config
    n_sliding, n_full = ((1, 0), (1, 1), (1, 2), (2, 1), (5, 1))[int(rng.integers(5))]
    method = config.draft_method
    config = replace(
        config,
        sliding_window=int(rng.integers(2, max(config.max_model_len // 2, 3))),
        num_sliding_groups=n_sliding,
        num_full_groups=n_full,
        draft_method="ngram" if method == "eagle" else method,
        num_blocks=config.num_blocks * 20,
    )
    n_spare = int(rng.choice([0, 1, 4, 16, 60]))
    config = replace(config, num_blocks=config.n_blocks_at_most_len + 1 + n_spare)
    return replace(case, config=config)


def random_config(rng) -> SchedulerConfig:
    block_size = int(rng.choice([1, 2, 4, 8, 16]))
    max_model_len = int(rng.integers(max(4, block_size), 16 * block_size if block_size > 2 else 48))
    max_num_seqs = int(rng.choice([1, 2, 3, 5, 8, 16]))
    is_chunked = bool(rng.random() < 0.8)
    batched = int(rng.choice([8, 16, 24, 64, 256]))
    batched = max(batched, max_num_seqs, 0 if is_chunked else max_model_len)
    n_smallest = max(2, -(-max_model_len // block_size))
    num_blocks = n_smallest + int(rng.choice([0, 1, 2, 4, 8, 30]))
    return SchedulerConfig(
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=batched,
        max_num_active_seqs=int(rng.integers(1, max_num_seqs + 1)) if rng.random() < 0.15 else None,
        block_size=block_size,
        enable_prefix_caching=bool(rng.random() < 0.7),
        enable_chunked_prefill=is_chunked,
        long_prefill_token_threshold=min(int(rng.choice([0, 0, 1, 3, 8, 20])), max_model_len),
        long_prefill_token_threshold_adaptive=bool(rng.random() < 0.3),
        policy="priority" if rng.random() < 0.5 else "fcfs",
        scheduler_reserve_full_isl=bool(rng.random() < 0.6),
        watermark_fraction=float(rng.choice([0.0, 0.0, 0.05, 0.3])),
        async_scheduling=bool(rng.random() < 0.5),
    )


def large_config(rng, config) -> SchedulerConfig:
    max_model_len = int(rng.integers(200, 1200))
    return replace(
        config,
        block_size=16,
        max_model_len=max_model_len,
        max_num_seqs=64,
        max_num_active_seqs=None,
        max_num_batched_tokens=2048 if config.enable_chunked_prefill else max(2048, max_model_len),
        num_blocks=max_model_len // 16 + int(rng.choice([20, 200, 2000])),
        long_prefill_token_threshold=int(rng.choice([0, 64])),
    )


def random_requests(rng, config, n_requests) -> tuple[CaseRequest, ...]:
    vocabulary = 2 if rng.random() < 0.7 else 50
    longest = config.max_model_len - 1
    spacing = rng.choice([0, 1, 4])
    step, arrival, made = 0, 0, []
    for _ in range(n_requests):
        gap = int(rng.integers(0, spacing + 1))
        step, arrival = step + gap, arrival + (gap > 0 or rng.random() < 0.5)
        prompt = random_prompt(rng, made, vocabulary, longest)
        max_tokens = int(rng.integers(1, 2 + rng.choice([4, 30])))
        n_outputs = int(rng.integers(1, max_tokens + 1)) if rng.random() < 0.4 else max_tokens
        outputs = [int(token) for token in rng.integers(0, vocabulary, n_outputs)]
        if n_outputs < max_tokens:
            outputs[-1] = STOP_TOKEN
        abort = step + int(rng.integers(0, 20)) if rng.random() < 0.1 else None
        made.append(
            CaseRequest(
                prompt=prompt,
                outputs=tuple(outputs),
                max_tokens=max_tokens,
                priority=int(rng.integers(0, 3)),
                arrival_step=step,
                arrival=int(arrival),
                abort_step=abort,
            )
        )
    return tuple(made)


def random_prompt(rng, made, vocabulary, longest) -> tuple[int, ...]:
    """A fresh prompt, or one that goes on where another's prompt or answer ended."""
    fresh = tuple(
        int(token) for token in rng.integers(0, vocabulary, int(rng.integers(1, longest + 1)))
    )
    if made and rng.random() < 0.6:
        other = made[int(rng.integers(len(made)))]
        shared = other.prompt + (other.outputs if rng.random() < 0.5 else ())
        cut = int(rng.integers(1, len(shared) + 1)) if rng.random() < 0.5 else len(shared)
        fresh = shared[:cut] + fresh[: int(rng.integers(0, len(fresh) + 1))]
    return fresh[:longest]

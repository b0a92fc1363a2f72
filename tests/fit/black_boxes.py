"""A server that nobody may look into, and load tests of it: simulated, with a client's noise."""

from dataclasses import dataclass

import numpy as np

from inferometer.fit.loads.load_tests import StepPace
from inferometer.fit.loads.server import STEP_NAMES, step_prior, steps_at
from inferometer.inputs.types import EngineSpec
from inferometer.records.types import ABSENT, ChunkTable, Run, RunManifest
from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig

PACE = StepPace(base_s=0.02, sequence_s=2e-4, context_token_s=1e-6, prompt_token_s=1e-4)
PLAIN = step_prior(PACE, np.full(10, 0.1), None, EngineSpec(), None).base
TRUE_X = np.log([4e-3, 2.4e-2, 1.1e-4, 8e-7, 1.5e-8, 2e-4, 2.0])
FRONT_END_S = 6e-3
SLOTS, BLOCKS = 12, 420


@dataclass(frozen=True)
class Box:
    config: SchedulerConfig
    seed: int = 0

    @property
    def steps(self):
        return steps_at(PLAIN, TRUE_X)

    def asked(self, rate_per_s, n_requests):
        rng = np.random.default_rng(self.seed + round(1000 * rate_per_s))
        sent_ns = np.round(np.cumsum(rng.exponential(1e9 / rate_per_s, n_requests))).astype(
            np.int64
        )
        prompt = np.clip(rng.lognormal(5.3, 0.8, n_requests), 8, 1200).astype(int)
        output = np.clip(rng.lognormal(3.8, 0.6, n_requests), 2, 200).astype(int)
        return sent_ns, prompt, output

    def served(self, rate_per_s, n_requests):
        """What happens, counted from the sending."""
        sent_ns, prompt, output = self.asked(rate_per_s, n_requests)
        done = simulate(
            demand(sent_ns + round(FRONT_END_S * 1e9), prompt, output), self.config, self.steps
        )
        return done._replace(
            requests=done.requests._replace(intended_send_ns=sent_ns, sent_ns=sent_ns)
        )

    def load_test(self, rate_per_s, n_requests, *, has_chunks=False):
        """What its client saw: tokens half a millisecond late, nothing of the inside.

        Each token's arrival where it records chunks.
        """
        done, rng = self.served(rate_per_s, n_requests), np.random.default_rng(self.seed)
        table = done.requests
        late_ns = rng.exponential(5e5, (2, n_requests)).astype(np.int64)
        first_ns = table.first_token_ns + late_ns[0]
        seen = table._replace(
            admitted_ns=np.full(n_requests, ABSENT),
            first_token_ns=first_ns,
            finished_ns=np.maximum(table.finished_ns + late_ns[1], first_ns),
            n_preemptions=np.zeros(n_requests, np.int32),
        )
        chunks = chunks_of(done, seen, rng) if has_chunks else None
        return Run(
            manifest=manifest(f"at {rate_per_s:g}"),
            sweep=None,
            steps=None,
            ceilings=None,
            requests=seen,
            chunks=chunks,
        )


def chunks_of(done, seen, rng):
    """A chunk for each token, at the end of its step and half a millisecond late."""
    ends_ns, n = done.steps.start_ns + done.steps.duration_ns, len(seen.status)
    spans = (
        np.searchsorted(ends_ns, column)
        for column in (done.requests.first_token_ns, done.requests.finished_ns)
    )
    steps = [np.arange(first, last + 1) for first, last in zip(*spans, strict=True)]
    index = np.repeat(np.arange(n, dtype=np.int32), [len(one) for one in steps])
    arrived_ns = ends_ns[np.concatenate(steps)] + rng.exponential(5e5, len(index)).astype(np.int64)
    return ChunkTable(
        index,
        arrived_ns,
        np.ones(len(index), np.int64),
        np.full(len(index), -1, np.int32),
        np.zeros(len(index), np.int8),
    )


def manifest(run_id):
    return RunManifest(
        run_id=run_id,
        origin="simulated",
        created_utc="2026-11-21T00:00:00+00:00",
        command=(),
        tool_version="0",
        plan=None,
        model=None,
        engine=None,
        host=None,
        source=None,
    )


def config(**changes):
    plain = {
        "num_blocks": 5000,
        "max_model_len": 2000,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "enable_prefix_caching": False,
    }
    return SchedulerConfig(**plain | changes)


assert len(STEP_NAMES) == len(TRUE_X)


class CpuBox(Box):
    """A server whose steps cost little beside their rows, as on a CPU.

    How prompts are cut shows in single gaps, hardly in means.
    """

    @property
    def steps(self):
        return steps_at(PLAIN, np.log([1.5e-3, 1.2e-2, 5e-4, 1e-7, 5e-8, 6e-4, 1.7]))

    def asked(self, rate_per_s, n_requests):
        rng = np.random.default_rng(self.seed + round(1000 * rate_per_s))
        sent_ns = np.round(np.cumsum(rng.exponential(1e9 / rate_per_s, n_requests))).astype(
            np.int64
        )
        prompt = np.clip(rng.lognormal(5.1, 0.9, n_requests), 8, 600).astype(int)
        output = np.clip(rng.lognormal(3.2, 0.5, n_requests), 4, 80).astype(int)
        return sent_ns, prompt, output

"""A server that ``tune --start`` starts, loads and stops, as a simulation: what it does, nobody else knows.

Three things of a measurement are replaced: the process that is started, the model that it lists,
and the load test, which is simulated on a random server with the settings that its command states.
The machine is slower or faster in one load test of a pair than in the other by a factor that is
drawn. The model of the server is not fitted to its load tests, which takes half a minute each time:
it is the true server with step times that are off by as much as such fits are. All else is the code
that measures real servers: folders, orders of pairs, predictions, decisions, the confirmation.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np

from inferometer.api import ab_pairs, load_request, tune_measured, tune_pairs, tune_subject
from inferometer.api.fleet import FleetOptions
from inferometer.api.load_run import LoadedRun
from inferometer.api.server import Server, deployment_of, server_with
from inferometer.decide.candidates import Alike
from inferometer.decide.probing import run_plan
from inferometer.decide.tuning.search import Tuning
from inferometer.decide.tuning.start_command import parse_start
from inferometer.decide.tuning.trials import Trials, case_of
from inferometer.measure.served import ServedFacts
from inferometer.perfmodel.steptime_terms import slowed
from inferometer.simulate.deployment import Draw
from inferometer.simulate.fleet import lone_replica

FIT_ERROR = 0.05
"""Standard deviation of the logarithm of a fitted step time. Of 50 random servers that were fitted to
load tests at three rates TPOT at other rates was within 5 % on all, its intervals' half width 1.6 to
2.0 % (docs/accuracy.md); here there is one rate."""
TUNED = ("max_num_seqs", "max_num_batched_tokens")
"""What a start command states by a flag of its own; all else by --set."""


def settings_of(words):
    """What a start command of ``inferometer emulate`` states of the settings that are tuned."""
    start = parse_start(" ".join(words))
    found = {name: int(start.value(name)) for name in TUNED if start.value(name) is not None}
    pairs = zip(start.words, start.words[1:], strict=False)
    given = dict(value.split("=", 1) for flag, value in pairs if flag == "--set")
    return found | {
        name: int(value) if value.isdecimal() else value for name, value in given.items()
    }


@dataclass(kw_only=True)
class TunedServer:
    """A true server: a machine, and what it makes of settings."""

    server: Server
    rank: int
    """Of its step times among 19 draws of published rows, the fastest 0."""
    slower_ratio: float
    """Than that draw."""
    noise: tuple[float, ...]
    """Logarithms by which two equal load tests of a pair differ: one of them is drawn."""
    seed: int
    ignored: bool = False
    """Do settings change nothing?"""
    distrust: str = ""
    """Why nothing is skipped for its prediction."""
    gains: dict[str, float] | None = None
    """Setting -> by what share steps are faster with it."""

    def __post_init__(self):
        self.words, self._fleets, self._models = (), {}, {}
        self.reseed(0)

    def fleet(self, settings):
        """The server with these settings, without noise."""
        key = tuple(sorted(settings.items()))
        if key not in self._fleets:
            own = {
                name: value for name, value in settings.items() if name not in (self.gains or {})
            }
            server = self.server if self.ignored else server_with(self.server, own)
            deployment = deployment_of(server)
            faster = math.prod(
                1 + gain for name, gain in (self.gains or {}).items() if name in settings
            )
            steps = slowed(
                deployment.at(case_of(deployment, self.rank)).step_times.likely,
                self.slower_ratio / faster,
            )
            self._fleets[key] = deployment.at(case_of(deployment, self.rank)).config, steps
        return self._fleets[key]

    def simulated(self, settings, plan, slower_ratio=1.0):
        """What becomes of these requests; ``slower_ratio``: of the machine just now."""
        config, steps = self.fleet(settings)
        return run_plan(lone_replica(config, slowed(steps, slower_ratio)), plan)

    def loaded(self, request, drawn, folder, percentiles):
        """In the place of a load test."""
        del percentiles
        slower = 1.0
        if folder.parent.name == "b":
            slower = math.exp(self.rng.choice((-1, 1)) * self.rng.choice(self.noise))
        run = self.simulated(settings_of(self.words), drawn.plan, slower)
        manifest = replace(run.manifest, load=request.load, is_complete=True)
        return LoadedRun(run=replace(run, manifest=manifest, steps=None))

    def set_gain(self, gain):
        """Steps are faster by this share with ``--set turbo=1``."""
        self.gains = {"turbo": gain}
        self._fleets.clear()

    def reseed(self, number):
        """Other noise, for another tuning of the same server."""
        self.rng = np.random.default_rng([self.seed, 9, number])

    def modelled(self, job, command, folders, number):
        """In the place of a fit: the settings of the command on plausible machines."""
        del folders, number
        settings = {
            name: value
            for name, value in settings_of(command.words).items()
            if name not in (self.gains or {})
        }
        key = tuple(sorted(settings.items()))
        if key not in self._models:
            subject = tune_subject.subject_of(
                job.wanted,
                server_with(self.server, settings),
                job.bench.load.workload,
                FleetOptions(),
                "vllm",
            )
            tuning = Tuning(
                trials=Trials(
                    lambda variant: self._uncertain(subject.trials.built(variant)), subject.aim
                ),
                steps=job.steps,
                now_of=lambda variant: tune_subject.now_of(subject, variant),
                least_gain_ratio=job.wanted.least_gain_fraction,
                seed=subject.aim.spec.seed,
                on_step=lambda _: None,
            )
            self._models[key] = tune_measured.Modelled(tuning, self.distrust)
        return self._models[key]

    def _uncertain(self, built):
        """The true server with step times as a fit of load tests leaves them."""
        known = built.deployment
        steps = slowed(known.at(case_of(known, self.rank)).step_times.likely, self.slower_ratio)
        rng = np.random.default_rng([self.seed, 8])
        logs = FIT_ERROR * (rng.standard_normal() + np.sort(rng.standard_normal(19)))
        draws = tuple(
            Draw(config=known.config, steps=slowed(steps, math.exp(one)), front_end_s=0.0)
            for one in logs
        )
        known = replace(known, draws=draws)
        return built._replace(
            deployment=known, fleet=lambda case: Alike().fleet(known, case, built.n_replicas)
        )

    @contextmanager
    def served(self, start) -> Generator[ServedFacts]:
        """In the place of a process."""
        self.words = start.words
        yield ServedFacts(1.0, "simulated", 0)

    @contextmanager
    def in_place(self) -> Generator[None]:
        """While this lasts, servers that are started are this one."""
        with (
            patch.object(tune_pairs, "served", self.served),
            patch.object(tune_measured, "served", self.served),
            patch.object(tune_pairs, "warm_up", lambda *_: None),
            patch.object(load_request, "_offered_model", lambda *_: self.server.model),
            patch.object(tune_measured, "_modelled", self.modelled),
            patch.object(ab_pairs.load_run, "run_load", self.loaded),
        ):
            yield

"""Which flags help a server that is started here: predicted, measured in pairs, taken or dropped?

The start command as it is runs first, against itself: this gives the noise, and a model of the
server by inverse simulation of its load tests. Each step of the playbook is simulated with that
model; what is worth it is measured in pairs of fresh servers, and taken or dropped. After a
change is taken the model is fitted anew to the changed server. At the end all changes together are
measured once more, in fresh pairs with other requests.

Settings that act on one another are tried together before each alone: the best combination is known
by simulation, and each step alone would cost as many pairs for a part of its gain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from inferometer.api import fitted_servers, runs, tune_subject
from inferometer.api.fleet import FleetOptions
from inferometer.api.known_facts import ServerKnowledge
from inferometer.api.load_request import request_of
from inferometer.api.progress import talk
from inferometer.api.server import Server
from inferometer.api.tune_paired import (
    CONFIDENCE_AGAIN,
    DOOR,
    N_LEAST,
    N_LEAST_CONFIRMED,
    N_SAME,
    PairsFound,
    Results,
    decision_of,
    step_row,
)
from inferometer.api.tune_pairs import Bench, Comparison, compared
from inferometer.api.tuning import MeasuredStep
from inferometer.decide.tuning import playbook, search, trials
from inferometer.decide.tuning.start_command import (
    StartCommand,
    parse_flags,
    with_settings,
    with_words,
)
from inferometer.errors import InferometerError, RecordError, SpecError
from inferometer.measure.served import served
from inferometer.records import run_folder
from inferometer.units import counted

N_LEAST_PAIRS: Final = 4
"""At most: no test is sure of a gain in fewer."""
_EXPLAINED_SHARE: Final = 0.625
"""Share of the pairs needed where simulations explain the draws: 10 in place of 16."""
_COMBINED: Final = ("max_num_seqs", "step_budget", "prefill_shaping")
_SEEDS_APART: Final = 1000
"""Between the requests of two steps."""
_CONFIRMING: Final = 500_000
_KNOWN: Final = ("max_num_seqs", "max_num_batched_tokens")
_SWITCHES: Final = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling")


class FirstServer(NamedTuple):
    """Facts about the first started server."""

    model: str
    version: str | None
    start_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to tune, and how far."""

    start: StartCommand
    bench: Bench
    wanted: tune_subject.Wanted
    steps: tuple[playbook.Step, ...]
    named: frozenset[str]
    """Steps that ``--steps`` names: those that change answers are measured only so."""
    own: tuple[str, ...]
    """Flags of the user's to try."""
    n_most: int
    seed: int
    usd_per_hour: float | None = None
    """Price of one device; None: not known."""


class Done(Results):
    """Results so far, and the server as it is now."""

    def __init__(
        self, first: FirstServer, same: PairsFound, model: "Modelled", start: StartCommand
    ) -> None:
        super().__init__(same)
        self.first = first
        self.command = start
        self.model = model
        self.first_model = model
        self.settings = dict[str, playbook.Value]()
        """Of the changes that were taken and can be simulated."""
        self.found = [same]
        """Of every comparison."""
        self.n_simulations = 0


class Modelled(NamedTuple):
    """Simulations of the server as it is now."""

    tuning: search.Tuning
    distrust: str
    """Why simulations may skip no measurement; '' where they may."""


def measured(job: Job) -> Done:
    """Measure all steps and confirm.

    Raises
    ------
    MeasureError
        The server does not start with the given command.
    """
    done = _baseline(job)
    job = replace(job, bench=_bench_of(job, done.first), steps=together_first(job.steps))
    for number, step in enumerate(job.steps, start=1):
        done.steps.append(_step(job, done, step, number))
    for number, words in enumerate(job.own, start=len(job.steps) + 1):
        done.steps.append(_own(job, done, words, number))
    if done.command == job.start:
        return done
    both = Comparison(
        "confirmation",
        (job.start, done.command),
        job.seed + _CONFIRMING,
        N_LEAST_CONFIRMED,
        job.n_most,
        _effects(job, done.first_model, done.settings, job.seed + _CONFIRMING),
        CONFIDENCE_AGAIN,
    )
    done.confirmed = compared(job.bench, both)
    done.found.append(done.confirmed)
    return done


def together_first(steps: Sequence[playbook.Step]) -> tuple[playbook.Step, ...]:
    """Order steps so that a combination precedes the steps that it combines."""
    order = [step.name for step in steps]
    firsts = [order.index(name) for name in _COMBINED if name in order]
    if "again" not in order or not firsts:
        return tuple(steps)
    others = [step for step in steps if step.name != "again"]
    again = steps[order.index("again")]
    return (*others[: min(firsts)], again, *others[min(firsts) :])


def _n_most_explained(job: Job) -> int:
    return max(round(job.n_most * _EXPLAINED_SHARE), N_LEAST_PAIRS)


def _effects(
    job: Job, model: "Modelled", settings: Mapping[str, playbook.Value], seed: int
) -> trials.DrawEffects | None:
    """Simulated effect of each pair's draw on its gain; None without a trusted simulation."""
    if model.distrust or not settings:
        return None
    spec = job.bench.request(seed).load.workload
    return trials.draw_effects(model.tuning.trials, playbook.changed((), settings), spec)


def _baseline(job: Job) -> Done:
    """The command against itself, and a model of the server."""
    first = _first(job)
    bench = _bench_of(job, first)
    talk(f"{first.model} was there after {first.start_s:.1f} s; {most_words(job, first.start_s)}")
    same = _same(job)
    found = compared(bench, same)
    if found.gain is None:
        raise RecordError(
            f"the command as it is was not measured: {found.fault}",
            where=str(bench.place(same)),
            try_="the command by hand, then the same command with another folder in --out",
        )
    model = _modelled(replace(job, bench=bench), job.start, _sides(bench, same, 0), 0)
    return Done(first, found, model, job.start)


def _same(job: Job) -> Comparison:
    return Comparison("same", (job.start, job.start), job.seed, N_SAME, N_SAME)


def baseline_folders(job: Job) -> tuple[Path, ...]:
    """The load tests of the command as it was given, against itself."""
    return tuple(one for side in (0, 1) for one in _sides(job.bench, _same(job), side))


def _bench_of(job: Job, first: FirstServer) -> Bench:
    load = replace(job.bench.load, model=first.model)
    return replace(job.bench, load=load, version=first.version)


def most_servers(job: Job) -> int:
    """The largest number of servers that are started."""
    n_changes = len(job.steps) + len(job.own)
    return 1 + 2 * (N_SAME + (n_changes + 1) * job.n_most)


def most_words(job: Job, start_s: float | None) -> str:
    """The plan's cost at most: of servers, of devices' minutes, of money; a start counts where it was timed."""
    n_servers = most_servers(job)
    words = [f"at most {n_servers} servers for {counted(len(job.steps) + len(job.own), 'step')}"]
    for_s = job.bench.load.workload.duration
    if for_s is not None:
        took_s = n_servers * (for_s + (start_s or 0.0))
        tp = job.start.value("tp") or ""
        n_devices = int(tp) if tp.isdecimal() else 1
        device_s = took_s * n_devices
        words.append(
            f"{took_s / 60:.0f} minutes of {'loads' if start_s is None else 'starts and loads'},"
            f" {device_s / 60:.0f} device-minutes"
        )
        if job.usd_per_hour is not None:
            words.append(f"{device_s / 3600 * job.usd_per_hour:.2f} $")
    return ", ".join(words)


def _first(job: Job) -> FirstServer:
    """Start the first server, and read what it serves."""
    path = job.bench.folder / "first.json"
    if path.exists():
        return DOOR.json(DOOR.bytes_of(path), FirstServer, where=str(path))
    talk(f"starting {job.start.text}")
    with served(job.bench.start(job.start, job.bench.folder / "first.log")) as facts:
        request = request_of(job.bench.url, job.bench.load)
        first = FirstServer(
            request.load.served_model, facts.version, facts.start_s, facts.memory_bytes
        )
    run_folder.replace_file(path, msgspec.json.encode(first))
    return first


def _sides(bench: Bench, comparison: Comparison, side: int) -> tuple[Path, ...]:
    """Present runs of one side, at most as many as are fitted."""
    place = bench.place(comparison) / ("a", "b")[side]
    return tuple(sorted(one for one in place.glob("pair-??") if one.is_dir()))[:N_SAME]


def _modelled(job: Job, command: StartCommand, folders: tuple[Path, ...], number: int) -> Modelled:
    """A model of the server under this command, fitted to its load tests."""
    path = job.bench.folder / f"fit-{number:02d}.json"
    request = runs.request_of(runs.Runs(runs=tuple(folders)))
    judged = fitted_servers.fit_load_tests(
        request, ServerKnowledge(known=_known(command)), n_tensor=None, forced=True
    )
    judged.fit.save(path)
    seen = [runs.load_run(one, request) for one in folders]
    lengths = [0 if run.requests is None else len(run.requests.status) for run in seen]
    n_requests = round(sum(lengths) / len(lengths))
    subject = tune_subject.subject_of(
        job.wanted,
        Server(model=judged.fit.served_model, fit=path, policy=_policy(command)),
        replace(job.bench.load.workload, requests=n_requests, duration=None),
        FleetOptions(),
        _policy(command),
    )
    tuning = search.Tuning(
        trials=subject.trials,
        steps=job.steps,
        now_of=lambda variant: tune_subject.now_of(subject, variant),
        least_gain_ratio=job.wanted.least_gain_fraction,
        seed=subject.aim.spec.seed,
        on_step=lambda _: None,
    )
    return Modelled(tuning, "" if judged.refusal is None else judged.refusal.reason)


def _policy(command: StartCommand) -> str:
    if command.family == "emulate":
        return command.value("policy") or "vllm"
    return command.family


def _known(command: StartCommand) -> str | None:
    """Limits that the command states."""
    facts = [f"{name}={value}" for name in _KNOWN if (value := command.value(name)) is not None]
    facts += [
        f"{name}={'on' if position else 'off'}"
        for name in _SWITCHES
        if (position := command.switch(name)) is not None
    ]
    return ",".join(facts) or None


def _step(job: Job, done: Done, step: playbook.Step, number: int) -> MeasuredStep:
    """Predict a step, then measure it where it may gain."""
    tuning = done.model.tuning
    predicted, settings, why = _proposed(job, done, step)
    done.n_simulations = max(done.n_simulations, tuning.trials.n_simulations)
    of_step, gain = (step.name, step.title, predicted.change), predicted.gain_ratio
    if settings is None:
        return step_row(*of_step, ("not measured", why), predicted=gain)
    try:
        command = with_settings(done.command, settings)
    except SpecError as error:
        return step_row(*of_step, ("not measured", error.what), predicted=gain)
    seed = job.seed + number * _SEEDS_APART
    effects = None if gain is None else _effects(job, done.model, settings, seed)
    found = _compared(job, done, step.name, command, number, effects)
    decided = decision_of(found, is_lossy=step.kind == "lossy")
    if decided[0] == "keep":
        done.settings |= settings
        _keep(job, done, step.name, command, found, number)
    return step_row(*of_step, decided, found, predicted=gain)


def _proposed(
    job: Job, done: Done, step: playbook.Step
) -> tuple[search.StepFound, dict[str, playbook.Value] | None, str]:
    """The change of a step that is worth a measurement; None, and why not."""
    tuning = done.model.tuning
    predicted = tuning.step(step)
    if step.kind != "plain" and step.name not in job.named:
        why = f"it changes answers or rests on their text: measured with --steps {step.name}"
        return predicted, None, why
    if predicted.change is not None:
        why = "" if done.model.distrust else _not_worth(job, done, predicted)
        if why:
            return predicted, None, why
        return predicted, dict(tuning.settings_of(step, predicted)), ""
    nearest = _nearest(tuning, step)
    if nearest is None or step.name not in job.named:
        return predicted, None, predicted.why
    unknown = replace(predicted, change=nearest.words)
    return unknown, dict(nearest.settings[0]), ""


def _not_worth(job: Job, done: Done, predicted: search.StepFound) -> str:
    """Why a simulated change is not measured; '' where it is worth it.

    A part of a combination that was measured must gain for sure: every value of it was compared in
    the combination, and pairs for what remains cost as many servers as those of the whole.
    """
    mean, least = predicted.mean_gain_ratio, job.wanted.least_gain_fraction
    if mean is not None and mean < least:
        if predicted.decision in {"not worth measuring", "drop"}:
            return f"predicted: {predicted.why}"
        return f"predicted: {mean:+.1%} in the mean of draws, less than {least:.1%}"
    whole = next((one for one in done.steps if one.name == "again" and one.n_pairs), None)
    if predicted.name not in _COMBINED or whole is None:
        return ""
    if whole.decision == "keep" and predicted.decision != "keep":
        return "chosen in the combination; no further gain is sure by simulation"
    if whole.decision == "drop" and whole.gain_fraction and whole.gain_fraction.value > 0:
        return "a part of the combination, whose larger gain was not sure"
    return ""


def _nearest(tuning: search.Tuning, step: playbook.Step) -> playbook.Change | None:
    """The nearest change of a step that no simulation predicts."""
    tries = step.tries(tuning.now_of(()))
    return None if isinstance(tries, str) else tries[0]


def _own(job: Job, done: Done, words: str, number: int) -> MeasuredStep:
    """Flags of the user's; nothing is predicted of them."""
    command = with_words(done.command, parse_flags(words))
    found = _compared(job, done, f"own-{number:02d}", command, number)
    decided = decision_of(found, is_lossy=False)
    if decided[0] == "keep":
        _keep(job, done, words, command, found, number)
    return step_row(words, "of your own", words, decided, found)


def _comparison(
    job: Job,
    done: Done,
    name: str,
    command: StartCommand,
    number: int,
    effects: trials.DrawEffects | None = None,
) -> Comparison:
    return Comparison(
        f"{number:02d}-{name}",
        (done.command, command),
        job.seed + number * _SEEDS_APART,
        N_LEAST,
        job.n_most if effects is None else _n_most_explained(job),
        effects,
    )


def _compared(
    job: Job,
    done: Done,
    name: str,
    command: StartCommand,
    number: int,
    effects: trials.DrawEffects | None = None,
) -> PairsFound:
    found = compared(job.bench, _comparison(job, done, name, command, number, effects))
    done.found.append(found)
    return found


def _keep(
    job: Job, done: Done, name: str, command: StartCommand, found: PairsFound, number: int
) -> None:
    """Continue with the changed server; with the old model where its runs cannot be fitted."""
    folders = _sides(job.bench, _comparison(job, done, name, command, number), 1)
    done.command = command
    done.selected_log_ratio += found.log_gain
    try:
        done.model = _modelled(job, command, folders, number)
    except InferometerError as error:
        talk(f"the changed server is not fitted anew: {error.what}")

"""What does a simulation say as a run, and what must it confess?

The run is of the type of measured ones.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from inferometer.inputs.types import ModelSpec
from inferometer.records.columns import I32
from inferometer.records.types import (
    ABSENT,
    Caution,
    RequestStatus,
    Run,
    RunManifest,
    StepMemoryTable,
)
from inferometer.simulate.disaggregation_config import DisaggregatedConfig
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.gate_config import Reason
from inferometer.simulate.outcome import Outcome, Simulation
from inferometer.simulate.overload import overload_cautions
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.trtllm_config import TrtllmConfig


def simulated_run(
    simulation: Simulation,
    config: EngineConfig | DisaggregatedConfig,
    *,
    run_id: str,
    created_utc: str,
    command: tuple[str, ...],
    tool_version: str,
    model: ModelSpec | None = None,
) -> Run:
    """The run behind a simulation; its manifest says what the numbers rest on and what they leave out."""
    manifest = RunManifest(
        run_id=run_id,
        origin="simulated",
        created_utc=created_utc,
        command=command,
        tool_version=tool_version,
        plan=None,
        model=model,
        engine=None,
        host=None,
        source=None,
        is_complete=True,
        cautions=(*cautions_of(simulation, config), *_shed_cautions(simulation)),
    )
    return Run(
        manifest=manifest,
        sweep=None,
        steps=simulation.steps,
        ceilings=None,
        requests=simulation.requests,
        parts=simulation.parts,
        visits=simulation.visits,
        step_memory=_step_memory(simulation),
    )


def _step_memory(simulation: Simulation) -> StepMemoryTable | None:
    holes, swapped = simulation.holes, simulation.swapped_blocks
    if simulation.steps is None or (holes is None and swapped is None):
        return None
    unknown = np.full(len(simulation.steps.start_ns), ABSENT)
    swapped = unknown if swapped is None else swapped
    if holes is None:
        return StepMemoryTable(unknown, unknown, unknown, swapped)
    return StepMemoryTable(
        holes.free_blocks, holes.largest_hole_blocks, holes.compaction_debt_blocks, swapped
    )


def cautions_of(
    simulation: Simulation, config: EngineConfig | DisaggregatedConfig
) -> tuple[Caution, ...]:
    """Why are these numbers less good than they look?

    Requests without an end are counted here, never dropped.
    """
    pools = config if isinstance(config, DisaggregatedConfig) else None
    config = config.decode.engine if isinstance(config, DisaggregatedConfig) else config
    seats = [config.max_num_active] * len(simulation.busy_ns) if pools is None else pools.seats
    return (
        *_ending_cautions(simulation, config),
        *_refusal_cautions(simulation, config),
        *_cut_cautions(simulation, config),
        *overload_cautions(simulation, seats, pools),
        *_assumptions(simulation, config),
    )


def _ending_cautions(simulation: Simulation, config: EngineConfig) -> list[Caution]:
    """Which requests have no end, or were never sent, and why?"""
    status = simulation.requests.status
    n_requests, n_unfinished = len(status), int(np.sum(status == RequestStatus.UNFINISHED))
    n_in_all = n_requests + simulation.n_never_sent
    cautions = list[Caution]()
    if simulation.outcome is Outcome.STUCK:
        text = (
            f"{n_unfinished} of {n_requests} requests wait for ever: the next one does not fit into"
            f" {config.n_kv_blocks} KV blocks"
        )
        remedy = (
            "more KV blocks or a smaller max_model_len; this is a property of the configuration"
        )
        cautions.append(Caution(code="stuck", text=text, remedy=remedy))
    elif simulation.outcome is Outcome.LIVELOCK:
        text = (
            f"{n_unfinished} of {n_requests} requests preempt one another for ever, as"
            f" {config.engine} would; the last token came "
        )
        text += "before that"
        remedy = (
            "scheduler_reserve_full_isl on, or long_prefill_token_threshold off; this is a property"
            " of the configuration"
        )
        cautions.append(Caution(code="livelock", text=text, remedy=remedy))
    elif n_unfinished:
        text = f"{n_unfinished} of {n_requests} requests were unfinished when the time was over"
        cautions.append(
            Caution(
                code="unfinished",
                text=text,
                remedy="a longer time, or read the latencies as lower bounds",
            )
        )
    if simulation.n_never_sent:
        text = (
            f"sent {n_requests:,} of {n_in_all:,} requests: the run ended before the others came,"
            " or before those that they follow ended"
        )
        remedy = (
            "a longer --until"
            if simulation.outcome is Outcome.HORIZON
            else "see there why those that they follow never end"
        )
        cautions.append(Caution(code="never sent", text=text, remedy=remedy))
    return cautions


def _refusal_cautions(simulation: Simulation, config: EngineConfig) -> list[Caution]:
    """Which requests did the engine refuse, and why? Those that the gate turned away are not among them."""
    status, cautions = simulation.requests.status, list[Caution]()
    n_requests = len(status)
    is_rejected = status == RequestStatus.REJECTED
    n_too_long = int(
        np.sum(is_rejected & (simulation.requests.prompt_tokens > config.max_prompt_tokens))
    )
    n_refused = (
        int(np.sum(is_rejected))
        - n_too_long
        - int(np.sum(_shed_reasons(simulation) != Reason.NONE))
    )
    if n_refused:
        text = (
            f"{n_refused} of {n_requests} requests were refused: they waited too long or found the"
            " queue full"
        )
        cautions.append(
            Caution(code="refused", text=text, remedy="a longer time-out or queue, or a lower rate")
        )
    if n_too_long:
        why, remedy = _too_long(config)
        text = f"{n_too_long} of {n_requests} requests were refused: their prompts {why}"
        cautions.append(Caution(code="rejected", text=text, remedy=remedy))
    return cautions


def _too_long(config: EngineConfig) -> tuple[str, str]:
    """Which prompts does the server refuse, and what would make it take them?"""
    if isinstance(config, TrtllmConfig) and config.max_prompt_tokens < config.max_seq_len - 1:
        remedy = (
            f"--max-num-batched-tokens {config.max_seq_len}, or --set enable_chunked_prefill=true"
        )
        return f"have more than max_num_tokens = {config.max_num_tokens} tokens", remedy
    return (
        f"reach max_model_len = {config.max_model_len}",
        "a larger max_model_len or shorter prompts",
    )


def _cut_cautions(simulation: Simulation, config: EngineConfig) -> tuple[Caution, ...]:
    cut = simulation.cut
    if not cut.n_answers:
        return ()
    text = (
        f"{cut.n_answers:,} answers were cut: prompt and answer together reach max_model_len ="
        f" {config.max_model_len}; "
    )
    text += f"they got {cut.n_output_tokens:,} of {cut.n_wanted_tokens:,} tokens"
    return (
        Caution(
            code="cut", text=text, remedy="a larger --max-model-len, or shorter prompts or answers"
        ),
    )


def _assumptions(simulation: Simulation, config: EngineConfig) -> tuple[Caution, ...]:
    """What was said, not measured, or may mean something else than the workload does?"""
    if (
        isinstance(config, SglangConfig)
        and config.enable_priority_scheduling
        and not config.schedule_low_priority_values_first
    ):
        if len(np.unique(simulation.requests.priority)) < 2:
            return ()
        text = (
            "the larger a priority the more urgent, as SGLang has it; in a workload the smaller is"
        )
        return (
            Caution(
                code="priorities", text=text, remedy="--set schedule_low_priority_values_first=true"
            ),
        )
    if not isinstance(config, SchedulerConfig) or config.num_speculative_tokens == 0:
        return ()
    text = (
        f"that a draft is accepted with a chance of {config.acceptance_fraction} and takes"
        f" {config.draft_cost_ratio or 0} of the model's "
    )
    text += "time was assumed, the same for all requests; every request is drafted for in each step"
    remedy = (
        "vLLM's own counts of drafted and accepted tokens (vllm:spec_decode_*) under such traffic"
    )
    return (Caution(code="assumed acceptance", text=text, remedy=remedy),)


def _shed_reasons(simulation: Simulation) -> I32:
    """Why did the gate turn away whom, of those in the table?"""
    index = simulation.requests.request_index
    return (
        np.zeros(len(index), np.int32)
        if simulation.shed_reasons is None
        else simulation.shed_reasons[index]
    )


def _shed_cautions(simulation: Simulation) -> tuple[Caution, ...]:
    class_index, names = simulation.requests.class_index, simulation.gate_classes
    named = [
        names[index] if len(names) > index else f"class {index}"
        for index in range(int(class_index.max(initial=-1)) + 1)
    ]
    return shed_cautions(_shed_reasons(simulation), class_index, named)


# Nobody is dropped silently: these words go into the run's cautions.

_WORDS: Final = {
    Reason.QUEUE_FULL: "found the gate's queue full",
    Reason.CLASS_QUEUE_FULL: "found their class's queue full",
    Reason.TOKENS_FULL: "found too many tokens waiting",
    Reason.TOO_LARGE: "asked for more than their tenant's bucket holds",
    Reason.TOO_LATE: "could not meet their deadline any more",
    Reason.WAITED_TOO_LONG: "waited as long as they may",
}


class ShedCount(NamedTuple):
    """How many of a class were turned away for one reason?"""

    class_index: int
    reason: Reason
    n_requests: int


def shed_counts(reasons: I32, class_index: I32) -> tuple[ShedCount, ...]:
    """By class, then by reason; those who were turned away only.

    ``reasons`` has a ``Reason`` for each of the requests.
    """
    pairs, counts = np.unique(np.stack([class_index, reasons]), axis=1, return_counts=True)
    return tuple(
        ShedCount(class_index=which, reason=Reason(why), n_requests=n_requests)
        for which, why, n_requests in zip(*pairs.tolist(), counts.tolist(), strict=True)
        if why != Reason.NONE
    )


def shed_cautions(
    reasons: I32, class_index: I32, class_names: Sequence[str]
) -> tuple[Caution, ...]:
    """One caution for each class of which somebody was turned away."""
    n_of_class = np.bincount(class_index, minlength=len(class_names))
    counts = shed_counts(reasons, class_index)
    cautions = list[Caution]()
    for which, name in enumerate(class_names):
        of_class = [count for count in counts if count.class_index == which]
        n_shed = sum(count.n_requests for count in of_class)
        why = ", ".join(f"{count.n_requests} {_WORDS[count.reason]}" for count in of_class)
        if n_shed:
            text = f"the gate turned away {n_shed} of {n_of_class[which]} requests of {name}: {why}"
            remedy = (
                "a lower rate, more replicas, or a gate that lets more wait; latencies are of those"
                " who were let in"
            )
            cautions.append(Caution(code="shed", text=text, remedy=remedy))
    return tuple(cautions)

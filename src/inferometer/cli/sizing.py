"""What does a sizing answer: the pick, the best of each device, and what cannot be?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from inferometer.decide.candidates import Candidates, Refusal
from inferometer.decide.sizing_types import Done, PacedAnswer, SizedKind, SizingQuestion
from inferometer.records.latencies import Latency
from inferometer.records.request_summaries import Percentile
from inferometer.records.types import Caution
from inferometer.spec.types import PriceSpec
from inferometer.stats.estimate import Verdict

_SHOWN_FRACTION: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceRow:
    """One replica under its part of the traffic, if steps take so long."""

    step_times: Literal["likely", "fast", "slow"]
    verdict: Verdict
    weakest: str | None
    """Of the promise, under this traffic."""
    breaks_first: str | None
    """What breaks it when there is more traffic."""
    ttft: Percentile | None
    """At the 95th percentile, or that of the objective."""
    tpot: Percentile | None
    e2e: Percentile | None
    kept_requests_per_s: float | None
    """The highest rate of one replica that was shown to keep the promise."""
    broken_requests_per_s: float | None
    located_requests_per_s: float | None
    """Where the weakest link reaches its limit, by short runs."""
    n_replicas: int | None
    """As many as this pace would need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """The best replicas of one device."""

    hardware_id: str
    hardware: str
    layout: str
    knobs: tuple[tuple[str, int], ...]
    n_replicas: int
    n_devices: int
    verdict: Verdict
    usd_per_hour: float | None
    price: PriceSpec | None
    usd_per_million_output_tokens: float | None
    usd_per_million_tokens: float | None
    """Input and output."""
    output_joule_per_token: float | None
    """At the datasheet's power of all devices: an upper bound."""
    device_requests_per_s: float | None
    """At capacity, likely step times."""
    headroom_fraction: float | None
    n_replicas_if_one_fails: int
    n_kv_blocks: int
    paces: tuple[PaceRow, ...]
    step_times_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAnswer:
    """What to buy. ``verdict`` is that of the pick at likely, fast and slow step times."""

    model_id: str
    workload_name: str
    rate_per_s: float
    objective: str
    mean_prompt_tokens: float | None
    """Of the pick's simulated requests; None where there is no pick."""
    mean_output_tokens: float | None
    verdict: Verdict
    pick: KindRow | None
    """None: nothing keeps the promise."""
    kinds: tuple[KindRow, ...]
    """The best of each device, the pick first."""
    impossible: tuple[tuple[str, str], ...]
    """(device, why nothing of it keeps the promise)"""
    refused: tuple[Refusal, ...]
    n_candidates: int
    n_searched: int
    cautions: tuple[Caution, ...]


def size_answer(question: SizingQuestion, model_id: str, candidates: Candidates, found: Sequence[Done]) -> SizeAnswer:
    """The answer from what was found of each device."""
    best = sorted((done.best for done in found if done.best is not None), key=_rank)
    searched = [one for done in found for one in done.searched]
    rows = tuple(_row(kind) for kind in best)
    first = best[0].likely.summary if best else None
    n_served = max(first.n_requests, 1) if first is not None else 1
    return SizeAnswer(
        model_id=model_id,
        workload_name=question.spec.name,
        rate_per_s=question.rate_per_s,
        objective=question.objective.text,
        mean_prompt_tokens=None if first is None else first.input_tokens / n_served,
        mean_output_tokens=None if first is None else first.output_tokens / n_served,
        verdict=rows[0].verdict if rows else "missed",
        pick=rows[0] if rows else None,
        kinds=rows,
        impossible=tuple(_impossible(done) for done in found if done.best is None),
        refused=candidates.refused,
        n_candidates=len(candidates.possible),
        n_searched=sum(one.n_probes > 0 for one in searched),
        cautions=_cautions(best),
    )


def _rank(kind: SizedKind) -> tuple[float, int]:
    return float("inf") if kind.usd_per_hour is None else kind.usd_per_hour, kind.n_devices


def _row(kind: SizedKind) -> KindRow:
    candidate, likely = kind.candidate, kind.likely
    config, offer = candidate.deployment.config, candidate.offer
    per_replica = likely.capacity.kept_load or likely.capacity.located_load
    total = likely.summary.total_tokens_per_s
    power = offer.hardware.power_watt
    hourly, rate = kind.usd_per_hour, kind.output_tokens_per_s
    return KindRow(
        hardware_id=kind.hardware_id,
        hardware=kind.hardware,
        layout=kind.layout,
        knobs=(
            ("tensor_parallel_size", candidate.n_devices),
            *(
                (name, getattr(config, name))
                for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
                if hasattr(config, name)
            ),
        ),
        n_replicas=kind.n_replicas,
        n_devices=kind.n_devices,
        verdict=kind.verdict,
        usd_per_hour=hourly,
        price=offer.price,
        usd_per_million_output_tokens=kind.usd_per_million_output_tokens,
        usd_per_million_tokens=None if hourly is None or total is None else hourly / 3600 / (total.value * kind.n_replicas) * 1e6,
        output_joule_per_token=None if power is None or not rate else power.value * kind.n_devices / rate,
        device_requests_per_s=None if per_replica is None else per_replica / candidate.n_devices,
        headroom_fraction=kind.headroom_fraction,
        n_replicas_if_one_fails=kind.n_replicas_if_one_fails,
        n_kv_blocks=config.n_kv_blocks,
        paces=tuple(_pace(answer) for answer in (kind.likely, kind.fast, kind.slow)),
        step_times_from=candidate.deployment.step_times.origin,
    )


def _pace(answer: PacedAnswer) -> PaceRow:
    weakest = answer.judgement.weakest

    def shown(latency: Latency) -> Percentile | None:
        asked = next((one.seen for one in answer.judgement.thresholds if one.threshold.metric == latency and one.seen is not None), None)
        return asked or answer.summary.latency(latency).percentile(_SHOWN_FRACTION)

    return PaceRow(
        step_times=answer.step_times,
        verdict=answer.verdict,
        weakest=None if weakest is None else f"{weakest.threshold.text}: {weakest.why}",
        breaks_first=answer.capacity.weakest,
        ttft=shown("ttft"),
        tpot=shown("tpot"),
        e2e=shown("e2e"),
        kept_requests_per_s=answer.capacity.kept_load,
        broken_requests_per_s=answer.capacity.broken_load,
        located_requests_per_s=answer.capacity.located_load,
        n_replicas=answer.n_replicas,
    )


def _impossible(done: Done) -> tuple[str, str]:
    """The device, and why its nearest kind of replica does not keep the promise."""
    asked = [one for one in done.searched if one.n_probes]
    if not asked:
        return done.searched[0].candidate.offer.hardware.name, "nothing was searched"
    return asked[-1].candidate.offer.hardware.name, f"{asked[-1].candidate.layout}: {asked[-1].why}"


def _cautions(best: Sequence[SizedKind]) -> tuple[Caution, ...]:
    cautions = list[Caution]()
    if any(kind.candidate.deployment.step_times.basis == "datasheet" for kind in best):
        text = "step times are those of datasheets: no host time, no front end, likely shares of the peaks"
        remedy = "inferometer sweep and inferometer fit on the device; the slow column is what may come of it"
        cautions.append(Caution(code="DATASHEET", text=text, remedy=remedy))
    if any(kind.n_replicas > 1 for kind in best):
        text = "each replica was simulated with an equal part of the traffic, dealt at random; a router that looks at loads does better"
        cautions.append(Caution(code="RANDOM_ROUTER", text=text, remedy="inferometer simulate --replicas N --router NAME"))
    unpriced = [kind.hardware for kind in best if kind.usd_per_hour is None]
    if unpriced:
        text = f"nobody says what {', '.join(unpriced)} costs: ranked last, by the number of devices"
        cautions.append(Caution(code="NO_PRICE", text=text, remedy="--prices FILE"))
    return tuple(cautions)


__all__ = ["KindRow", "PaceRow", "SizeAnswer", "size_answer"]

"""What is said of the best replicas of one device, as a row of the answer to a sizing?"""

from dataclasses import dataclass
from typing import Final

from inferometer.decide.capacity import TIME_LIMIT
from inferometer.decide.costs import Costs, costs_of, mean_tokens
from inferometer.decide.sizing_types import PacedAnswer, ServedBy, SizedKind
from inferometer.inputs.prices import ApiPrice, OwnedPrice
from inferometer.inputs.types import PriceSpec
from inferometer.records.latencies import Latency
from inferometer.records.request_summaries import Percentile
from inferometer.simulate.deployment import Pace
from inferometer.simulate.engine_config import n_stages_of
from inferometer.stats.estimate import Estimate, Verdict

_SHOWN_FRACTION: Final = 0.95
_KNOBS: Final = (
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len"),
    *("max_running_requests", "chunked_prefill_size", "context_length"),
    *("max_batch_size", "max_num_tokens", "max_seq_len"),
)
"""Seats, budget of a step and longest context: vLLM's, SGLang's and TensorRT-LLM's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """So many replicas behind the router under the whole traffic, simulated."""

    n_replicas: int
    verdict: Verdict
    weakest: str | None
    """Of the promise, under this traffic."""
    ttft: Percentile | None
    """At the percentile of the objective, or the 95th."""
    tpot: Percentile | None
    e2e: Percentile | None
    good: Estimate | None
    """Share of the requests that were within every limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceRow:
    """The replicas of the answer, if steps take so long."""

    step_times: Pace
    served: ServedRow
    breaks_first: str | None
    """What breaks the promise when there is more traffic."""
    kept_requests_per_s: float | None
    """The highest rate of all replicas together that was shown to keep the promise."""
    broken_requests_per_s: float | None
    located_requests_per_s: float | None
    """Where the weakest link reaches its limit, by short runs."""
    n_replicas: int | None
    """As many as this pace would need."""
    is_examined: bool = True
    """False: the time limit ended the search for that number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """The best replicas of one device; what its numbers hold for stands in it."""

    hardware_id: str
    hardware: str
    layout: str
    model_id: str
    engine: str
    """Whose scheduler was simulated."""
    weights_dtype: str
    kv_cache_dtype: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    parallelism: str
    """``TP8 PP2``"""
    knobs: tuple[tuple[str, int], ...]
    mean_prompt_tokens: float
    """Of the simulated requests."""
    mean_output_tokens: float
    in_flight_load: float
    """Requests in one replica on average (concurrency)."""
    tokens_per_s_per_user: Estimate | None
    n_replicas: int
    n_devices: int
    verdict: Verdict
    usd_per_hour: float | None
    rent: PriceSpec | None
    owned: OwnedPrice | None
    owned_break_even_fraction: float | None
    """From which share of its hours in use on is a bought device cheaper than a rented one?
    None: never, or a price is not known."""
    costs: Costs
    instance_requests_per_s: float | None
    """The highest rate of a replica that was shown to keep the promise, in this cluster."""
    device_requests_per_s: float | None
    headroom_fraction: float | None
    without_one: ServedRow | None
    """One replica less; None where there is one."""
    n_replicas_if_one_fails: int
    """So many keep the promise without any one of them."""
    n_kv_blocks: int
    sized_at: Pace
    paces: tuple[PaceRow, ...]
    step_times_from: str

    @property
    def asked(self) -> PaceRow:
        """At the step times that it was sized for."""
        return next(pace for pace in self.paces if pace.step_times == self.sized_at)


def kind_row(kind: SizedKind, apis: tuple[ApiPrice, ...]) -> KindRow:
    """The row of these replicas."""
    candidate, served = kind.candidate, kind.sized_at.served
    engine, config, offer = (
        candidate.deployment.engine,
        candidate.deployment.config,
        candidate.offer,
    )
    tokens_in, tokens_out = mean_tokens(served)
    kept = kind.sized_at.capacity.kept_load
    rented = offer.price
    break_even = (
        None
        if offer.owned is None or rented is None
        else offer.owned.break_even_fraction(rented.usd_per_hour)
    )
    return KindRow(
        hardware_id=kind.hardware_id,
        hardware=kind.hardware,
        layout=kind.layout,
        model_id=candidate.deployment.model.model_id,
        engine=config.engine,
        weights_dtype=engine.quantization or engine.dtype,
        kv_cache_dtype=engine.kv_cache_dtype or engine.dtype,
        tensor_parallel_size=engine.tensor_parallel_size,
        pipeline_parallel_size=n_stages_of(config),
        parallelism=candidate.parallelism,
        knobs=tuple((name, getattr(config, name)) for name in _KNOBS if hasattr(config, name)),
        mean_prompt_tokens=tokens_in,
        mean_output_tokens=tokens_out,
        in_flight_load=served.in_flight_load,
        tokens_per_s_per_user=served.summary.tokens_per_s_per_user,
        n_replicas=kind.n_replicas,
        n_devices=kind.n_devices,
        verdict=kind.verdict,
        usd_per_hour=kind.usd_per_hour,
        rent=rented,
        owned=offer.owned,
        owned_break_even_fraction=break_even,
        costs=costs_of(kind, apis),
        instance_requests_per_s=None if kept is None else kept / kind.n_replicas,
        device_requests_per_s=None if kept is None else kept / kind.n_devices,
        headroom_fraction=kind.headroom_fraction,
        without_one=None if kind.without_one is None else served_row(kind.without_one),
        n_replicas_if_one_fails=kind.n_replicas_if_one_fails,
        n_kv_blocks=config.n_kv_blocks,
        sized_at=kind.asked_pace,
        paces=tuple(_pace(answer) for answer in kind.paces.values()),
        step_times_from=candidate.deployment.step_times.origin,
    )


def served_row(served: ServedBy) -> ServedRow:
    """What became of the traffic."""
    weakest = served.judgement.weakest

    def shown(latency: Latency) -> Percentile | None:
        asked = next(
            (
                one.seen
                for one in served.judgement.thresholds
                if one.threshold.metric == latency and one.seen is not None
            ),
            None,
        )
        return asked or served.summary.latency(latency).percentile(_SHOWN_FRACTION)

    return ServedRow(
        n_replicas=served.n_replicas,
        verdict=served.verdict,
        weakest=None if weakest is None else f"{weakest.threshold.text}: {weakest.why}",
        ttft=shown("ttft"),
        tpot=shown("tpot"),
        e2e=shown("e2e"),
        good=served.judgement.good,
    )


def _pace(answer: PacedAnswer) -> PaceRow:
    return PaceRow(
        step_times=answer.step_times,
        served=served_row(answer.served),
        breaks_first=answer.capacity.weakest,
        kept_requests_per_s=answer.capacity.kept_load,
        broken_requests_per_s=answer.capacity.broken_load,
        located_requests_per_s=answer.capacity.located_load,
        n_replicas=answer.n_replicas,
        is_examined=answer.n_replicas is not None or answer.capacity.why != TIME_LIMIT,
    )

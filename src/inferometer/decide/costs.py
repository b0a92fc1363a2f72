"""What do tokens cost.

Those that go in and those that come out apart, in joules, and beside somebody else's price for
them?
"""

from dataclasses import dataclass
from typing import Final

from inferometer.decide.sizing_types import ServedBy, SizedKind
from inferometer.inputs.prices import ApiPrice
from inferometer.inputs.types import Source
from inferometer.perfmodel.steptime_arrays import StepTimeArrays, shape_duration_s
from inferometer.perfmodel.types import decode_shape, prefill_shape

_S_PER_HOUR: Final = 3600.0
_MILLION: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiComparison:
    """The same traffic at somebody else's price."""

    price: ApiPrice
    usd_per_hour: float
    break_even_requests_per_s: float | None
    """From this rate on these replicas, as many as they are, cost less; None: it asks nothing
    for these tokens."""
    is_carried: bool | None
    """Do they carry that rate? None where their capacity is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of the best replicas of a device, under this traffic (not at capacity).

    None where nobody knows a price, or a power.
    """

    usd_per_million_output_tokens: float | None
    """If output alone paid for everything, as is usual."""
    usd_per_million_tokens: float | None
    """If each token, in or out, paid the same."""
    input_usd_per_million_tokens: float | None
    """If prompts pay for the time that they take by themselves, and …"""
    output_usd_per_million_tokens: float | None
    """… output for the time that it takes in a batch of the usual size: what a price list with
    two prices would say."""
    prompt_time_fraction: float
    output_joule_per_token: float | None
    power_from: Source | None
    apis: tuple[ApiComparison, ...]


def costs_of(kind: SizedKind, apis: tuple[ApiPrice, ...] = ()) -> Costs:
    """What the traffic costs on these replicas."""
    served, offer = kind.sized_at.served, kind.candidate.offer
    arrays = getattr(kind.candidate.deployment.step_times, kind.asked_pace)
    share = prompt_time_fraction(arrays, served)
    tokens_in, tokens_out = mean_tokens(served)
    in_per_s, out_per_s = kind.requests_per_s * tokens_in, kind.requests_per_s * tokens_out
    power = offer.power or offer.hardware.power_watt
    return Costs(
        usd_per_million_output_tokens=_per_million(kind.usd_per_hour, out_per_s),
        usd_per_million_tokens=_per_million(kind.usd_per_hour, in_per_s + out_per_s),
        input_usd_per_million_tokens=_per_million(kind.usd_per_hour, in_per_s, share),
        output_usd_per_million_tokens=_per_million(kind.usd_per_hour, out_per_s, 1 - share),
        prompt_time_fraction=share,
        output_joule_per_token=None
        if power is None or not out_per_s
        else power.value * kind.n_devices / out_per_s,
        power_from=None if power is None else power.source,
        apis=()
        if kind.usd_per_hour is None
        else tuple(_compared(kind, kind.usd_per_hour, served, api) for api in apis),
    )


def mean_tokens(served: ServedBy) -> tuple[float, float]:
    """Tokens of a request: of its prompt, and of its output."""
    n_requests = max(served.summary.n_requests, 1)
    return served.summary.input_tokens / n_requests, served.summary.output_tokens / n_requests


def prompt_time_fraction(arrays: StepTimeArrays, served: ServedBy) -> float:
    """How much of a mean request's time on the device is its prompt's?

    Its prompt takes the time of a step of its own; each token of its output takes the time of a
    step of the usual batch, shared by all in it: ``P / (P + n_out · D / batch)``.
    """
    tokens_in, tokens_out = (max(round(tokens), 1) for tokens in mean_tokens(served))
    batch = max(round(served.in_flight_load), 1)
    prompt_s = shape_duration_s(arrays, prefill_shape(batch_size=1, prompt_tokens=tokens_in))
    usual = decode_shape(batch_size=batch, context_tokens=tokens_in + tokens_out // 2)
    output_s = tokens_out * shape_duration_s(arrays, usual) / batch
    return prompt_s / (prompt_s + output_s)


def _per_million(
    usd_per_hour: float | None, tokens_per_s: float, share_fraction: float = 1.0
) -> float | None:
    if usd_per_hour is None or not tokens_per_s:
        return None
    return usd_per_hour * share_fraction / _S_PER_HOUR / tokens_per_s * _MILLION


def _compared(
    kind: SizedKind, own_usd_per_hour: float, served: ServedBy, api: ApiPrice
) -> ApiComparison:
    tokens_in, tokens_out = mean_tokens(served)
    usd_per_request = (
        tokens_in * api.input_usd_per_million_tokens
        + tokens_out * api.output_usd_per_million_tokens
    ) / _MILLION
    break_even = own_usd_per_hour / _S_PER_HOUR / usd_per_request if usd_per_request else None
    kept = kind.sized_at.capacity.met_load
    return ApiComparison(
        price=api,
        usd_per_hour=kind.requests_per_s * usd_per_request * _S_PER_HOUR,
        break_even_requests_per_s=break_even,
        is_carried=None if kept is None or break_even is None else break_even <= kept,
    )

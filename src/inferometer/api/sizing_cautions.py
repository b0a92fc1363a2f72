"""Cautions on sizings, and refusals of traffic that no replica can serve."""

from collections.abc import Sequence

from inferometer.api.missed import what_goes_on
from inferometer.api.server import assumed_steps, check_some_are_taken, fit_cautions
from inferometer.decide.candidates import Candidates
from inferometer.decide.sizing_types import Done, Searched, SizedKind, SizingQuestion
from inferometer.decide.traffic import LEAST_OF_EACH_USER, plan_at
from inferometer.errors import SpecError
from inferometer.inputs.types import Caution
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.inputs.workload.types import WorkloadSpec
from inferometer.measure.this_machine import ceiling_cautions
from inferometer.perfmodel.steptime_limits import outside
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.report.views import ProbeRow
from inferometer.units import counted, format_duration


def check_contexts(question: SizingQuestion, candidates: Candidates) -> None:
    """Refuse traffic with requests that no replica on offer takes, however many there are."""
    plan = plan_at(question.spec, question.offered_load, question.n_requests)
    check_prompts(
        question.spec,
        plan,
        max(candidate.deployment.config.max_model_len for candidate in candidates.possible),
    )
    check_some_are_taken([one.deployment for one in candidates.possible], plan)


def check_prompts(workload: WorkloadSpec, plan: RequestPlan, max_model_len: int) -> None:
    """Refuse traffic some of whose prompts are too long for the server."""
    n_too_long = int((plan.prompt_tokens >= max_model_len).sum())
    if n_too_long:
        raise SpecError(
            f"{n_too_long} of {plan.n_requests} prompts are too long for every replica: up to"
            f" {plan.prompt_tokens.max():,} tokens",
            where=f"--workload {workload.name}",
            allowed=f"fewer than {max_model_len:,}, the longest context",
            try_=(
                "a model with longer contexts, larger devices, or a workload file with shorter"
                " prompts"
            ),
        )


def longer_probes(n_wanted: int | None, probes: Sequence[ProbeRow]) -> tuple[Caution, ...]:
    """A caution where more requests were simulated than wanted, as fewer would be one burst."""
    n_most = max((probe.n_requests for probe in probes), default=0)
    if n_wanted is None or n_most <= n_wanted:
        return ()
    text = (
        f"{n_wanted:,} requests are one burst at such loads, over before a queue builds up: up to"
        f" {n_most:,} were simulated"
    )
    return (Caution(code="ONE_BURST", text=text, remedy=what_goes_on(n_most, is_trace=False)),)


def few_of_each_user(question: SizingQuestion) -> list[Caution]:
    """A caution where more requests were simulated than wanted, as users need several each."""
    n_wanted, n_users = question.requests_cap, round(question.offered_load)
    n_least = LEAST_OF_EACH_USER * n_users
    if n_wanted is None or not question.is_of_users or n_wanted >= n_least:
        return []
    text = (
        f"{n_wanted:,} requests of {n_users:,} users are mostly the first ones, which come at once,"
        f" and the last ones, which meet fewer users: {LEAST_OF_EACH_USER} of each user were"
        " simulated"
    )
    remedy = what_goes_on(5 * n_least, is_trace=question.traffic.is_trace)
    return [Caution(code="FEW_OF_EACH_USER", text=text, remedy=remedy)]


def box_cautions(question: SizingQuestion, candidates: Candidates) -> tuple[Caution, ...]:
    """Cautions on fits used for lengths outside their valid box."""
    plan = plan_at(question.spec, question.offered_load, question.n_requests)
    tokens_in, tokens_out = round(plan.prompt_tokens.mean()), round(plan.output_tokens.mean())
    shapes = (
        prefill_shape(batch_size=1, prompt_tokens=tokens_in),
        decode_shape(batch_size=1, context_tokens=tokens_in + tokens_out // 2),
    )
    cautions = dict[str, Caution]()
    for candidate in candidates.possible:
        step_times = candidate.deployment.step_times
        reasons = (
            [reason for shape in shapes for reason in outside(step_times.box, shape).reasons]
            if step_times.box
            else []
        )
        if reasons:
            text = (
                f"mean lengths of the traffic lie outside what was measured ({step_times.origin}):"
                f" {'; '.join(dict.fromkeys(reasons))}"
            )
            cautions[text] = Caution(
                code="FIT_BOX",
                text=text,
                remedy="a sweep or a load test of such lengths, and a fit to it",
            )
    return tuple(cautions.values())


def out_of_time(pick: SizedKind | None, found: Sequence[Done]) -> tuple[Caution, ...]:
    """A caution on kinds of replica not examined that may be cheaper than the pick."""
    searched = [one for done in found for one in done.searched]
    cheaper = [] if pick is None else [one for one in searched if _may_be_cheaper(one, pick)]
    if not cheaper:
        return ()
    devices = dict.fromkeys(one.candidate.offer.hardware.name for one in cheaper)
    text = (
        f"the time limit left out {len(cheaper)} of {len(searched)} kinds of replica that may cost"
        f" less than the pick, on {', '.join(devices)}"
    )
    return (Caution(code="OUT_OF_TIME", text=text, remedy="a longer --time-limit"),)


def not_the_fewest(question: SizingQuestion, pick: SizedKind | None) -> tuple[Caution, ...]:
    """A caution where the time was over before the fewest replicas were found.

    One replica less is simulated last, to see whether one may fail: it may meet the SLO too.
    """
    fewer = None if pick is None else pick.without_one
    is_searched = question.fleets.n_replicas is None
    if pick is None or fewer is None or fewer.verdict != "met" or not is_searched:
        return ()
    text = (
        f"the time limit ended the search for the fewest replicas at {pick.n_replicas}:"
        f" {fewer.n_replicas} meet the SLO too, and fewer may"
    )
    return (Caution(code="NOT_THE_FEWEST", text=text, remedy="a longer --time-limit"),)


def uneven(question: SizingQuestion, pick: SizedKind | None, remedy: str) -> tuple[Caution, ...]:
    """A caution where users stay in step and a greater number of replicas was shown to do worse."""
    if pick is None or not question.are_users_in_step or not pick.met_counts:
        return ()
    fewest = pick.met_counts[0]
    worse = [n for n in pick.missed_counts if n > fewest]
    if not worse:
        return ()
    has_more = pick.n_replicas > fewest
    why_more = f"; of the numbers tried beyond {pick.n_replicas} none misses it" * has_more
    text = (
        "all requests have the same lengths, so users stay in step, and more replicas may do worse:"
        f" {counted(fewest, 'replica')} can meet the SLO, with {_listed(worse)} it is missed{why_more}"
    )
    return (Caution(code="IN_STEP", text=text, remedy=remedy),)


def _listed(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _may_be_cheaper(one: Searched, pick: SizedKind) -> bool:
    """Could its fewest possible devices cost less (by number, without prices)?"""
    if one.least_devices is None:
        return False
    each = one.candidate.offer.usd_per_hour
    if pick.usd_per_hour is None:
        return each is not None or one.least_devices < pick.n_devices
    return each is not None and each * one.least_devices < pick.usd_per_hour


def without_end(for_s: float | None) -> tuple[Caution, ...]:
    """A caution where --for was given: a capacity is of a load that goes on."""
    if for_s is None:
        return ()
    text = f"--for {format_duration(for_s)} ends no probe: the load is one that goes on"
    return (Caution(code="NO_END", text=text, remedy="--requests N limits each probe"),)


def of_time(
    question: SizingQuestion, course: object | None, for_s: float | None
) -> tuple[Caution, ...]:
    """Cautions on varying traffic that is simulated for plain replicas only, or has no end."""
    if course is None:
        return without_end(for_s)
    if question.fleets.is_plain:
        return ()
    return (
        Caution(
            code="OVER_TIME",
            text=(
                "replicas that come and go with the traffic are simulated without a gate, prefill"
                " replicas or shared experts: left out; the pick is for the busiest window"
            ),
            remedy="--replicas N of inferometer simulate, window by window",
        ),
    )


def cautions_of(best: Sequence[SizedKind]) -> tuple[Caution, ...]:
    """Cautions that limit these answers, with remedies."""
    cautions = list[Caution]()
    deployments = [kind.candidate.deployment for kind in best]
    sheets = [one for one in deployments if one.step_times.basis == "datasheet"]
    if sheets:
        cautions += ceiling_cautions(*(one.hardware for one in sheets))
        remedy = (
            "inferometer sweep and inferometer fit on the device, then --fit FILE; --sure sizes for"
            " the slow end"
        )
        cautions.append(Caution(code="DATASHEET", text=assumed_steps(*sheets), remedy=remedy))
    cautions += dict.fromkeys(caution for one in deployments for caution in fit_cautions(one))
    unpriced = [kind.hardware for kind in best if kind.usd_per_hour is None]
    if unpriced:
        text = f"price of {', '.join(unpriced)}: unknown; ranked last, by the number of devices"
        cautions.append(Caution(code="NO_PRICE", text=text, remedy="--prices FILE"))
    rents = {
        kind.hardware_id: kind.candidate.offer.price.basis
        for kind in best
        if kind.candidate.offer.price is not None
    }
    if len(set(rents.values())) > 1:
        named = ", ".join(f"{device} '{basis}'" for device, basis in rents.items())
        text = f"rents of different kinds stand beside one another: {named}"
        cautions.append(
            Caution(code="PRICE_KINDS", text=text, remedy="--prices FILE with what you pay")
        )
    return tuple(cautions)

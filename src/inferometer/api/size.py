"""What must be bought, and how set up, to meet the SLO under some traffic?"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from inferometer.api import (
    compute,
    decision_pages,
    deployment_folder,
    engine_settings,
    groups as groups_of_file,
    named_fit,
    size_best_use,
    size_groups,
    sized_fleets,
    sizing_answer,
    sizing_cautions,
    sizing_offers,
)
from inferometer.api.capacity import SLO_OF_ALL
from inferometer.api.cluster import gate_of
from inferometer.api.compute import TimeLimit, time_limit_field
from inferometer.api.fleet import FleetOptions, check_searched, fleets_of, slo_of, with_dense_ranks
from inferometer.api.model_options import (
    ALL_REDUCE_OPTION,
    DATASHEET_OPTION,
    EAGER_OPTION,
    FORMATS,
    LINK_OPTION,
    MODEL_OPTION,
    TP_FLAGS,
    TRANSFER_OPTION,
    refuse_changed_steps,
    refuse_links,
)
from inferometer.api.progress import talk
from inferometer.api.question import fields_of, option, parse_counts, s_from_us, words_of
from inferometer.api.server import Server, Settings, refuse_stages
from inferometer.api.sizing_answer import SizeAnswer, pick_of, size_answer
from inferometer.api.sizing_offers import OverTime, SizingProblem, Sought, problem_of
from inferometer.api.workload import Workload, required_slo, varied_answers, workload_of
from inferometer.decide import candidates, failure, sizing, sizing_types
from inferometer.errors import SizingError, SpecError
from inferometer.inputs import prices, resolve, types
from inferometer.measure.this_machine import THIS_MACHINE
from inferometer.simulate.deployment import Pace


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Model, traffic, SLO and devices of a sizing."""

    model: Annotated[str, MODEL_OPTION]
    workload: Workload = field(default_factory=Workload)
    slo: Annotated[str | None, SLO_OF_ALL] = None
    gpus: str | None = option(
        None,
        "Devices on offer, with commas between (inferometer catalog hardware), or this machine,"
        " probed now. [needed without --groups]",
        "Hardware",
        is_common=True,
        metavar="IDS|this",
    )
    groups: Annotated[Path | None, groups_of_file.GROUPS_OPTION] = None
    routing: sized_fleets.Routing = option(
        "rules",
        "How --groups share the requests. rules: as its file says; class: each class goes to the"
        " group where it costs least; weighted: a class may be divided by weights.",
        "Cluster",
    )
    total_gpus: int | None = option(
        None,
        "Number of devices at hand: find the layout that serves the most requests/s within the"
        " SLO, in the model's published format and in others.",
        "Hardware",
        is_common=True,
        least=1,
        most=1024,
    )
    tp: str = option(
        "1,2,4,8", "Tensor-parallel sizes to try.", "Hardware", is_common=True, flags=TP_FLAGS[:1]
    )
    pp: str | None = option(
        None,
        "Pipeline stages to try, vLLM's. [1; more where the KV cache is too small for the model's"
        " contexts]",
        "Hardware",
        metavar="SIZES",
    )
    fit: tuple[str, ...] = option(
        (),
        "Step times of `inferometer fit`, not the datasheet's; one for each format and TP.",
        "Hardware",
        is_common=True,
        metavar="[ID=]FILE",
    )
    transfer: Annotated[bool, TRANSFER_OPTION] = False
    datasheet: Annotated[bool, DATASHEET_OPTION] = False
    link: Annotated[str | None, LINK_OPTION] = None
    all_reduce_us: Annotated[float | None, ALL_REDUCE_OPTION] = None
    prices: Path | None = option(
        None,
        "YAML of rents, bought devices, APIs. [the catalogue's rents]",
        "Hardware",
        is_common=True,
    )
    engine: Literal["vllm", "sglang", "trtllm"] = option(
        "vllm", "Engine whose scheduler is simulated; --out writes vLLM's files.", "Engine"
    )
    dtype: types.DType | None = option(
        None,
        "Format of weights and activations. Default: bfloat16; float16 without it, float32 on a CPU.",
        "Model",
        is_common=True,
        formats=FORMATS,
    )
    quantization: str | None = option(
        None,
        "Formats of the weights to try: float8,int4; none: as --dtype. Default: as published.",
        "Model",
        is_common=True,
        metavar="FORMATS",
    )
    max_num_seqs: str = option("64,256", "Sequences at once, to try.", "Engine", is_common=True)
    max_num_batched_tokens: str = option(
        "2048,8192", "Tokens computed in a step, to try.", "Engine", is_common=True
    )
    enforce_eager: Annotated[bool, EAGER_OPTION] = False
    set: tuple[str, ...] = option(
        (),
        "Values to try of another setting of the engine: enable_chunked_prefill=true,false.",
        "Engine",
        metavar="NAME=VALUES",
    )
    settings: Settings = field(default_factory=Settings)
    fleet: FleetOptions = field(default_factory=FleetOptions)
    sure: bool = option(
        False,
        "Count the replicas that meet the SLO at slow step times too. [where published rows or a"
        " fit give slow step times]",
        "Limits",
        is_common=True,
    )
    likely: bool = option(
        False, "Count the replicas that meet the SLO at likely step times.", "Limits"
    )
    over_time: OverTime = field(default_factory=OverTime)
    probe_requests: int = option(
        1000, "Requests of a short simulation; long ones have 4 times as many.", "Limits", least=100
    )
    time_limit: Annotated[float, time_limit_field("10s")] = 10.0
    report: Annotated[Path | None, decision_pages.REPORT_OPTION] = None
    out: Path | None = option(
        None, "Write the files that run, watch and check the answer.", is_common=True, metavar="DIR"
    )
    force: bool = option(False, "Overwrite what is in --out.")
    where: compute.Executor = field(default_factory=compute.Executor)
    given: frozenset[str] = frozenset()


def size(question: Size) -> SizeAnswer:
    """The cheapest replicas that meet the SLO under this traffic.

    Raises
    ------
    SpecError, ModelError
        The question is impossible.
    SizingError
        Nothing on offer holds the model.
    """
    limit = TimeLimit(question.time_limit)
    where = replace(question.where, executor=question.where.executor or "processes")
    table = None if question.prices is None else prices.read_prices(question.prices)
    if question.groups is not None:
        return _of_groups(question, question.groups, table, limit)
    resolved = resolve.resolve_model(question.model, load_format="dummy")
    if question.total_gpus is None:  # else the devices make the replicas, whatever joins them
        server = Server(model=question.model, policy=question.engine)
        question = replace(question, fleet=with_dense_ranks(question.fleet, server))
    problem = problem_of(workload_of(question.workload), _sought(question), question.over_time)
    problem = problem._replace(question=_in_fleets(question, problem.question))
    tried = _candidates(question, resolved, table, problem.question.fleets)
    sizing_cautions.check_contexts(problem.question, tried)
    if question.total_gpus is not None:
        devices = _devices(question, question.total_gpus, limit, where, problem.question)
        used = size_best_use.answer_of(resolved, problem.question, tried, devices)
        return _written(question, replace(used, gate=gate_of(question.fleet.gate)))
    n_devices = len({one.offer.hardware.hardware_id for one in tried.possible})
    share = limit.share(compute.share_of_part(where, n_devices))
    pace = _pace(question, tried)
    problem = problem._replace(question=replace(problem.question, time_limit=share, pace=pace))
    talk(
        f"{len(tried.possible)} kind{'s' * (len(tried.possible) > 1)} of replica to try on"
        f" {n_devices} device{'s' * (n_devices > 1)}, at most {share.limit_s:.3g} s of computing for each"
        " device (the engine's rules are compiled once)"
    )
    sized_for, found = _searched(problem.question, tried, where, is_sure=question.sure)
    problem = problem._replace(question=sized_for)
    apis = () if table is None else table.apis
    answer = size_answer(problem.question, resolved.spec.model_id, tried, found, apis)
    pick = pick_of(found)
    died = _failure(problem, pick)
    answer = replace(
        answer,
        gate=gate_of(question.fleet.gate),
        cautions=(
            *answer.cautions,
            *sizing_cautions.few_of_each_user(problem.question),
            *sizing_cautions.uneven(problem.question, pick, varied_answers(question.workload)),
            *sizing_cautions.of_time(problem.question, problem.course, question.workload.duration),
        ),
        failure=died.outcome,
        failure_why_not=died.why_not,
        over_time=_over_time(problem, pick),
        next_step=_next_step(question, answer),
    )
    _write(question, problem.question, found, answer)
    return answer


def _write(
    question: Size,
    sized_for: sizing_types.SizingQuestion,
    found: tuple[sizing_types.Done, ...],
    answer: SizeAnswer,
) -> None:
    """The page and the files, where they were requested."""
    if question.report is not None:
        best = [done.best for done in found if done.best is not None]
        decision_pages.write_size_page(answer, sized_for, best, question.report)
    if question.out is not None:
        used_fraction = question.settings.knobs(question.engine, {}, {}).share_fraction
        deployment_folder.write_answer(
            question.out, sized_for, found, used_fraction, is_forced=question.force
        )


def _next_step(question: Size, answer: SizeAnswer) -> str | None:
    """What decides an open answer, or makes a sure one smaller: likely step times."""
    is_slow = answer.sized_for == "slow" and not question.sure
    if is_slow and answer.verdict == "met" and answer.next_step is None:
        return _smaller(answer)
    is_slow = is_slow and answer.verdict == "undecided"
    at_likely = () if answer.pick is None else answer.pick.paces
    is_open = any(
        pace.step_times == "likely" and pace.served.verdict == "undecided" for pace in at_likely
    )
    if not is_slow or is_open:
        return answer.next_step
    first = "" if answer.next_step is None else f"{answer.next_step}; "
    return f"{first}--likely counts the replicas that meet the SLO at likely step times"


def _smaller(answer: SizeAnswer) -> str | None:
    """What counts fewer replicas, where likely step times may need fewer than slow ones."""
    pick = answer.pick
    if (
        pick is None
        or pick.n_replicas == 1
        or answer.rate_per_s is None
        or answer.users is not None
    ):
        return None
    located = next(
        pace.located_requests_per_s for pace in pick.paces if pace.step_times == "likely"
    )
    enough = answer.rate_per_s * pick.n_replicas / (pick.n_replicas - 1)
    if located is not None and located < enough:
        return None
    return (
        "the number is for slow step times: --likely counts the replicas for likely ones,"
        " --fit FILE of measured ones decides"
    )


def _of_groups(
    question: Size,
    path: Path,
    table: prices.PriceTable | None,
    limit: TimeLimit,
) -> SizeAnswer:
    """The number of replicas of each group of a file."""
    size_groups.check_options(question)
    traffic = problem_of(workload_of(question.workload), _sought(question), question.over_time)
    server = Server(
        model=question.model,
        transfer=question.transfer,
        datasheet=question.datasheet,
        link=question.link,
        all_reduce_us=question.all_reduce_us,
        dtype=question.dtype,
        enforce_eager=question.enforce_eager,
        policy=question.engine if "engine" in question.given else None,
        settings=question.settings,
    )
    sought = size_groups.SoughtGroups(
        path,
        server,
        question.fleet,
        table,
        limit,
        question.where,
        is_sure=question.sure,
        is_likely=question.likely,
        has_course=traffic.course is not None,
        routing=question.routing,
        words=words_of(question, size_groups.CARRIED),
    )
    answer = size_groups.answer_of(sought, traffic.question)
    if question.report is not None:
        answer.report(question.report)
        talk(f"REPORT {question.report}")
    return answer


def _devices(
    question: Size,
    n_total: int,
    limit: TimeLimit,
    where: compute.Executor,
    sizing_question: sizing_types.SizingQuestion,
) -> size_best_use.Devices:
    names = (field.name for field in fields_of(type(question)))
    words = words_of(question, tuple(set(names) - size_best_use.NOT_CARRIED))
    load = sizing_question.offered_load if sizing_question.is_of_users else question.workload.rate
    return size_best_use.Devices(n_total, limit, where, question.model, words, load)


def _written(question: Size, used: SizeAnswer) -> SizeAnswer:
    """The page and the files of the best use of a number of devices, where they were requested."""
    if question.report is not None:
        used.report(question.report)
        talk(f"REPORT {question.report}")
    if question.out is not None:
        size(_of_best_use(question, used))
    return used


def _of_best_use(question: Size, used: SizeAnswer) -> Size:
    """The sizing of the best layout for a load within its capacity, to write its files.

    Raises
    ------
    SizingError
        No layout meets the SLO at the load, or the best one has prefill replicas, which are not written.
    """
    best = None if used.best_use is None else used.best_use.best
    is_met = used.verdict == "met"
    if best is None or best.n_prefill or not is_met:
        what = (
            "no layout meets the SLO"
            if best is None
            else "the best layout has prefill replicas"
            if is_met
            else "the best layout does not carry the load"
        )
        raise SizingError(what, where="--out", try_="the same command without --out")
    workload = question.workload
    if best.located_users is None:
        workload = replace(workload, rate=workload.rate or best.deployed_load, concurrency=None)
    return replace(
        question,
        total_gpus=None,
        report=None,
        gpus=best.hardware_id,
        tp=str(best.tensor_parallel_size),
        quantization=best.weights_dtype if best.needs_quality_check else question.quantization,
        settings=replace(question.settings, kv_dtype=best.own_kv_dtype),
        fleet=replace(
            question.fleet, cluster=replace(question.fleet.cluster, replicas=best.n_replicas)
        ),
        workload=workload,
    )


def _pace(question: Size, tried: candidates.Candidates) -> Pace:
    """Step times at which the SLO must be met: slow ones, unless their range is too wide."""
    is_known = all(one.deployment.step_times.basis != "datasheet" for one in tried.possible)
    return "slow" if question.sure or (is_known and not question.likely) else "likely"


def _searched(
    question: sizing_types.SizingQuestion,
    tried: candidates.Candidates,
    where: compute.Executor,
    *,
    is_sure: bool,
) -> tuple[sizing_types.SizingQuestion, tuple[sizing_types.Done, ...]]:
    """Results for each device; at likely step times where none meets the SLO at slow ones."""
    with compute.opened(where, "devices") as executor:
        found = sizing.size_by_device(question, tried.possible, executor.map)
        if question.pace == "slow" and not is_sure and _meets_nowhere(found):
            question = replace(question, pace="likely")
            found = sizing.size_by_device(question, tried.possible, executor.map)
    return question, found


def _meets_nowhere(found: tuple[sizing_types.Done, ...]) -> bool:
    """Does no number of replicas meet the SLO at these step times?"""
    return all(
        done.best is None and all(one.is_examined for one in done.searched) for done in found
    )


def _sought(question: Size) -> Sought:
    """SLO and traffic of the question; bad files are refused before the search."""
    if question.out is not None:
        _check_is_deployed(question.engine, _gpus(question))
        deployment_folder.check_written(question.fleet, workload_of(question.workload))
        deployment_folder.check_free(question.out, is_forced=question.force)
    return Sought(
        required_slo(question.slo, workload_of(question.workload)),
        question.probe_requests,
        question.workload.requests,
        question.sure,
    )


def _in_fleets(
    question: Size, sizing_question: sizing_types.SizingQuestion
) -> sizing_types.SizingQuestion:
    """The same question with the fleets of the options."""
    if "routing" in question.given:
        raise SpecError(
            f"--routing {question.routing} without groups of replicas",
            where="--routing",
            allowed="--routing with --groups FILE; --router for replicas of one kind",
        )
    has_total = question.total_gpus is not None
    check_searched(question.fleet)
    if has_total:
        size_best_use.check_options(question.fleet)
    fleets = fleets_of(question.fleet, sizing_question.spec, question.engine)
    sizing_offers.check_pools(question.set, fleets.drawn.class_names)
    # refuses a limit for workflows where there are none
    slo_of(question.slo, sizing_question.spec, fleets)
    is_split_searched = has_total and question.fleet.prefill.prefill_replicas is None
    return replace(sizing_question, fleets=replace(fleets, is_split_searched=is_split_searched))


def _gpus(question: Size) -> str:
    """The devices on offer."""
    if question.gpus is None:
        raise SpecError(
            "--gpus is missing: no devices on offer, and no groups of replicas",
            where="--gpus, --groups",
            allowed="--gpus, or --groups",
            try_="--gpus h100_sxm",
        )
    return question.gpus


def _asked_of_fits(question: Size) -> dict[str, object]:
    """Options that fits must agree with; of several values to try, any will do."""
    requested: dict[str, object] = {"transfer": question.transfer, "engine": question.engine}
    if "dtype" in question.given:
        requested["dtype"] = question.dtype
    if "tp" in question.given:
        requested["tp"] = parse_counts(question.tp, where="--tp")
    if question.settings.kv_dtype is not None:
        requested["kv_dtype"] = question.settings.kv_dtype
    if question.quantization is not None:
        requested["quantization"] = tuple(sizing_offers.formats_to_try(question.quantization))
    return requested


def _grid(question: Size, model: resolve.ResolvedModel) -> candidates.Grid:
    """Settings to try on each device."""
    stages = None if question.pp is None else parse_counts(question.pp, where="--pp")
    refuse_stages(question.engine, max(stages or (1,)), flag="--engine")
    own = tuple(sizing_offers.values_to_try(text) for text in question.set)
    if own:
        stated = {name: ",".join(to) for name, to in own}
        engine_settings.refuse_options(question.engine, stated, fields_of(Size))
    return candidates.Grid(
        tensor_parallel_sizes=parse_counts(question.tp, where="--tp"),
        pipeline_parallel_sizes=stages,
        dtype=question.dtype,
        policy=question.engine,
        quantizations=_quantizations(question, model),
        kv_cache_dtypes=_kv_dtypes(question),
        max_num_seqs=parse_counts(question.max_num_seqs, where="--max-num-seqs"),
        max_num_batched_tokens=parse_counts(
            question.max_num_batched_tokens, where="--max-num-batched-tokens"
        ),
        own=own,
        utilization_fraction=question.settings.gpu_memory_utilization,
        shared=tuple(question.settings.shared.items()),
        data_parallel_size=question.fleet.cluster.data_parallel_size,
        draft=question.settings.draft,
    )


def _kv_dtypes(question: Size) -> tuple[types.DType | None, ...]:
    """KV formats to try: the named one only, if there is one."""
    named = question.settings.kv_dtype
    if named is None and question.total_gpus is not None and question.quantization is None:
        return sizing_offers.OFFERED_KV_DTYPES
    return (named,)


def _quantizations(question: Size, model: resolve.ResolvedModel) -> tuple[types.DType | None, ...]:
    """Weight formats to try: the named ones only, else the published one.

    After it others are offered where the best use of given devices is wanted.
    """
    offered = None if question.total_gpus is None else sizing_offers.OFFERED_FORMATS
    text = question.quantization or offered
    named = [] if text is None else sizing_offers.formats_to_try(text)
    found: list[types.DType | None] = [
        *(() if question.quantization else (model.quantization(),)),
        *(model.quantization(item) for item in sizing_offers.KNOWN_FORMATS if item in named),
    ]
    return tuple(dict.fromkeys(found))


def _candidates(
    question: Size,
    resolved: resolve.ResolvedModel,
    table: prices.PriceTable | None,
    fleets: candidates.Fleets,
) -> candidates.Candidates:
    """The kinds of replica on offer that hold the model."""
    fits = [sizing_offers.fit_named(text) for text in question.fit]
    named_fit.check_transfer(is_transfer=question.transfer, has_fit=bool(fits))
    if fits:
        refuse_links(link=question.link, all_reduce_us=question.all_reduce_us)
        changes = {"--enforce-eager": question.enforce_eager}
        refuse_changed_steps(changes, allowed="the engine as it was measured")
    grid, spec = _grid(question, resolved), resolved.spec
    offers = sizing_offers.offers_of(
        _gpus(question),
        table,
        fits,
        spec,
        _asked_of_fits(question),
        is_datasheet=question.datasheet,
        link=question.link,
    )
    latency_s = s_from_us(question.all_reduce_us)
    joined = [
        replace(one, all_reduce_s=latency_s, is_eager=question.enforce_eager) for one in offers
    ]
    found = candidates.candidates_of(spec, joined, grid, fleets)
    if not found.possible:
        first = found.refused[0]
        raise SizingError(
            f"nothing that is on offer can serve {spec.model_id!r}: {first.what}: {first.why}",
            where="--gpus, --tp",
            try_=(
                "larger devices, more of them (--tp), fewer bits (--quantization), or another"
                " --dtype"
                if any(one.is_too_large for one in found.refused)
                else "other settings, as is allowed; larger devices change nothing of it"
            ),
        )
    return found


def _check_is_deployed(engine: str, gpus: str) -> None:
    """Refuse, before the search, files of another engine than vLLM, or for a machine without a name."""
    if THIS_MACHINE in (name.strip() for name in gpus.split(",")):
        raise SpecError(
            "files that deploy on this machine cannot be written: their plan for verify needs a"
            " device whose numbers stay",
            where="--gpus this, --out",
            allowed="devices of the catalogue",
            try_="the same command without --out",
        )
    if engine != "vllm":
        raise SpecError(
            f"files that deploy {engine} cannot be written",
            where="--out",
            allowed="--engine vllm",
            try_="--json, which has its knobs",
        )


def _failure(problem: SizingProblem, pick: sizing_types.SizedKind | None) -> failure.FailureFound:
    """Effect of the death of one of the pick's replicas."""
    if pick is None:
        return failure.FailureFound(None, None)
    return failure.failure_of(problem.question, pick, problem.start_up_s)


def _over_time(
    problem: SizingProblem, pick: sizing_types.SizedKind | None
) -> sizing_answer.OverTime | None:
    """The pick with replicas that come and go, where the traffic changes."""
    if problem.course is None or pick is None or not problem.question.fleets.is_plain:
        return None
    talk(f"{problem.course.n_windows} windows of traffic under each policy")
    return sizing_answer.over_time(
        problem.question,
        pick,
        problem.course,
        start_up_s=problem.start_up_s,
        target_fraction=problem.target_fraction,
    )

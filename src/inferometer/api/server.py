"""Which server is simulated: a model on a device under the settings of an engine?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from inferometer import suggestions
from inferometer.api import engine_settings, named_fit
from inferometer.api.cluster import Cluster
from inferometer.api.model_options import (
    ALL_REDUCE_OPTION,
    DATASHEET_OPTION,
    EAGER_OPTION,
    FORMATS,
    KV_DTYPE_FLAGS,
    LINK_OPTION,
    MODEL_OPTION,
    PP_FLAGS,
    TP_FLAGS,
    TRANSFER_OPTION,
    refuse_changed_steps,
    refuse_links,
)
from inferometer.api.question import fields_of, option, s_from_us
from inferometer.errors import SpecError
from inferometer.fit.published.efficiencies import known_levels
from inferometer.inputs import resolve
from inferometer.inputs.types import (
    AskedFormat,
    Caution,
    DType,
    EngineSpec,
    HardwareSpec,
    ModelSpec,
)
from inferometer.measure.this_machine import THIS_MACHINE, ceiling_cautions
from inferometer.perfmodel.kv_cache import kv_groups, n_full_attention_layers
from inferometer.perfmodel.roofline import (
    STATED_LINK,
    WITHIN_LINK,
    ParallelPlan,
    beyond_link,
    step_traffic,
    usual_kv_dtype,
)
from inferometer.perfmodel.steptime_levels import StepTimes, fitted_levels, launched_singly
from inferometer.perfmodel.whatif import Draft
from inferometer.simulate import drafts, engine_config, sglang_config, simulated_run, trtllm_config
from inferometer.simulate.deployment import STAGES_KNOB, Deployment, Knobs, deploy

_SHARED: Final = ("max_model_len", "block_size", "num_blocks")
_BATCH: Final = ("max_num_seqs", "max_num_batched_tokens")
_OF_SERVER: Final = frozenset({"tp", "quantization", *_BATCH})
_OF_SETTINGS: Final = frozenset({"kv_dtype", "gpu_memory_utilization", *_SHARED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of every replica, whatever else is varied."""

    kv_dtype: DType | None = option(
        None,
        "Format of the KV cache. [as --dtype; float8 in TensorRT-LLM with float8 or float4 weights]",
        "Model",
        flags=KV_DTYPE_FLAGS,
        formats=FORMATS,
    )
    max_model_len: int | None = option(
        None,
        "Prompt and output together. [what the model and the KV cache can hold]",
        "Engine",
        least=1,
    )
    block_size: int | None = option(
        None, "Tokens in a KV block. [the engine's default]", "Engine", least=1
    )
    num_blocks: int | None = option(
        None,
        "KV blocks, as the server's log says. [computed from the device's memory]",
        "Engine",
        least=1,
    )
    gpu_memory_utilization: float | None = option(
        None,
        "Share of memory given to the engine; to TensorRT-LLM, of what weights and steps leave."
        " [vLLM: 0.92; SGLang: computed; TensorRT-LLM: 0.9]",
        "Engine",
    )

    speculative: str | None = option(
        None,
        "vLLM drafts N tokens by ngram, eagle, medusa, mtp or a draft model; its acceptance where"
        " measured, else the published one.",
        "Engine",
        metavar="METHOD:N[,ACCEPTANCE]",
    )

    @property
    def shared(self) -> dict[str, int]:
        """Given settings that all engines have."""
        return {name: value for name in _SHARED if (value := getattr(self, name)) is not None}

    @property
    def draft(self) -> Draft | None:
        """The speculation that is named."""
        return None if self.speculative is None else engine_settings.named_draft(self.speculative)

    def knobs(self, policy: str, shared: Mapping[str, int], own: Mapping[str, str]) -> Knobs:
        """These settings with ``shared`` and the engine's ``own`` ones."""
        return Knobs(
            policy=policy,
            shared={**self.shared, **shared},
            own=own,
            utilization_fraction=self.gpu_memory_utilization,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A model on a device under the settings of an engine."""

    model: Annotated[str, MODEL_OPTION]
    hardware: str | None = option(
        None,
        "A device of the catalogue, or this machine, probed now: for memory, and for step times"
        " without --fit. [that of --fit]",
        "Hardware",
        is_common=True,
        metavar="ID|this",
        is_axis=True,
    )
    tp: int | None = option(
        None,
        "Tensor-parallel devices. [that of --fit, else 1]",
        "Hardware",
        is_common=True,
        flags=TP_FLAGS,
        least=1,
    )
    pp: int | None = option(
        None, "Pipeline-parallel stages, vLLM's. [1]", "Hardware", flags=PP_FLAGS, least=1
    )
    ep: bool = option(False, "Experts spread over the tensor-parallel devices.", "Hardware")
    enforce_eager: Annotated[bool, EAGER_OPTION] = False
    fit: Path | None = option(
        None,
        "Result of `inferometer fit`: its file, or the run's folder. A fit with --load has the"
        " server's limits too.",
        "Hardware",
        is_common=True,
    )
    transfer: Annotated[bool, TRANSFER_OPTION] = False
    datasheet: Annotated[bool, DATASHEET_OPTION] = False
    link: Annotated[str | None, LINK_OPTION] = None
    all_reduce_us: Annotated[float | None, ALL_REDUCE_OPTION] = None
    dtype: DType | None = option(
        None,
        "Format of weights and activations. [that of --fit, else bfloat16; float16 without it,"
        " float32 on a CPU]",
        "Model",
        is_common=True,
        formats=FORMATS,
    )
    quantization: AskedFormat | None = option(
        None,
        "Format of the weights alone. [as published]",
        "Model",
        is_common=True,
        formats=(*FORMATS, "none"),
    )
    settings: Settings = field(default_factory=Settings)
    policy: str | None = option(
        None,
        "Engine whose scheduler is simulated. [that of --fit's engine, else vllm]",
        "Engine",
        is_common=True,
        choices=engine_config.ENGINE_NAMES,
    )
    max_num_seqs: int | None = option(
        None,
        "Sequences that run at once. [the engine's default]",
        "Engine",
        is_common=True,
        least=1,
    )
    max_num_batched_tokens: int | None = option(
        None, "Tokens computed in a step. [the engine's default]", "Engine", is_common=True, least=1
    )
    set: tuple[str, ...] = option(
        (),
        "Another setting of the engine, by the engine's name for it; repeatable.",
        "Engine",
        is_common=True,
        metavar="NAME=VALUE",
    )

    def stated(self) -> Mapping[str, Any]:
        """Options that must agree with a fit; None where not given."""
        return {
            "dtype": self.dtype,
            "kv_dtype": self.settings.kv_dtype,
            "quantization": self.quantization,
            "tp": self.tp,
            "policy": self.policy,
            "transfer": self.transfer,
        }


def server_with(server: Server, values: Mapping[str, int | float | str | bool]) -> Server:
    """The server with these settings, by whichever flag each of them has."""
    of_server = {name: value for name, value in values.items() if name in _OF_SERVER}
    of_settings = {name: value for name, value in values.items() if name in _OF_SETTINGS}
    words = tuple(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in values.items()
        if name not in _OF_SERVER | _OF_SETTINGS
    )
    changes: dict[str, Any] = dict(of_server)
    settings: dict[str, Any] = dict(of_settings)
    return replace(
        server, **changes, settings=replace(server.settings, **settings), set=(*server.set, *words)
    )


def deployment_of(server: Server, *, n_sharing: int = 1) -> Deployment:
    """The deployment of this server; ``n_sharing`` replicas share its experts.

    Raises
    ------
    SpecError, ModelError
        An unknown model or device, a fit that is another one's, a knob that cannot be, or no memory
        for a KV cache.
    """
    named_fit.check_transfer(is_transfer=server.transfer, has_fit=server.fit is not None)
    hardware = named_fit.device_named(server.hardware, server.link) if server.hardware else None
    if server.fit is not None:
        refuse_links(link=server.link, all_reduce_us=server.all_reduce_us)
        changes = {"--ep": server.ep, "--enforce-eager": server.enforce_eager}
        if named_fit.is_server(server.fit):
            changes["--speculative"] = server.settings.speculative is not None
        refuse_changed_steps(changes, allowed="the engine as it was measured")
    if server.fit is not None and named_fit.is_server(server.fit):
        return named_fit.server_deployment(
            server.fit, server.model, server.stated(), hardware, _knobs(server, None, n_sharing)
        )
    model = resolve.resolve_model(server.model, load_format="dummy")
    found = step_times_of(server, model, hardware, n_sharing=n_sharing)
    knobs = _knobs(server, found.times, n_sharing)
    if (draft := server.settings.draft) is not None:
        engine = found.times.engine
        own = drafts.draft_settings(draft, model.spec, engine, found.hardware, knobs.policy)
        knobs = replace(knobs, own={**own, **knobs.own})
    return deploy(model.spec, found.times.engine, found.hardware, found.times, knobs)


def _knobs(server: Server, times: StepTimes | None, n_sharing: int) -> Knobs:
    fitted_engine = None if times is None or times.subject is None else times.subject.engine
    policy = server.policy or (
        fitted_engine if fitted_engine in engine_config.ENGINE_NAMES else Knobs().policy
    )
    knobs = server.settings.knobs(
        policy,
        {name: value for name in _BATCH if (value := getattr(server, name)) is not None},
        _own_knobs(server, policy),
    )
    return replace(knobs, data_parallel_size=n_sharing)


def _own_knobs(server: Server, policy: str) -> dict[str, str]:
    own = dict(own_knob(text, where="--set") for text in server.set)
    if own:
        engine_settings.refuse_options(policy, own, (*fields_of(Server), *fields_of(Cluster)))
    if server.pp is None:
        return own
    refuse_stages(policy, server.pp, flag="--policy")
    if not engine_config.has_knob(policy, STAGES_KNOB):
        return own
    if STAGES_KNOB in own:
        raise SpecError(
            f"two numbers of stages: {server.pp} and {own[STAGES_KNOB]}",
            where=f"--pp, --set {STAGES_KNOB}",
            allowed="one of the two",
            try_=suggestions.flags("--pp", server.pp),
        )
    return own | {STAGES_KNOB: str(server.pp)}


def refuse_stages(policy: str, n_stages: int, *, flag: str) -> None:
    """Refuse pipeline stages of an engine whose schedulers of them are not simulated."""
    if n_stages > 1 and not engine_config.has_knob(policy, STAGES_KNOB):
        raise SpecError(
            f"{n_stages} pipeline stages of {policy}",
            where="--pp",
            allowed="1: stages are simulated by vLLM's rules alone; SGLang and TensorRT-LLM put requests"
            " into micro-batches, each with a schedule of its own",
            try_=f"{suggestions.flags(flag, 'vllm')}, or {suggestions.flags('--tp', n_stages)} on the"
            " same devices; `inferometer predict` has stages of a static batch",
        )


class Steps(NamedTuple):
    """Step times and their device; None where it is unknown."""

    times: StepTimes
    hardware: HardwareSpec | None


def step_times_of(
    server: Server,
    model: resolve.ResolvedModel,
    hardware: HardwareSpec | None,
    *,
    n_sharing: int = 1,
) -> Steps:
    """Step times of this model: by a fit, else by published rows or a datasheet.

    Raises
    ------
    SpecError, ModelError
        Neither is named, or the fit is another one's.
    """
    if server.fit is not None:
        question = named_fit.question_of(server.stated(), model.spec, hardware)
        fit = named_fit.step_fit(server.fit, question, is_transfer=server.transfer)
        return Steps(fitted_levels(fit.model), fit.hardware)
    if hardware is not None:
        quantization, policy = model.quantization(server.quantization), server.policy or "vllm"
        engine = EngineSpec(
            engine="vllm",
            dtype=server.dtype or hardware.usual_dtype,
            kv_cache_dtype=server.settings.kv_dtype or usual_kv_dtype(policy, quantization),
            quantization=quantization,
            device="cpu" if hardware.kind == "cpu" else "cuda",
            tensor_parallel_size=server.tp or 1,
        )
        # one device has every expert whole, and a dense model has none: no other step times
        is_spread = server.ep and engine.tensor_parallel_size > 1 and model.spec.moe is not None
        times = known_levels(
            model.spec,
            engine,
            hardware,
            framework=policy,
            n_sharing=n_sharing,
            is_datasheet=server.datasheet,
            all_reduce_s=s_from_us(server.all_reduce_us),
        )
        times = _with_whole_experts(times, model.spec) if is_spread else times
        is_single = server.enforce_eager and hardware.kind != "cpu"
        return Steps(launched_singly(times, model.spec) if is_single else times, hardware)
    raise SpecError(
        "the step times are unknown",
        where="--hardware, --fit",
        allowed="a device of the catalogue, or a fit",
        try_="--hardware h100_sxm",
    )


def _with_whole_experts(times: StepTimes, model: ModelSpec) -> StepTimes:
    """The step times where each expert lives whole on one of the tensor-parallel devices.

    The devices read and compute as much as before, for all experts are taken to be chosen equally
    often. Of published rows the steps stay: engines whose attention is tensor-parallel sum experts
    up by the same all-reduce (vLLM 0.32.0, ``FusedMoEParallelConfig.use_all2all_kernels``). Of a
    datasheet it becomes two all-to-alls; ``predict --ep`` has the same traffic.
    """
    n_tensor, dtype = times.engine.tensor_parallel_size, times.engine.dtype
    if times.basis != "datasheet":
        return replace(
            times,
            origin=f"{times.origin}; of experts split over {n_tensor} devices, as of whole ones",
        )
    plan = ParallelPlan(n_tensor=n_tensor)
    split, whole = (
        step_traffic(model, dtype, one, n_rows=1, n_logit_positions=0)
        for one in (plan, replace(plan, has_expert_parallelism=True))
    )

    return times.changed(
        lambda steps, _: steps._replace(
            message_s=steps.message_s * whole.n_messages / split.n_messages,
            link_row_s=steps.link_row_s * whole.sent_bytes / split.sent_bytes,
        ),
        f"; experts spread over {n_tensor} devices",
    )


def check_some_are_taken(kinds: Sequence[Deployment], requests: engine_config.Sorted) -> None:
    """Refuse traffic all of whose prompts are too long for each of these kinds of server.

    Raises
    ------
    SpecError
        The servers would answer nothing.
    """
    widest = max(kinds, key=lambda one: one.config.max_prompt_tokens)
    config, least = widest.config, int(requests.prompt_tokens.min())
    if least <= config.max_prompt_tokens:
        return
    is_step = simulated_run.larger_steps(config) is not None and least < config.max_model_len
    name = "max_num_batched_tokens" if is_step else "max_model_len"
    own_name = engine_config.own_name(widest.knobs.policy, name)
    value, longest = getattr(config, own_name), int(requests.prompt_tokens.max())
    n_wanted = longest + 1 + value - config.max_prompt_tokens
    try_ = "shorter prompts, or another model: the positions of this one end there"
    if is_step:
        n_wanted = 1 << (longest - 1).bit_length()
        chunked = suggestions.flags("--set", "enable_chunked_prefill=true")
        try_ = f"{suggestions.flags('--max-num-batched-tokens', n_wanted)}, or {chunked}"
    elif n_wanted <= widest.model.max_position_tokens:
        try_ = f"{suggestions.flags('--max-model-len', n_wanted)}, or shorter prompts"
    raise SpecError(
        f"{own_name} = {value:,}: {config.engine} refuses all {len(requests.prompt_tokens):,} requests,"
        f" whose prompts have {least:,} tokens or more",
        where=f"--{name.replace('_', '-')}",
        allowed=f"prompts of up to {config.max_prompt_tokens:,} tokens",
        try_=try_,
    )


def own_knob(text: str, *, where: str) -> tuple[str, str]:
    """A knob and its value, of ``NAME=VALUE``.

    Raises
    ------
    SpecError
        The text is not of that form.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise SpecError(
            f"{text!r} sets nothing",
            where=where,
            allowed="NAME=VALUE",
            try_=f"{where} policy=priority",
        )
    return name.strip(), value.strip()


def assumed_steps(*deployments: Deployment) -> str:
    """Source of step times that were not measured, in words."""
    are_here = all(one.hardware and one.hardware.hardware_id == THIS_MACHINE for one in deployments)
    here = "this machine's measured ceilings"
    return (
        f"step times are those of {here if are_here else 'a datasheet'}: usual shares"
        " of its peaks and usual launch, scheduler and front-end times of an engine with graphs"
    )


def fit_cautions(deployment: Deployment) -> tuple[Caution, ...]:
    """Cautions on a fit that is not of the same server."""
    subject = deployment.step_times.subject
    reasons = () if subject is None else subject.reservations(deployment.knobs.policy)
    remedy = "inferometer sweep on this device and engine, then inferometer fit"
    found = [Caution(code="FIT_SUBJECT", text=reason, remedy=remedy) for reason in reasons]
    return (
        *_model_cautions(deployment),
        *found,
        *_link_cautions(deployment),
        *_window_cautions(deployment),
        *_start_cautions(deployment),
        *_rank_cautions(deployment),
    )


def kinds_cautions(kinds: Sequence[Deployment]) -> tuple[Caution, ...]:
    """Cautions of these kinds of server, each once."""
    sheets = [one.hardware for one in kinds if one.step_times.basis == "datasheet"]
    found = dict.fromkeys(caution for one in kinds for caution in fit_cautions(one))
    return (*ceiling_cautions(*sheets), *found)


def _rank_cautions(deployment: Deployment) -> tuple[Caution, ...]:
    """What is assumed of data-parallel attention in SGLang and TensorRT-LLM."""
    n_ranks, config = deployment.knobs.data_parallel_size, deployment.config
    if n_ranks == 1 or not isinstance(
        config, sglang_config.SglangConfig | trtllm_config.TrtllmConfig
    ):
        return ()
    if isinstance(config, sglang_config.SglangConfig):
        text = (
            f"--enable-dp-attention: each of the {n_ranks} ranks has a chunked_prefill_size of"
            f" {config.chunked_prefill_size:,}, max_running_requests of"
            f" {config.max_running_requests:,} and schedule_conservativeness of"
            f" {config.schedule_conservativeness_ratio:g}: SGLang divides what --set gives of the"
            f" first two, and takes {sglang_config.RANK_RATIO} of the third, while --max-num-seqs and"
            " --max-num-batched-tokens are of each rank; steps without CUDA graphs, as some rank"
            " computes prompts, count as with them"
        )
        remedy = "the same values in the log of a rank"
    else:
        text = (
            f"enable_attention_dp: a request goes to the one of the {n_ranks} ranks with fewest"
            " requests when it comes; TensorRT-LLM has one queue for all ranks above their"
            " max_batch_size, and gives requests that come together out by prompt tokens"
        )
        remedy = "where requests wait, TTFT is approximate; --max-num-seqs is of each rank"
    return (Caution(code="RANKS", text=text, remedy=remedy),)


def _model_cautions(deployment: Deployment) -> tuple[Caution, ...]:
    """Cautions on unknown parts of the model's files, and what was assumed."""
    model = deployment.model
    if model.note is None or model.source.kind != "config":
        return ()  # notes of the catalogue are of its numbers, which were checked
    remedy = "inferometer catalog lists what is known; a fit to measurements (--fit) tells the rest"
    return (Caution(code="MODEL", text=model.note, remedy=remedy),)


def _link_cautions(deployment: Deployment) -> tuple[Caution, ...]:
    """A caution where a replica's ranks, or those that share experts, are more than a link joins."""
    if deployment.hardware is None or deployment.step_times.basis == "fitted":
        return ()  # what was measured over such a group has its network in it
    n_sharing = deployment.knobs.data_parallel_size
    text = beyond_link(deployment.hardware, deployment.engine.tensor_parallel_size, n_sharing)
    remedy = WITHIN_LINK if n_sharing == 1 else STATED_LINK
    return (Caution(code="NODES", text=text, remedy=remedy),) if text else ()


def _start_cautions(deployment: Deployment) -> tuple[Caution, ...]:
    """A caution where some versions of the engine would not start with this context length."""
    least = deployment.least_blocks
    if least is None:
        return ()
    likely, n_tokens = deployment.config.n_kv_blocks, deployment.config.max_model_len
    found = f"{likely:,} are likely" if likely > least else "fewer are likely, or just as many"
    text = (
        f"a context of {n_tokens:,} tokens needs {least:,} KV blocks: {found}, but"
        " versions of the engine that leave fewer refuse to start; intervals are of those that start"
    )
    remedy = "--num-blocks with the number in the server's log, or a smaller --max-model-len"
    return (Caution(code="MAY_NOT_START", text=text, remedy=remedy),)


def _window_cautions(deployment: Deployment) -> tuple[Caution, ...]:
    """A caution where sliding-window layers hold blocks that a server would free."""
    groups = kv_groups(deployment.model)
    if not deployment.keeps_windows_whole:
        return ()
    n_sliding = deployment.model.n_attention_layers - n_full_attention_layers(deployment.model)
    return (
        Caution(
            code="WINDOWS",
            text=(
                f"KV blocks are counted for the whole context, though {n_sliding} of"
                f" {deployment.model.n_attention_layers} layers of {deployment.model.model_id} keep"
                f" {groups.window_tokens:,} tokens: with {deployment.config.engine} set up like this,"
                " blocks that leave a window are not given back here, and the KV cache seems smaller"
                " than it is"
            ),
            remedy=(
                "--policy vllm, without prefill replicas, swapping, drafts of EAGLE or a fit of"
                " load tests, which counted so too"
            ),
        ),
    )


def origin_cautions(deployment: Deployment) -> tuple[Caution, ...]:
    """Cautions on numbers that were not measured."""
    if deployment.step_times.basis != "datasheet":
        return (*fit_cautions(deployment), *_kv_cautions(deployment))
    return (
        *ceiling_cautions(deployment.hardware),
        Caution(
            code="DATASHEET",
            text=assumed_steps(deployment),
            remedy="inferometer sweep and inferometer fit on the device, then --fit",
        ),
        *fit_cautions(deployment),
        *_kv_cautions(deployment),
    )


def _kv_cautions(deployment: Deployment) -> tuple[Caution, ...]:
    """Cautions on KV caches that no engine has."""
    if not engine_config.kv_pools_of(deployment.config):
        return _compaction_cautions(deployment)
    text = (
        "vLLM 0.32.0 has one KV cache for all requests: its pools follow rules of this simulator, and a"
        " decode reads a token in proportion to its bytes; prompts take as long in each format"
    )
    whole = suggestions.flags("--set", "kv_pools=share=1")
    remedy = f"compare with {whole}, the whole cache; replicas of different kinds can be deployed"
    return (Caution(code="KV_POOLS", text=text, remedy=remedy),)


def _compaction_cautions(deployment: Deployment) -> tuple[Caution, ...]:
    """Cautions on costs of KV compaction that are not simulated."""
    bytes_per_s: float = getattr(deployment.config, "compaction_bytes_per_s", 0.0)
    if bytes_per_s == 0:
        return ()
    text = (
        f"pieces of the KV cache move at {bytes_per_s / 1e9:g} GB/s a device in the"
        " background and slow no step, though both read and write the same memory"
    )
    remedy = "a rate that is small against the memory's bandwidth"
    return (Caution(code="free compaction", text=text, remedy=remedy),)

"""The command that starts a server, as a description of it: its model, its engine, its flags.

Users have this command; what each of its flags is called here, the verbs' own tables know. A
benchmark's command is read as the flags that describe its traffic.
"""

import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple, TypeAlias

from inferometer.errors import SpecError

Engine: TypeAlias = Literal["vllm", "sglang", "trtllm"]

_PROGRAMS: Final[tuple[tuple[Engine, str], ...]] = (
    ("vllm", r"(?:\S*/)?vllm serve\b"),
    ("vllm", r"vllm\.entrypoints\.(?:openai\.)?api_server\b"),
    ("vllm", r"(?:\S*/)?vllm/vllm-openai\S*"),
    ("sglang", r"sglang\.launch_server\b"),
    ("sglang", r"(?:\S*/)?sglang serve\b"),
    ("trtllm", r"(?:\S*/)?trtllm-serve(?: serve)?\b"),
)
_BENCHMARK: Final = (
    r"(?:^|\s)(?:((?:\S*/)?vllm bench serve|(?:\S*/)?benchmark_serving\.py|sglang\.bench_serving)"
    r"|aiperf profile|genai-perf profile|guidellm benchmark(?: run)?)(?=\s|$)"
)
"""Programs; without a rate those of vLLM and SGLang send all requests, usually 1,000, at once."""
_MODEL: Final = ("--model", "--model-path", "-m")
_EXPERTS: Final = ("--enable-expert-parallel", "--ep-size", "--expert-parallel-size", "--ep")
_OURS: Final = {**dict.fromkeys(_EXPERTS, "--ep"), "--disable-cuda-graph": "--enforce-eager"}
_OF_NO_EFFECT: Final = {
    "--allow-credentials", "--allowed-headers", "--allowed-methods", "--allowed-origins",
    "--api-key", "--api-key-file", "--backend", "--chat-template",
    "--chat-template-content-format", "--collect-detailed-traces", "--config-format",
    "--data-parallel-backend", "--data-parallel-size-local", "--decode-log-interval",
    "--disable-access-log-for-endpoints", "--disable-fastapi-docs", "--disable-log-requests",
    "--disable-log-stats", "--disable-uvicorn-access-log", "--dist-init-addr", "--download-dir",
    "--enable-auto-tool-choice", "--enable-cache-report", "--enable-log-requests",
    "--enable-metrics", "--enable-prompt-tokens-details", "--enable-reasoning",
    "--enable-request-id-headers", "--enable-server-load-tracking", "--enable-sleep-mode",
    "--generation-config", "--grammar-backend", "--guided-decoding-backend", "--headless",
    "--hf-config-path", "--hf-overrides", "--hf-token", "--host", "--ignore-patterns",
    "--kv-events-config", "--load-format", "--log-level", "--log-requests",
    "--log-requests-level", "--master-addr", "--master-port", "--max-log-len", "--max-logprobs",
    "--metadata-server-port", "--middleware", "--model-loader-extra-config", "--nnodes",
    "--no-enable-log-requests", "--node-rank", "--otlp-traces-endpoint",
    "--override-generation-config", "--port", "--random-seed", "--reasoning-parser",
    "--response-role", "--return-tokens-as-token-ids", "--revision", "--root-path",
    "--rope-scaling", "--rope-theta", "--seed",
    "--served-model-name", "--show-hidden-metrics-for-version", "--skip-server-warmup",
    "--ssl-ca-certs", "--ssl-certfile", "--ssl-keyfile", "--structured-outputs-config",
    "--tokenizer", "--tokenizer-mode", "--tokenizer-path", "--tokenizer-revision",
    "--tool-call-parser", "--tool-parser", "--trust-remote-code", "--uvicorn-log-level",
    "--watchdog-timeout",
}  # fmt: skip
"""Flags of the interface, of loading and of logs: no step is longer or shorter by them."""
_OF_KERNELS: Final = {
    "--all2all-backend", "--api-server-count", "--attention-backend", "--attention-config",
    "--compilation-config", "--cuda-graph-bs", "--cuda-graph-max-bs",
    "--cudagraph-capture-sizes", "--decode-attention-backend", "--disable-custom-all-reduce",
    "--disable-shared-experts-fusion", "--distributed-executor-backend",
    "--enable-flashinfer-allreduce-fusion", "--enable-p2p-check", "--enable-symm-mem",
    "--enable-torch-compile", "--fp8-gemm-backend", "--kernel-config", "--language-model-only",
    "--limit-mm-per-prompt", "--max-cudagraph-capture-size", "--max-seq-len-to-capture",
    "--mm-encoder-tp-mode", "--mm-processor-cache-gb", "--mm-processor-kwargs",
    "--moe-a2a-backend", "--moe-backend", "--moe-runner-backend",
    "--optimization-level", "--prefill-attention-backend", "--sampling-backend",
    "--stream-interval", "--swap-space", "--tokenizer-pool-size", "--torch-compile-max-bs",
    "-O",
}  # fmt: skip
"""Flags that choose kernels or threads: step times here are those of the engine's usual choice."""
_NOT_SIMULATED: Final = {
    **dict.fromkeys(
        (
            "--enable-lora", "--fully-sharded-loras", "--lora-dtype", "--lora-extra-vocab-size",
            "--lora-modules", "--lora-paths", "--lora-target-modules", "--max-cpu-loras",
            "--max-lora-rank", "--max-loras", "--max-loras-per-batch",
        ),
        "LoRA adapters are not simulated: they make steps longer, and some requests wait for a slot",
    ),
    **dict.fromkeys(
        (
            "--enable-hierarchical-cache", "--enable-lmcache", "--hicache-ratio", "--hicache-size",
            "--hicache-storage-backend", "--hicache-write-policy", "--kv-offloading-backend",
            "--kv-offloading-size", "--kv-transfer-config",
        ),
        "KV caches beyond the device's memory and KV transfers are not simulated: prefixes that it"
        " evicts are computed again",
    ),
}  # fmt: skip
"""Flags whose effect is not simulated, and what that does to the answer."""
_DATA_PARALLEL: Final = ("--dp", "--dp-size", "--data-parallel-size")
_TENSOR_PARALLEL: Final = ("--tp", "--tp-size", "--tensor-parallel-size")
_DRAFT_MODELS: Final = ("--speculative-draft-model-path", "--speculative-draft-model")
_DP_ATTENTION: Final = "--enable-dp-attention"
_AS_PUBLISHED: Final = {("--dtype", "auto"), ("--kv-cache-dtype", "auto"), ("--quantization", "")}
"""Values that say what the model's files say."""


_OF_REPORTS: Final = {
    "--disable-tqdm", "--ignore-eos", "--label", "--metadata", "--metric-percentiles",
    "--num-warmups", "--percentile-metrics", "--ready-check-timeout-sec", "--result-dir",
    "--result-filename", "--save-detailed", "--save-result", "--service-kind", "--tokenizer",
    "--tokenizer-mode", "--trust-remote-code", "--ui", "--output-path", "--output-file",
}  # fmt: skip
"""Flags of a benchmark that change no request."""
_OF_SENDING: Final = {
    "--backend", "--base-url", "--endpoint", "--endpoint-type", "--host", "--port", "--streaming",
    "--target", "--url", "-u",
}  # fmt: skip
"""Flags of a benchmark for where and how requests are sent."""


class ServeCommand(NamedTuple):
    """A server's start command, taken apart."""

    model: str
    engine: Engine
    flags: tuple[tuple[str, str | None], ...]
    """Flags that can make steps longer or shorter, and their values; None: a switch."""
    unmodelled: tuple[str, ...]
    """Flags that choose kernels: no step here is longer or shorter by them."""
    left_out: tuple[str, ...] = ()
    """What the server does and the simulation does not, in words."""

    @property
    def remark(self) -> str:
        """What a user is to know of the unmodelled flags; '' where there are none."""
        flags = ", ".join(self.unmodelled)
        kernels = f"step times are those of the engine's usual kernels, not of {flags}"
        return "; ".join([*([kernels] if flags else []), *self.left_out])


def read_serve_command(text: str) -> ServeCommand | None:
    """The parts of ``vllm serve MODEL --max-num-seqs 64`` and the like; None for another text.

    Of vLLM, SGLang and TensorRT-LLM, also behind variables of the environment and in ``docker run``
    of vLLM's image. What is before the program is passed over, and so are flags of the interface,
    of loading and of logs.

    Raises
    ------
    SpecError
        A quotation is not closed, or the command names no model.

    Example
    -------
    >>> read_serve_command("vllm serve Qwen/Qwen3-8B --port 80 -tp 2 --enforce-eager").flags
    (('-tp', '2'), ('--enforce-eager', None))
    """
    for engine, program in _PROGRAMS:
        if place := re.search(rf"(?:^|\s){program}", text):
            return _taken_apart(text[place.end() :], engine)
    return None


def in_quotes(words: Sequence[str], own: Collection[str]) -> list[str]:
    """A command that was typed without quotes as one text, then the verb's ``own`` flags.

    Example
    -------
    >>> in_quotes("vllm serve m --port 1 --rate 2".split(), {"--rate"})
    ['vllm serve m --port 1', '--rate', '2']
    """
    inside, outside = list(words[:2]), list[str]()
    written = inside
    for word, following in pairwise([*words[2:], ""]):
        if word.startswith("-"):
            is_own = word.partition("=")[0] in own and following != "auto"
            written = outside if is_own else inside
        written.append(word)
    return [shlex.join(inside), *outside]


def read_benchmark_command(
    text: str, *, sends: bool = True
) -> tuple[tuple[str, str | None], ...] | None:
    """The traffic's flags of ``vllm bench serve --request-rate 4`` and the like; None for another text.

    Of vLLM's, SGLang's, AIPerf's, GenAI-Perf's and GuideLLM's benchmarks; without the flags for
    sending where a verb ``sends`` no requests.

    Raises
    ------
    SpecError
        A quotation is not closed.

    Example
    -------
    >>> read_benchmark_command("vllm bench serve --save-result --model m --request-rate 4")
    (('--model', 'm'), ('--request-rate', '4'))
    """
    place = re.search(_BENCHMARK, text)
    if place is None:
        return None
    left_out = _OF_REPORTS if sends else _OF_REPORTS | _OF_SENDING
    named = dict(one for one in _flags(_words(text[place.end() :])) if one[0] not in left_out)
    if place[1] and named.get("--request-rate", "inf") == "inf":
        named.pop("--request-rate", None)
        named.setdefault("--max-concurrency", named.setdefault("--num-prompts", "1000"))
    if named.get("--dataset-name") == "random":
        del named["--dataset-name"]
    return tuple(named.items())


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise SpecError(f"{text!r}: {error}", where="MODEL", allowed="a whole command") from error


def _taken_apart(text: str, engine: Engine) -> ServeCommand:
    """What stands after the program."""
    words = _words(text)
    named = _as_objects(_flags(words))
    model = next((value for flag, value in reversed(named) if flag in _MODEL), None)
    model = words[0] if words and not words[0].startswith("-") else model
    if not model:
        raise SpecError(
            "the server's command names no model",
            where="MODEL",
            allowed=f"{'--model-path M' if engine == 'sglang' else 'M after the program'}",
        )
    named = _with_drafts(_of_sglang(named)) if engine == "sglang" else named
    passed_over = {*_MODEL, *_OF_NO_EFFECT, *_OF_KERNELS, *_NOT_SIMULATED}
    flags = (
        (_OURS.get(flag, flag), None if flag in _OURS else value)
        for flag, value in named
        if flag not in passed_over
        and (flag, value) not in _AS_PUBLISHED
        and not (flag in _EXPERTS and value == "1")
    )
    unmodelled = (flag for flag, _ in named if flag in _OF_KERNELS)
    left_out = (_NOT_SIMULATED[flag] for flag, _ in named if flag in _NOT_SIMULATED)
    return ServeCommand(
        model,
        engine,
        tuple(dict.fromkeys(flags)),
        tuple(dict.fromkeys(unmodelled)),
        tuple(dict.fromkeys(left_out)),
    )


def _of_sglang(named: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """SGLang's data parallelism in vLLM's terms.

    With DP attention its ``--tp`` counts the devices of all ranks, which share experts; without it
    ``--dp`` is the number of whole copies of the model, behind a router that takes turns.
    """
    numbers = (value for flag, value in named if flag in _DATA_PARALLEL and value is not None)
    ranks = next((int(one) for one in numbers if one.isdigit()), 1)
    shares = any(flag == _DP_ATTENTION for flag, _ in named)
    written = list[tuple[str, str | None]]()
    for flag, value in named:
        is_copies = flag in _DATA_PARALLEL and not shares
        if flag in _TENSOR_PARALLEL and shares and value is not None and value.isdigit():
            if int(value) % ranks:
                raise SpecError(
                    f"{flag} {value} is not a multiple of {ranks} ranks of DP attention",
                    where="MODEL",
                    allowed="--tp N, of all ranks together, and --dp, a divisor of N",
                    try_=f"a multiple of {ranks} for {flag}",
                )
            written.append((flag, str(int(value) // ranks)))
        elif is_copies and ranks > 1:
            written += [("--replicas", value), ("--router", "round-robin")]
        elif flag != _DP_ATTENTION and not is_copies:
            written.append((flag, value))
    return written


def _with_drafts(named: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """SGLang's flags of speculation as ``--speculative mtp:3``.

    Without a draft model its EAGLE drafts by the model's own module. Trees of drafts stay as they
    are: their acceptance is another one.
    """
    given = {flag: value for flag, value in named if flag.startswith("--speculative-")}
    method = (given.get("--speculative-algorithm") or given.get("--speculative-algo") or "").lower()
    n_steps = given.get("--speculative-num-steps")
    is_chain = given.get("--speculative-eagle-topk", "1") == "1"
    if method not in {"eagle", "eagle3", "nextn"} or n_steps is None or not is_chain:
        return named
    has_draft = not given.keys().isdisjoint(_DRAFT_MODELS)
    rest = [one for one in named if one[0] not in given]
    return [*rest, ("--speculative", f"{'eagle' if has_draft else 'mtp'}:{n_steps}")]


def _as_objects(named: Iterable[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """Dotted flags, ``--speculative-config.method mtp``, as ``--speculative-config '{"method": "mtp"}'``."""
    written, objects = list[tuple[str, str | None]](), dict[str, dict[str, object]]()
    for name, value in named:
        flag, dot, key = name.partition(".")
        if not dot:
            written.append((name, value))
            continue
        is_whole = value is not None and value.isdecimal()
        objects.setdefault(flag, {})[key] = int(value or 0) if is_whole else value or True
    return [*written, *((flag, json.dumps(one)) for flag, one in objects.items())]


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Flags with their values; a flag followed by another one is a switch."""
    for word, following in pairwise([*words, "-"]):
        if word.startswith("-") and not re.fullmatch(r"-[\d.]+", word):
            flag, equals, value = word.partition("=")
            option, dot, key = flag.partition(".")
            flag = option.replace("_", "-") + dot + key if flag.startswith("--") else flag
            stands_alone = following.startswith("-") and not re.fullmatch(r"-[\d.]+", following)
            yield flag, value if equals else None if stands_alone else following

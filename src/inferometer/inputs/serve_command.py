"""The command that starts a server, as a description of it: its model, its engine, its flags.

Users have this command; what each of its flags is called here, the verbs' own tables know.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
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
_MODEL: Final = ("--model", "--model-path", "-m")
_EXPERTS: Final = ("--enable-expert-parallel", "--ep-size", "--expert-parallel-size", "--ep")
_OURS: Final = {**dict.fromkeys(_EXPERTS, "--ep"), "--disable-cuda-graph": "--enforce-eager"}
_OF_NO_EFFECT: Final = {
    "--allow-credentials", "--allowed-headers", "--allowed-methods", "--allowed-origins",
    "--api-key", "--api-key-file", "--backend", "--chat-template",
    "--chat-template-content-format", "--config-format", "--disable-access-log-for-endpoints",
    "--disable-fastapi-docs", "--disable-log-requests", "--disable-log-stats",
    "--disable-uvicorn-access-log", "--download-dir", "--enable-auto-tool-choice",
    "--enable-log-requests", "--enable-metrics", "--enable-prompt-tokens-details",
    "--enable-reasoning", "--enable-request-id-headers", "--generation-config",
    "--hf-overrides", "--hf-token", "--host", "--load-format", "--log-level", "--max-log-len",
    "--metadata-server-port", "--model-loader-extra-config", "--no-enable-log-requests",
    "--override-generation-config", "--port", "--random-seed", "--reasoning-parser",
    "--response-role", "--return-tokens-as-token-ids", "--revision", "--root-path", "--seed",
    "--served-model-name", "--ssl-ca-certs", "--ssl-certfile", "--ssl-keyfile", "--tokenizer",
    "--tokenizer-mode", "--tokenizer-path", "--tokenizer-revision", "--tool-call-parser",
    "--tool-parser", "--trust-remote-code", "--uvicorn-log-level", "--watchdog-timeout",
}  # fmt: skip
"""Flags of the interface, of loading and of logs: no step is longer or shorter by them."""
_OF_KERNELS: Final = {
    "-O", "--attention-backend", "--api-server-count", "--compilation-config",
    "--cuda-graph-bs", "--cuda-graph-max-bs", "--cudagraph-capture-sizes",
    "--disable-custom-all-reduce", "--distributed-executor-backend", "--enable-torch-compile",
    "--language-model-only", "--limit-mm-per-prompt", "--max-seq-len-to-capture",
    "--mm-processor-cache-gb", "--moe-backend", "--moe-runner-backend", "--optimization-level",
    "--sampling-backend", "--stream-interval", "--swap-space", "--tokenizer-pool-size",
    "--torch-compile-max-bs",
}  # fmt: skip
"""Flags that choose kernels or threads: step times here are those of the engine's usual choice."""
_AS_PUBLISHED: Final = {("--dtype", "auto"), ("--kv-cache-dtype", "auto"), ("--quantization", "")}
"""Values that say what the model's files say."""


class ServeCommand(NamedTuple):
    """A server's start command, taken apart."""

    model: str
    engine: Engine
    flags: tuple[tuple[str, str | None], ...]
    """Flags that can make steps longer or shorter, and their values; None: a switch."""
    unmodelled: tuple[str, ...]
    """Flags that choose kernels: no step here is longer or shorter by them."""

    @property
    def remark(self) -> str:
        """What a user is to know of the unmodelled flags; '' where there are none."""
        flags = ", ".join(self.unmodelled)
        return (
            f"step times are those of the engine's usual kernels, not of {flags}" if flags else ""
        )


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
    >>> read_serve_command("vllm serve Qwen/Qwen3-8B --port 80 -tp 2 --enforce-eager")
    ServeCommand(model='Qwen/Qwen3-8B', engine='vllm', flags=(('-tp', '2'), ('--enforce-eager', None)), unmodelled=())
    """
    for engine, program in _PROGRAMS:
        if place := re.search(rf"(?:^|\s){program}", text):
            return _taken_apart(text[place.end() :], engine)
    return None


def _taken_apart(text: str, engine: Engine) -> ServeCommand:
    """What stands after the program."""
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise SpecError(f"{text!r}: {error}", where="MODEL", allowed="a whole command") from error
    named = list(_flags(words))
    model = next((value for flag, value in reversed(named) if flag in _MODEL), None)
    model = words[0] if words and not words[0].startswith("-") else model
    if not model:
        raise SpecError(
            "the server's command names no model",
            where="MODEL",
            allowed=f"{'--model-path M' if engine == 'sglang' else 'M after the program'}",
        )
    passed_over = {*_MODEL, *_OF_NO_EFFECT, *_OF_KERNELS}
    flags = (
        (_OURS.get(flag, flag), None if flag in _OURS else value)
        for flag, value in named
        if flag not in passed_over
        and (flag, value) not in _AS_PUBLISHED
        and not (flag in _EXPERTS and value == "1")
    )
    unmodelled = (flag for flag, _ in named if flag in _OF_KERNELS)
    return ServeCommand(
        model, engine, tuple(dict.fromkeys(flags)), tuple(dict.fromkeys(unmodelled))
    )


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Flags with their values; a flag followed by another one is a switch."""
    for word, following in pairwise([*words, "-"]):
        if word.startswith("-") and not re.fullmatch(r"-[\d.]+", word):
            flag, equals, value = word.partition("=")
            flag = flag.replace("_", "-") if flag.startswith("--") else flag
            stands_alone = following.startswith("-") and not re.fullmatch(r"-[\d.]+", following)
            yield flag, value if equals else None if stands_alone else following

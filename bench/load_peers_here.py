"""How are other load testers installed here and asked for a given load, what did they report, and what did it cost?

Each lives in an environment of its own, outside the repository.
"""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inferometer.measure.load.bodies import FIRST_TOKEN_ID, N_TOKEN_IDS, WORDS

HERE = Path(__file__).parent
CPU_TORCH = "torch==2.13.0"
QUIET = {"DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}
NOT_TOLD = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "PYTHONDONTWRITEBYTECODE")
"""Whatever the first two say, be it 0, AIPerf 0.13.0 then takes no tokenizer from a folder; the
last has a tool compiled at each start."""
LIMIT_S = 300
VOCABULARY = FIRST_TOKEN_ID + N_TOKEN_IDS + len(WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A constant rate of completions with lengths of their own."""

    url: str
    model: str
    tokenizer: Path
    n_requests: int
    rate_per_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    install: tuple[str, ...]
    """pip's arguments."""
    command: Callable[[Path, Asked, Path], list[str]]
    """Of the environment's folder, what is asked, and where results go."""
    results: tuple[str, ...]
    """Files of the results, as ``inferometer import`` reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    cpu_s: float
    wall_s: float


def installed(peer, folder):
    """The environment of the peer, made where it is not there yet."""
    environment = folder / peer.install[-1].replace("==", "-")
    if not (environment / "ready").exists():
        print(f"installing {' '.join(peer.install)} into {environment}", flush=True)
        venv.create(environment, with_pip=True, clear=True)
        pip = [
            str(environment / "bin" / "python"),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "-q",
            *peer.install,
        ]
        subprocess.run(pip, check=True)
        (environment / "ready").touch()
    return environment


def cost_of(command, folder, *, prefix=()):
    """Run the command to its end; the cost of the whole tree of its processes.

    Its words are in ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result, log = folder / "cost.json", folder / "words.log"
    line = [
        "timeout",
        str(LIMIT_S),
        *prefix,
        sys.executable,
        str(HERE / "process_tree.py"),
        str(result),
        *command,
    ]
    environment = {
        name: value for name, value in os.environ.items() if name not in NOT_TOLD
    } | QUIET
    with log.open("wb") as words:
        subprocess.run(line, stdout=words, stderr=words, check=False, env=environment, cwd=folder)
    if not result.exists():
        raise SystemExit(
            f"{command[0]}: not done after {LIMIT_S} s\n{log.read_text(errors='replace')[-3000:]}"
        )
    cost = json.loads(result.read_text())
    if cost["code"] not in {0, 3}:  # 3: ours, INVALID
        raise SystemExit(
            f"{' '.join(command)}: exit {cost['code']}\n{log.read_text(errors='replace')[-3000:]}"
        )
    return Cost(cpu_s=cost["cpu_s"], wall_s=cost["wall_s"])


def write_tokenizer(folder):
    """A tokenizer in which each of our words is one token, as Hugging Face's libraries read it."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = [f"<{index}>" for index in range(VOCABULARY - len(WORDS))]
    vocabulary = {word: index for index, word in enumerate([*plain, *WORDS])}
    split = {"type": "WhitespaceSplit"}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<0>"}
    parts = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": None,
    }
    (folder / "tokenizer.json").write_text(
        json.dumps({**parts, "truncation": None, "padding": None, "model": model})
    )
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<0>",
        "eos_token": "<1>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama"})
    )  # transformers wants to know whose tokenizer it is
    return folder


def prompt_texts(n_prompts, n_tokens):
    """So many different prompts of so many of our words."""
    return [
        " ".join(
            WORDS[(7 * number + 3 * place + number * place) % len(WORDS)]
            for place in range(n_tokens)
        )
        for number in range(n_prompts)
    ]


def workload_text(asked):
    """The same load as a workload of ours."""
    return f"""n_requests = {asked.n_requests}
[arrivals]
kind = "open"
process = "constant"
rate_per_s = {asked.rate_per_s}
[[classes]]
name = "fixed"
prompt_tokens = {{ kind = "constant", value = {asked.prompt_tokens} }}
output_tokens = {{ kind = "constant", value = {asked.output_tokens} }}
"""


def our_command(asked, folder):
    """The same load, asked of ``inferometer load``: the record is in ``folder / "run"``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fixed.toml").write_text(workload_text(asked))
    command = [
        str(Path(sys.executable).with_name("inferometer")),
        "load",
        asked.url,
        "--model",
        asked.model,
        "--endpoint",
        "completions",
    ]
    return [
        *command,
        "--workload",
        str(folder / "fixed.toml"),
        "--out",
        str(folder / "run"),
        "--drain",
        "30s",
    ]


def _aiperf(environment, asked, folder):
    given = folder / "prompts.jsonl"
    texts = prompt_texts(asked.n_requests, asked.prompt_tokens)
    given.write_text(
        "".join(
            json.dumps({"text": text, "output_length": asked.output_tokens}) + "\n"
            for text in texts
        )
    )
    command = [
        str(environment / "bin" / "aiperf"),
        "profile",
        "-m",
        asked.model,
        "--url",
        asked.url,
        "--endpoint-type",
        "completions",
    ]
    command += [
        "--streaming",
        "--tokenizer",
        str(asked.tokenizer),
        "--input-file",
        str(given),
        "--custom-dataset-type",
        "single_turn",
    ]
    command += [
        "--request-count",
        str(asked.n_requests),
        "--request-rate",
        str(asked.rate_per_s),
        "--arrival-pattern",
        "constant",
    ]
    command += [
        "--extra-inputs",
        "ignore_eos:true",
        "--extra-inputs",
        f"max_tokens:{asked.output_tokens}",
        "--use-server-token-count",
    ]
    return [*command, "--artifact-dir", str(folder / "out"), "--ui-type", "none"]


def _guidellm(environment, asked, _folder):
    command = [
        str(environment / "bin" / "guidellm"),
        "run",
        "--backend",
        f"kind=openai_http,target={asked.url},model={asked.model}",
    ]
    command += [
        "--profile",
        f"kind=constant,rate={asked.rate_per_s}",
        "--constraint",
        f"kind=max_requests,count={asked.n_requests}",
    ]
    command += ["--tokenizer", f"kind=huggingface_auto,model={asked.tokenizer}"]
    command += [
        "--data",
        f"kind=synthetic_text,prompt_tokens={asked.prompt_tokens},output_tokens={asked.output_tokens}",
    ]
    return [*command, "--disable-console-interactive"]


AIPERF = Peer(
    name="AIPerf 0.13.0",
    install=("aiperf==0.13.0",),
    command=_aiperf,
    results=("out/profile_export_aiperf.json", "out/profile_export.jsonl"),
)
GUIDELLM = Peer(
    name="GuideLLM 0.8.1",
    install=(CPU_TORCH, "guidellm==0.8.1"),
    command=_guidellm,
    results=("benchmarks.json",),
)

__all__ = [
    "AIPERF",
    "GUIDELLM",
    "Asked",
    "Cost",
    "Peer",
    "cost_of",
    "installed",
    "our_command",
    "prompt_texts",
    "write_tokenizer",
]

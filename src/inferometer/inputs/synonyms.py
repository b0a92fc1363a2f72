"""Synonyms of options, number formats and devices among people and tools.

All options and all readers of other tools' tables and files use these names, so that a spelling
known to one reader is known to all.
"""

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import resources
from typing import Final

import msgspec

from inferometer.errors import SpecError

_FORMATS: Final = {
    "float32": ("fp32", "f32", "float", "single"),
    "float16": ("fp16", "f16", "half"),
    "bfloat16": ("bf16",),
    "float8": ("fp8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "e4m3", "e5m2", "w8a8_fp8", "mxfp8"),
    "int8": ("i8", "w8a8", "w8a16", "q8", "q8_0", "8bit", "smoothquant"),
    "int4": (
        "i4",
        "w4a16",
        "awq",
        "gptq",
        "awq_marlin",
        "gptq_marlin",
        "q4",
        "q4_0",
        "4bit",
        "nf4",
    ),
    "float4": ("fp4", "mxfp4", "nvfp4", "e2m1"),
    "none": ("no",),
}
"""Formats under the names of vLLM, SGLang, TensorRT-LLM, llama.cpp and published tables.

AWQ and GPTQ are methods of quantisation, nearly always to 4 bits; other widths are explicit.
"""

_FORMAT_OF: Final = {word: name for name, words in _FORMATS.items() for word in (name, *words)}

_ENGINES: Final = {"vllm": "vllm", "sgl": "sglang", "tensorrt": "trtllm", "trt": "trtllm"}
"""Beginnings of engines' names, in tables and on command lines."""

_SPECULATIONS: Final = {
    "ngram": ("prompt_lookup", "prompt_lookup_decoding", "ngram_gpu"),
    "eagle": ("eagle2", "eagle3"),
    "medusa": (),
    "redrafter": ("recurrent_drafter",),
    "mtp": ("nextn",),
}
"""Methods of speculation under the names of vLLM, SGLang and TensorRT-LLM."""
_METHOD_OF: Final = {
    re.sub(r"[^a-z0-9]", "", word): name
    for name, words in _SPECULATIONS.items()
    for word in (name, *words)
}

_DEVICE_WORDS: Final = {
    "mi300": "mi300x",
    "mi325": "mi325x",
    "mi355": "mi355x",
    "mi250": "mi250x",
    "mi350": "mi350x",
    "v5litepod": "v5e",
    "v5lite": "v5e",
    "trillium": "v6e",
    "v7": "v7x",
    "tpu7x": "v7x",
    "ironwood": "v7x",
    "mobile": "laptop",
    "notebook": "laptop",
    "trn1": "trainium1",
    "trn2": "trainium2",
    "trn3": "trainium3",
    "inf2": "inferentia2",
    "sapphire": "8480p",
    "granite": "6980p",
    "genoa": "9654",
    "turin": "9755",
    **{f"{number}g": f"{number}gb" for number in (16, 32, 40, 80)},
    "sxm4": "sxm",
    "sxm5": "sxm",
    **{f"{number}ada": f"{number}_ada" for number in (2000, 4000, 4500, 5000, 6000)},
}
"""Words with the same meaning; a driver's `SXM4` and a price list's `SXM` are one socket."""

_NO_NEWS: Final = {
    "nvidia", "amd", "intel", "google", "rapids", "geforce", "tesla", "instinct", "graphics", "gpu", "tpu",
    "generation", "oam", "hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "gddr6x", "gddr7", "r", "tm",
    "cpu", "apple", "processor", "of", "the", "per", "chip", "card", "socket", "desktop", "whole", "core", "edition",
}  # fmt: skip
"""Words of drivers' names that distinguish no devices of the catalogue."""

OTHER_CARDS: Final = frozenset(("ti", "super", "xt", "xtx", "d", "laptop", "maxq"))
"""Words of a card's name without which it names another card: RTX 4070 is not RTX 4070 Ti."""
GENERATIONS: Final = frozenset(("pro", "ada", "quadro"))
"""Words without which a bare number names cards of several years: RTX 4000, RTX 6000."""
LARGER_CHIPS: Final = frozenset(("pro", "max", "ultra"))
"""Words of Apple's chips without which the name means the smallest: M1 is not M1 Max."""
APPLE_CHIP: Final = re.compile(r"m\d")
NO_NAME: Final = re.compile(r"\d{1,2}|\d+gb|sxm\d?|pcie|nvl|[gr]tx|rx")
"""Words that many devices have: a number of cores or of a generation, memory, form, brand."""

_VARIANT: Final = re.compile(
    r"[-_:](?:instruct|(?<!kimi[-_]k2[-_])thinking|chat|it|hf|base|pt)(?=$|[-_:])"
)
"""Words for how a model was tuned; Kimi-K2-Thinking is stored in another format, too."""
_OF_WEIGHTS: Final = {"dynamic", "block", "bnb", "quantized", "preview", "v2"}
"""Words that stand beside a format in a checkpoint's name."""
_MOST_WORDS_OF_FORMAT: Final = 3
_MACS: Final = r"\bmacbook (?:pro|air)\b|\bmac (?:mini|studio|pro)\b|\bimac\b"
_LLAMA_CPP: Final = re.compile(
    r"[-_.:](?:ud[-_])?i?q([48])_(?:k(?:_[sml]|_xl)?|[01]|xs|nl)(?:\.gguf)?$", re.IGNORECASE
)
"""A format in the name of a llama.cpp file: about that number of bits per weight."""
_OTHER_BITS: Final = re.compile(r"(?:ud[-_])?(?:iq|q|tq)([12356])_\w+", re.IGNORECASE)
_SCALED: Final = re.compile(r"([0-9]*\.?[0-9]+)\s*([kKmM%])")
_POWER_OF_TEN: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?[eE][+]?[0-9]{1,2}")
_RATE: Final = re.compile(
    r"([0-9]*\.?[0-9]+\s*[kM]?)\s*(?:(?:req(?:uests?)?\s*)?(?:/|\s+per\s+)\s*"
    r"([0-9]*\.?[0-9]*)\s*(s|sec|second|m|min|minute|h|hour|d|day)s?|(rps|qps|hz)|(rpm|qpm))",
    re.IGNORECASE,
)
_TOKEN_RATE: Final = re.compile(
    r"([0-9]*\.?[0-9]+\s*[kMB]?)\s*(?:(?:tok(?:en)?s?\s*)(?:/|\s*per\s+)\s*"
    r"(s|sec|second|m|min|minute|h|hour|d|day)|tps|(tpm))",
    re.IGNORECASE,
)
_EXAMPLE_TOKENS: Final = 500
_OTHER_UNIT: Final = re.compile(r"[0-9]*\.?[0-9]+\s*(?!e[-+]?[0-9]+$)[a-zA-Z/%].*")
"""A number with a unit; 1e-3 has none."""
_S_PER: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_COUNTED: Final = re.compile(
    r"(?:(?P<before>\d{1,4})\s*[xX×*](?!eon)\s*|(?P<plain>\d{1,3})\s+(?!(?:gi?b|x)\b))"
    r"(?P<last>[a-zA-Z][^,]*|\d{3,4}\b[^,]*)"
    r"|(?P<first>[a-zA-Z][^,]*?)\s*(?<!\b[rg]t)(?<!\bm)(?<!\bma)[x×*:]\s*(?P<after>\d{1,4})",
    re.IGNORECASE,
)
"""The x of RTX 4090, GTX 1080, MX 450 and Max 1550 is not a multiplication sign, nor Xeon's."""
OTHER_COUNTS: Final = frozenset(
    ("pp", "pipeline_parallel_size", "data_parallel_size", "prefill_replicas", "prefill_tp")
)
"""Options by which more devices than ``tp`` times ``replicas`` are taken."""
_VLLM_NUMBER: Final = re.compile(r"max_\w+|num_blocks|num_gpu_blocks\w*")
_LENGTH: Final = re.compile(r"\w*(?:prompt|output|prefix|gen)\w*")

SAME: Final = {
    **dict.fromkeys(("--request-rate", "--qps", "--rps", "-r"), "--rate"),
    **dict.fromkeys(
        (
            "--num-prompts",
            "--num-requests",
            "--request-count",
            "--max-requests",
            "--n-requests",
            "-n",
        ),
        "--requests",
    ),
    **dict.fromkeys(
        ("--max-concurrency", "--users", "--num-users", "--streams", "-c"), "--concurrency"
    ),
    "--concurrency": "--batch",
    **dict.fromkeys(("--duration", "--benchmark-duration", "--max-seconds", "--time"), "--for"),
    **dict.fromkeys(("--random-seed", "--rand-seed"), "--seed"),
    **dict.fromkeys(("--served-model-name", "--model-name", "--model-names"), "--model"),
    **dict.fromkeys(
        ("--result-dir", "--artifact-dir", "--output-dir", "--output-path", "-o"), "--out"
    ),
    **dict.fromkeys(("--gpu", "--device", "--accelerator", "--device-name"), "--hardware"),
    "--hardware": "--gpus",
    "--gpus": "--hardware",
    **dict.fromkeys(("--num-gpus", "--n-gpus", "--gpu-count", "--num-devices"), "--total-gpus"),
    **dict.fromkeys(("--tp-size", "--tensor-parallel", "--tensor-parallel-size", "-tp"), "--tp"),
    **dict.fromkeys(
        ("--pp-size", "--pipeline-parallel", "--pipeline-parallel-size", "-pp"), "--pp"
    ),
    **dict.fromkeys(("--dp", "--dp-size", "--data-parallel", "-dp"), "--data-parallel-size"),
    **dict.fromkeys(("--max-batch-size", "--max-running-requests"), "--max-num-seqs"),
    **dict.fromkeys(("--max-num-tokens", "--chunked-prefill-size"), "--max-num-batched-tokens"),
    **dict.fromkeys(("--context-length", "--max-seq-len", "--max-context"), "--max-model-len"),
    **dict.fromkeys(("--ctx", "--ctx-size", "--num-ctx", "--context"), "--max-model-len"),
    **dict.fromkeys(("--quant", "--quantize", "-q"), "--quantization"),
    **dict.fromkeys(("--page-size", "--tokens-per-block"), "--block-size"),
    **dict.fromkeys(("--num-gpu-blocks-override", "--num-gpu-blocks"), "--num-blocks"),
    **dict.fromkeys(
        ("--mem-fraction-static", "--kv-cache-free-gpu-memory-fraction"), "--gpu-memory-utilization"
    ),
    **dict.fromkeys(("--kv-cache-type", "--kv-cache-quantization"), "--kv-cache-dtype"),
    **dict.fromkeys(("--batch-size", "--batches", "--batch-sizes", "-b", "-bs"), "--batch"),
    "--batch": "--batch-sizes",
    **dict.fromkeys(
        ("--repetitions", "--repeats", "--repeat", "--num-iters", "--iterations", "--runs"),
        "--reps",
    ),
    **dict.fromkeys(("--warmups", "--warm-up", "--num-iters-warmup"), "--warmup"),
    **dict.fromkeys(("--trace", "--trace-file", "--data", "--dataset-path"), "--workload"),
    **dict.fromkeys(("--input-file", "--dataset"), "--workload"),
    **dict.fromkeys(("--backend", "--endpoint-type", "--request-type"), "--endpoint"),
    **dict.fromkeys(("--streaming", "--is-streaming"), "--stream"),
    "--decode-replicas": "--replicas",
    "--speculative-config": "--speculative",
    "--engine": "--policy",
    "--policy": "--engine",
}
"""Flags with values written like ours; verbs for several devices have ``--gpus``."""

ARGUMENTS: Final = {
    **dict.fromkeys(("--model", "--model-id", "--model-path", "-m"), "model"),
    **dict.fromkeys(("--url", "--base-url", "--target", "--endpoint-url", "-u"), "url"),
}
"""Flags of other tools for what is a positional argument here."""

ALIKE: Final = {
    "--enable-expert-parallel": "--ep",
    **dict.fromkeys(("--base-url", "--url", "--target", "--host"), "url"),
    "--dataset-name": "--workload",
    **dict.fromkeys(("--goodput", "--sla"), "--slo"),
    **dict.fromkeys(("--extra-inputs", "--extra-body", "--extra-request-body"), "--body"),
    "--save-result": "--out",
    **dict.fromkeys(("--precision", "--weights", "--weight-dtype"), "--quantization"),
}
"""Flags with values written differently, or that are arguments here."""

ENDPOINTS: Final = {
    **dict.fromkeys(("/v1/chat/completions", "openai-chat", "chat_completions"), "chat"),
    **dict.fromkeys(
        ("/v1/completions", "openai", "vllm", "text_completions", "openai-completions"),
        "completions",
    ),
}
"""What the benchmarks of vLLM, GuideLLM and AIPerf call the two endpoints."""

FIRST_WORDS: Final = (
    *(("vllm", "serve"), ("vllm", "bench"), ("sglang", "serve"), ("trtllm-serve", "serve")),
    *(("python", "-m"), ("python3", "-m")),
)
"""First words of commands that start a server or a benchmark."""

ENGINE_SWITCHES: Final = (
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "async_scheduling",
    "disable_radix_cache",
    "disable_overlap_schedule",
    "enable_mixed_chunk",
    "enable_priority_scheduling",
)
ENGINE_SETTINGS: Final = {
    "--scheduling-policy": "policy",
    "--schedule-policy": "schedule_policy",
    "--num-speculative-tokens": "num_speculative_tokens",
    "--long-prefill-token-threshold": "long_prefill_token_threshold",
    "--max-prefill-tokens": "max_prefill_tokens",
    "--schedule-conservativeness": "schedule_conservativeness_ratio",
    "--capacity-scheduler-policy": "capacity_scheduler_policy",
}
"""Flags of an engine, whose settings have a name and a value in ``--set`` here."""

PROMPT: Final = (
    "--input",
    "--input-length",
    "--prompt-length",
    "--input-len",
    "--isl",
    "--random-input-len",
    "--random-input",
    "--synthetic-input-tokens-mean",
    "--input-tokens",
    "--prompt-tokens",
    "--prompt-len",
    "--input-sequence-length",
    *("--seq", "--seqlen", "--seq-len", "--seq-length"),
)
A_FILE_ELSEWHERE: Final = "--output"
"""Flags that mean a length beside a flag for prompts, and a file by themselves."""
OUTPUT: Final = (
    A_FILE_ELSEWHERE,
    "--output-len",
    "--output-length",
    "--max-tokens",
    "--max-new-tokens",
    "--osl",
    "--random-output-len",
    "--random-output",
    "--output-tokens-mean",
    "--output-tokens",
    "--output-sequence-length",
    "--gen",
    "--gen-len",
    "--gen-tokens",
    "--new-tokens",
)
"""Lengths in two flags, which are one option here: ``--workload 1024x256``."""

SWEPT: Final = (
    *PROMPT,
    *("--prompt", "--prompts", "--prompt-lens", "--prompt-lengths"),
    *("--seq-lens", "--seq-lengths", "--lengths", "-p"),
)
"""Names in a sweep, whose lengths are a list."""


USUAL_DEVICES: Final = (
    "h100_sxm",
    "h200_sxm",
    "a100_80gb_sxm",
    "a100_80gb_pcie",
    "a100_40gb_sxm",
    "v100_sxm2_32gb",
    "v100_sxm2_16gb",
    "p100_pcie_16gb",
    "rtx_a2000_12gb",
    "rtx_pro_6000_ws",
    "mi50_32gb",
)
"""The usual one of devices that share a name, the first of those here: `h100` is the SXM one."""


def number_format(text: str, *, allowed: Sequence[str], where: str) -> str:
    """The program's own name of a number format that is spelled `fp8`, `bf16` or `awq`.

    Raises
    ------
    SpecError
        An unknown format, or one that is not allowed here.

    Example
    -------
    >>> number_format("FP8", allowed=("bfloat16", "float8"), where="--dtype")
    'float8'
    """
    found = known_format(text)
    if found is not None and found in allowed:
        return found
    close = get_close_matches(
        text.lower(), [word for word, name in _FORMAT_OF.items() if name in allowed], n=1
    )
    other = _OTHER_BITS.fullmatch(text.strip())
    nearest = f"int{8 if other[1] > '4' else 4}" if other else _FORMAT_OF[close[0]] if close else ""
    raise SpecError(
        (
            f"{text!r} is not a number format"
            if found is None
            else f"the format {text!r} is not possible here"
        ),
        where=where,
        allowed=", ".join(allowed) + " (fp16, fp8, awq, Q4_K_M and the like are understood)",
        try_=f"{where} {nearest}" if nearest in allowed else None,
    )


def known_format(text: str) -> str | None:
    """Number format of this spelling, in any case; None where it is unknown.

    Example
    -------
    >>> known_format("NVFP4"), known_format("Q4_K_M"), known_format("fast")
    ('float4', 'int4', None)
    """
    plain = text.strip().lower().removeprefix("torch.")
    if quantised := _LLAMA_CPP.fullmatch(f"-{plain.replace('-', '_')}"):
        return f"int{quantised[1]}"
    return _FORMAT_OF.get(plain.replace("-", "_")) or _FORMAT_OF.get(plain.replace("-", ""))


def engine_name(text: str) -> str:
    """Name of the engine in this program; unknown names in lower case.

    Example
    -------
    >>> engine_name("TensorRT-LLM"), engine_name("vLLM 0.32"), engine_name("TGI")
    ('trtllm', 'vllm', 'tgi')
    """
    low = text.strip().lower()
    return next((ours for begin, ours in _ENGINES.items() if low.startswith(begin)), low)


def speculation_method(text: str) -> str | None:
    """Method of speculation of this spelling; None for others, such as a model's name.

    Example
    -------
    >>> speculation_method("EAGLE-3"), speculation_method("deepseek_mtp"), speculation_method("gpt2")
    ('eagle', 'mtp', None)
    """
    plain = re.sub(r"[^a-z0-9]", "", text.lower())
    return _METHOD_OF.get(plain) or ("mtp" if plain.endswith("mtp") else None)


def plain_number(text: str, name: str) -> str:
    """A number such as `8k`, `1e3`, `5rps`, `300/min`, `1M/8h` or `90%` in plain digits.

    Other text is returned unchanged. For prompts and outputs `k` is 1,024, as in the scenario
    `8k1k`; for vLLM's own options `k` is 1,000 and `K` 1,024, as in vLLM; otherwise `k` is 1,000.

    Example
    -------
    >>> [plain_number("2k", name) for name in ("prompt", "max_model_len", "requests")]
    ['2048', '2000', '2000']
    >>> plain_number("32K", "max_model_len"), plain_number("300/min", "rate"), plain_number("x", "tp")
    ('32768', '5', 'x')
    >>> plain_number("2.16M/day", "rate"), plain_number("1M/8h", "rate"), plain_number("1e12", "n")
    ('25', '34.7222222222', '1000000000000')

    Raises
    ------
    SpecError
        A rate of requests in a wrong unit, such as tokens per second.
    """
    is_rate = name.startswith("rate")
    per_s = _RATE.fullmatch(text.strip()) if is_rate else None
    if per_s is not None:
        unit = "m" if per_s[5] else (per_s[3] or "s")[0].lower()
        n_units = float(per_s[2] or 1) or 1.0
        return _digits(float(plain_number(per_s[1], "requests")) / n_units / _S_PER[unit])
    if _POWER_OF_TEN.fullmatch(text.strip()):
        return _digits(float(text))
    scaled = _SCALED.fullmatch(text.strip())
    if scaled is None or (is_rate and scaled[2] == "%"):
        if is_rate and _OTHER_UNIT.fullmatch(text.strip()):
            raise _no_rate(text, where=f"--{name}")
        return text
    number, unit = scaled.groups()
    if unit == "%":
        return _digits(float(number) / 100)
    is_binary = bool(_LENGTH.fullmatch(name)) or (
        unit in "KM" and _VLLM_NUMBER.fullmatch(name) is not None
    )
    thousand = 1024 if is_binary else 1000
    return _digits(float(number) * thousand ** (1 if unit in "kK" else 2))


def _no_rate(text: str, where: str) -> SpecError:
    """The error for a rate in tokens per second, which is not a rate of requests."""
    tokens = _TOKEN_RATE.fullmatch(text.strip())
    per_s = None
    if tokens is not None:
        billions = 1e9 if tokens[1].upper().endswith("B") else 1.0
        unit = "m" if tokens[3] else (tokens[2] or "s")[0].lower()
        number = float(plain_number(tokens[1].rstrip("bB "), "tokens")) * billions
        per_s = number / _S_PER[unit]
    return SpecError(
        f"{text!r} is not a rate of requests",
        where=where,
        allowed="requests per second as a number, or as 5/s, 300/min, 2k/hour, 1M/day, 5rps or 300rpm",
        try_=(
            None
            if per_s is None
            else f"{where} {per_s / _EXAMPLE_TOKENS:.4g}, where a request has {_EXAMPLE_TOKENS} of these"
            f" tokens: {per_s:.6g} tokens/s / {_EXAMPLE_TOKENS}"
        ),
    )


def _digits(number: float) -> str:
    """Twelve digits; whole numbers without an exponent, as integer flags require."""
    rounded = float(f"{number:.12g}")
    return f"{rounded:.0f}" if rounded.is_integer() else f"{rounded:.12g}"


def counted_devices(text: str) -> tuple[int, str] | None:
    """Number and device in text such as `8xH100` or `8 H100`, or in a cloud's instance type.

    None for text without a number of devices.

    Example
    -------
    >>> counted_devices("8xH100"), counted_devices("A100-80GB:4"), counted_devices("rtx4090")
    ((8, 'H100'), (4, 'A100-80GB'), None)
    >>> counted_devices("p5.48xlarge"), counted_devices("Standard_NC24ads_A100_v4")
    ((8, 'h100_sxm'), (1, 'a100_80gb_pcie'))
    """
    rented = re.sub(r"[_\s]", "-", text.strip().lower())
    rented = rented.removeprefix("ml.").removeprefix("standard-")
    if rented in instance_types():
        return instance_types()[rented]
    match = _COUNTED.fullmatch(text.strip())
    if match is None:
        return None
    n = match["before"] or match["plain"] or match["after"]
    return int(n), match["last"] or match["first"]


@cache
def instance_types() -> dict[str, tuple[int, str]]:
    """Instance types of clouds, the number of devices in them and the device."""
    kind = dict[str, dict[str, tuple[str, ...]]]
    devices = msgspec.toml.decode(_data_file("instance_types.toml"), type=kind)
    return {
        name: (int(n), device)
        for device, numbers in devices.items()
        for n, names in numbers.items()
        for name in names
    }


def device_words(name: str) -> frozenset[str]:
    """The distinctive words of a device's name, without order, case and punctuation.

    Example
    -------
    >>> sorted(device_words("NVIDIA H100 80GB HBM3")), sorted(device_words("a100-sxm4-80g"))
    (['80gb', 'h100'], ['80gb', 'a100', 'sxm'])
    """
    plain = re.sub(rf"\((?:r|tm)\)|\d+-core processor|{_MACS}", " ", name.lower())
    plain = re.sub(r"\b(rtx|pro)(?=\d)", r"\1 ", plain)
    plain = re.sub(r"(?<=\d)(?=(?:sxm|pcie|nvl)\d?\b)", " ", plain)
    plain = re.sub(r"(?<=\d{4})(?=(?:ti|super|xtx?|d|laptop)(?![a-z0-9]))", " ", plain)
    plain = re.sub(r"(?<=nano)[-_ ]super\b", "", plain)  # a mode of the Jetson, not another card
    plain = re.sub(r"max[-_ ]q\b", "maxq", plain)
    words = [_DEVICE_WORDS.get(word, word) for word in re.split(r"[^a-z0-9.+]+", plain)]
    return frozenset(
        part for word in words for part in word.split("_") if part and part not in _NO_NEWS
    )


def named_weights(name: str) -> tuple[str, str] | None:
    """A model's name without its weight format, and the format; None without one.

    Example
    -------
    >>> named_weights("Qwen/Qwen3-32B-FP8"), named_weights("Qwen2.5-7B-Instruct-GPTQ-Int4")
    (('Qwen/Qwen3-32B', 'float8'), ('Qwen2.5-7B-Instruct', 'int4'))
    >>> named_weights("Llama-3.1-8B-quantized.w8a8"), named_weights("qwen3-32b")
    (('Llama-3.1-8B', 'int8'), None)
    """
    quantised = _LLAMA_CPP.search(name)
    base, found = name, None
    if quantised is not None:
        base, found = name[: quantised.start()], f"int{quantised[1]}"
    for _ in range(_MOST_WORDS_OF_FORMAT):
        before, _, word = re.sub(r"[_. ]", "-", base).rpartition("-")
        weights = known_format(word)
        if not before or (weights is None and word.lower() not in _OF_WEIGHTS):
            break
        base, found = base[: len(before)], found or weights
    return None if found is None else (base, found)


@cache
def _model_names() -> dict[str, str]:
    """Other names of models: ollama's tags, and checkpoints tuned to think whose shapes are the same."""
    return msgspec.toml.decode(_data_file("model_names.toml"), type=dict[str, str])


def _data_file(name: str) -> bytes:
    return (resources.files("inferometer.inputs") / "catalog_data" / name).read_bytes()


@lru_cache(2**12)  # to find a model takes the forms of the whole catalogue
def model_form(name: str) -> str:
    """Normal form of a model's name, equal for all its spellings.

    Without owner, dashes, case and the variant of tuning.

    Example
    -------
    >>> model_form("meta-llama/Meta-Llama-3.1-8B-Instruct"), model_form("llama3.1:8b")
    ('llama3.18b', 'llama3.18b')
    """
    plain = _VARIANT.sub("", name.strip().lower().rpartition("/")[2])
    form = re.sub(r"[-_: ]", "", plain).removeprefix("meta").removeprefix("nvidia")
    return _model_names().get(form, form)


def our_flag(flag: str, own: Collection[str]) -> str:
    """The verb's flag of the same meaning; the flag itself if the verb has none."""
    lengths = "--seq" if flag in SWEPT else "--gen-tokens" if flag in OUTPUT else flag
    if flag not in own and lengths in own:
        return lengths
    ours = flag if flag in own else SAME.get(flag, flag)
    ours = ours if ours in own else SAME.get(ours, ours)
    return ours if ours in own else flag

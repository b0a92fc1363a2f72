"""Which models and devices do the words of a text name: `llama 70b`, `mac`, `bge-m3`?"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

_VERSION: Final = re.compile(r"\d+(?:\.\d+)?")
_OF_TUNING: Final = frozenset(("instruct", "chat", "it", "hf", "base", "model"))
"""Words of a model's name that change nothing in its shape."""
_MAKERS: Final = {
    **dict.fromkeys(("mac", "macs", "macbook", "mac studio", "mac mini"), "apple"),
    **dict.fromkeys(("tpu", "tpus"), "google"),
    **dict.fromkeys(("radeon", "instinct", "rocm"), "amd"),
    **dict.fromkeys(("geforce", "cuda"), "nvidia"),
}
"""What people call a maker's devices."""
_NO_DECODERS: Final = (
    (
        "embedding models and rerankers generate no tokens",
        r"bge|gte|e5|embed(?:ding)?s?|embeddinggemma|rerank(?:er)?|minilm|mpnet|sbert|colbert|\w*bert",
    ),
    ("models of speech are not modelled", r"whisper|parakeet|canary|wav2vec2?|kokoro|tts"),
    ("models of images are not modelled", r"clip|siglip2?|flux|sdxl|diffusion|vit|dinov2"),
)
"""What is not answered for, and words of such models' names."""


def models_with_words(text: str, ids: Iterable[str]) -> tuple[str, ...]:
    """Ids with all words of the text: those that begin with its first word, then the newest.

    Example
    -------
    >>> models_with_words("Llama 70B", ["llama-3-70b", "llama-3.1-70b", "llama-3.1-8b"])
    ('llama-3.1-70b', 'llama-3-70b')
    """
    wanted = _words(text.rpartition("/")[2])
    found = [one for one in ids if wanted and {*wanted} <= {*_words(one)}]

    def rank(model_id: str) -> tuple[bool, float, int]:
        versions = (float(word) for word in _words(model_id) if _VERSION.fullmatch(word))
        return not model_id.startswith(wanted[0]), -next(versions, 0.0), len(model_id)

    return tuple(sorted(found, key=rank))


def devices_with_text(text: str, named: Iterable[tuple[str, Sequence[str]]]) -> tuple[str, ...]:
    """Ids of the devices with the text in a name or the maker. ``named``: id, names.

    Example
    -------
    >>> devices_with_text("Mac", [("apple_m1_8", ["Apple M1"]), ("l4", ["NVIDIA L4"])])
    ('apple_m1_8',)
    """
    plain = text.strip().lower()
    wanted = _MAKERS.get(plain, plain)
    return tuple(
        one for one, names in named if wanted and wanted in " ".join((one, *names)).lower()
    )


def no_decoder(name: str) -> str | None:
    """Why a model of this name is not answered for; None for a name of a language model.

    Example
    -------
    >>> no_decoder("BAAI/bge-reranker-v2-m3"), no_decoder("qwen3-8b")
    ('embedding models and rerankers generate no tokens', None)
    """
    parts = re.split(r"[^a-z0-9]+", name.rpartition("/")[2].lower())
    return next(
        (why for why, words in _NO_DECODERS if any(re.fullmatch(words, part) for part in parts)),
        None,
    )


def _words(name: str) -> list[str]:
    """A name in words, versions and sizes: qwen2.5-7b is `qwen`, `2.5` and `7b`."""
    found = re.findall(r"[a-z]+|\d+(?:\.\d+)*[bm]?(?![a-z])|\d", name.lower())
    return [word for word in found if word not in _OF_TUNING]

"""How well does a model in transformers read a text, after its weights or its cache lost bits?

Weights are rounded and unpacked again, so that the arithmetic is that of --dtype: what is measured
is what the format loses, not how a kernel adds up.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear
from transformers import AutoTokenizer, DynamicCache

from inferometer.errors import SpecError
from inferometer.inputs.types import CacheFormat, LossyChange
from inferometer.measure.engines.protocol import ModelReference, Score, Scored
from inferometer.measure.engines.transformers_loading import HfModel, folder_and_gguf

_E4M3_MAX = 448.0
"""The largest finite number of float8 E4M3."""


def read_text(model: HfModel, reference: ModelReference, task: Score) -> Scored:
    """Change the model, read the windows of the text, and continue the first of them.

    Raises
    ------
    SpecError
        The model has no tokenizer, or the text is shorter than a window.
    """
    windows = _windows(reference, task)
    with torch.inference_mode(), changed_weights(model, task.change):
        nll, top_ids = list[Tensor](), list[Tensor]()
        for batch in windows.split(task.n_at_once):
            read = _read(model, batch, task.change.kv_cache)
            nll.append(read[0])
            top_ids.append(read[1])
        prompts = windows[: task.n_generated, : task.prompt_tokens]
        generated = [
            _continue(model, batch, task.gen_tokens, task.change.kv_cache)
            for batch in prompts.split(max(task.n_at_once, 1) * 4)
        ]
    return Scored(
        token_ids=_rows(windows),
        nll=_rows(torch.cat(nll).double()),
        top_ids=_rows(torch.cat(top_ids)),
        generated_ids=_rows(torch.cat(generated)),
    )


def _rows(values: Tensor) -> Any:  # noqa: ANN401 -- of int or float
    return tuple(tuple(row) for row in values.tolist())


def _windows(reference: ModelReference, task: Score) -> Tensor:
    """The text's tokens in windows of one length: (windows, tokens)."""
    if reference.location is None:
        raise SpecError(
            "quality cannot be measured with random weights",
            where="MODEL",
            allowed="a folder or a GGUF file with weights and a tokenizer",
        )
    folder, gguf = folder_and_gguf(reference)
    tokenizer = _tokenizer(folder, gguf.get("gguf_file"))
    ids = tokenizer(task.text, add_special_tokens=False, return_tensors="pt").input_ids[0]
    n_windows = min(task.n_windows, len(ids) // task.window_tokens)
    if n_windows < 1:
        raise SpecError(
            f"the text has {len(ids)} tokens",
            where="--text, --window",
            allowed=f"at least one window of {task.window_tokens} tokens",
            try_="a smaller --window, or a longer text",
        )
    windows: Tensor = ids[: n_windows * task.window_tokens].reshape(n_windows, -1)
    return windows


@lru_cache(maxsize=1)  # a GGUF file's takes seconds, and every change reads the same text
def _tokenizer(folder: str, gguf_file: str | None) -> Any:  # noqa: ANN401 -- transformers' own
    gguf = {} if gguf_file is None else {"gguf_file": gguf_file}
    try:
        return AutoTokenizer.from_pretrained(folder, **gguf)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise SpecError(
            f"the model has no tokenizer that transformers can read: {str(error).splitlines()[0]}",
            where=folder if gguf_file is None else str(Path(folder) / gguf_file),
            allowed="a folder with tokenizer.json, or a GGUF file",
        ) from error


def _read(model: HfModel, ids: Tensor, kv_format: CacheFormat | None) -> tuple[Tensor, Tensor]:
    """-log p of each token after the first, and the most probable token there: (windows, tokens - 1)."""
    ids = ids.to(next(iter(model.parameters())).device)
    logits = model(input_ids=ids, past_key_values=_cache(model, kv_format), use_cache=True).logits
    logits = logits[:, :-1].float()
    given = logits.gather(-1, ids[:, 1:, None])[..., 0]
    return (logits.logsumexp(-1) - given).cpu(), logits.argmax(-1).cpu()


def _continue(
    model: HfModel, ids: Tensor, gen_tokens: int, kv_format: CacheFormat | None
) -> Tensor:
    """The most probable continuation, token by token: (sequences, gen_tokens)."""
    ids = ids.to(next(iter(model.parameters())).device)
    cache, tokens = _cache(model, kv_format), list[Tensor]()
    for _ in range(gen_tokens):
        logits = model(
            input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1
        ).logits
        ids = logits[:, -1:].argmax(-1)
        tokens.append(ids.cpu())
    return torch.cat(tokens, dim=1) if tokens else torch.empty((len(ids), 0), dtype=torch.long)


@contextmanager
def changed_weights(model: HfModel, change: LossyChange) -> Generator[None]:
    """Round and prune the weights of the linear layers, but for the last one, until the end of the block.

    What they were is held in the host's memory meanwhile: loading again would take longer.
    """
    head = model.get_output_embeddings()
    before = list[tuple[Linear, Tensor]]()
    try:
        for module in model.modules():
            is_changed = change.is_sparse or change.weights is not None
            if is_changed and isinstance(module, Linear) and module is not head:
                before.append((module, module.weight.data.to("cpu", copy=True)))
                module.weight.data.copy_(_lossy(module.weight.data.float(), change))
        yield
    finally:
        for module, weight in before:
            module.weight.data.copy_(weight)


def _lossy(weight: Tensor, change: LossyChange) -> Tensor:
    weight = pruned_2_of_4(weight) if change.is_sparse else weight
    return weight if change.weights is None else _rounded_weight(weight, change)


def _rounded_weight(weight: Tensor, change: LossyChange) -> Tensor:
    if change.weights == "float8":
        return rounded_to_float8(weight, weight.abs().amax(-1, keepdim=True) / _E4M3_MAX)
    if change.weights == "int8":
        return rounded_to_integers(weight, bits=8)
    columns = weight.shape[-1]
    group = change.group_size if columns % change.group_size == 0 else columns
    return rounded_to_integers(weight.reshape(-1, group), bits=4).reshape(weight.shape)


def rounded_to_integers(values: Tensor, *, bits: int) -> Tensor:
    """Values rounded to nearest on a symmetric grid of this number of bits, with a scale for each row."""
    most = 2 ** (bits - 1) - 1
    scale = values.abs().amax(-1, keepdim=True).clamp_min(1e-12) / most
    return (values / scale).round().clamp(-most, most) * scale


def rounded_to_float8(values: Tensor, scale: Tensor | float) -> Tensor:
    """Values rounded to float8 E4M3 after division by the scale; saturating."""
    safe = scale.clamp_min(1e-12) if isinstance(scale, Tensor) else scale
    narrow = (values / safe).clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
    return narrow.to(values.dtype) * safe


def pruned_2_of_4(weight: Tensor) -> Tensor:
    """The weights with the two smallest of each four neighbours of a row at zero.

    Rows whose length is no multiple of four stay as they are: no kernel takes them.
    """
    if weight.shape[-1] % 4:
        return weight
    groups = weight.reshape(-1, 4)
    smallest = groups.abs().argsort(dim=-1)[:, :2]
    return groups.scatter(-1, smallest, 0.0).reshape(weight.shape)


def _cache(model: HfModel, kv_format: CacheFormat | None) -> Any:  # noqa: ANN401 -- transformers' cache
    """An empty KV cache; keys and values are rounded as they enter it."""
    cache: Any = DynamicCache(config=model.config)
    if kv_format is None:
        return cache

    def rounded(values: Tensor) -> Tensor:
        if kv_format == "int8":
            return rounded_to_integers(values.float(), bits=8).to(values.dtype)
        return rounded_to_float8(values, 1.0)

    def rounding(update: Any) -> Any:  # noqa: ANN401 -- a method of transformers
        def with_rounding(keys: Tensor, values: Tensor, *more: Any, **named: Any) -> Any:  # noqa: ANN401
            return update(rounded(keys), rounded(values), *more, **named)

        return with_rounding

    for layer in cache.layers:
        layer.update = rounding(layer.update)
    return cache

"""What does a lossy option cost in quality: fewer bits of weights or KV cache, 2:4 sparsity, another checkpoint?"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from inferometer import suggestions
from inferometer.api.answer import Answer
from inferometer.api.measured import reference_to
from inferometer.api.progress import PartsDone, talk
from inferometer.api.question import Option, option
from inferometer.errors import EXIT_ANSWERED, EXIT_SLO_MISSED, EXIT_UNDECIDED, SpecError
from inferometer.inputs import catalog, foreign_bytes, resolve
from inferometer.inputs.types import (
    DTYPE_BITS,
    CacheFormat,
    DType,
    EngineSpec,
    LossyChange,
    LossyFormat,
)
from inferometer.measure.engines import openvino_spec, protocol
from inferometer.measure.engines.remote import RemoteEngine, WorkerSettings
from inferometer.measure.environments import find_environment
from inferometer.perfmodel import scenario, whatif
from inferometer.records.quality import (
    QualityDifference,
    QualityVerdict,
    Reading,
    difference,
    judge_quality,
    worst_verdict,
)
from inferometer.stats.estimate import Estimate

WEIGHTS: Final = ("int8", "int4", "float8")
CACHES: Final = ("int8", "float8")
_PLAIN_BITS: Final = 16
_OPTICKS: Final = Path(__file__).parents[1] / "measure" / "texts" / "opticks.txt"
_TEXT: Final = foreign_bytes.Door(noun="text", allowed="a file of UTF-8 text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The changes to compare with a model, and the text."""

    model: Annotated[
        str,
        Option(
            "Folder, GGUF file or Hugging Face id here, with weights and tokenizer: the reference.",
            heading="Model",
            is_argument=True,
        ),
    ]
    other: str | None = option(
        None,
        "Another checkpoint of the same tokenizer, compared with it.",
        "Model",
        is_argument=True,
    )
    quantization: tuple[str, ...] = option(
        (),
        "Weights rounded to nearest: int8, int4 or fp8; repeatable. With --engine openvino, by it.",
        "Model",
        is_common=True,
        formats=WEIGHTS,
    )
    group_size: int = option(128, "Weights that share a scale in int4.", "Model", least=1)
    kv_dtype: tuple[str, ...] = option(
        (),
        "KV cache in int8 or fp8; repeatable.",
        "Model",
        is_common=True,
        formats=CACHES,
        flags=("--kv-dtype", "--kv-cache-dtype"),
    )
    sparsity: bool = option(False, "Weights pruned 2:4 by size.", "Model", is_common=True)
    dtype: str = option(
        "float32",
        "Format of the arithmetic of both.",
        "Model",
        is_common=True,
        formats=("float32", "bfloat16", "float16"),
    )
    other_dtype: tuple[str, ...] = option(
        (),
        "The same weights with arithmetic in another format; repeatable.",
        "Model",
        formats=("float32", "bfloat16", "float16"),
    )
    device: str = option("cpu", "Device that runs both.", "Hardware", choices=("cpu", "cuda"))
    engine: Literal["transformers", "vllm", "openvino"] = option(
        "transformers",
        "Engine that runs OTHER, or MODEL again, in the formats it offers (--kv-dtype too); the"
        " reference runs in transformers.",
        "Engine",
        is_common=True,
    )
    text: Path | None = option(
        None,
        "A text of your own traffic. [64,000 characters of Newton's Opticks, 1730]",
        "Workload",
        is_common=True,
    )
    tokens: int = option(8192, "Tokens to read.", "Workload", is_common=True, least=128)
    window: int = option(512, "Tokens that are read in one piece.", "Workload", least=16)
    generated: int = option(8, "Texts to continue greedily.", "Workload", least=1)
    gen_tokens: int = option(
        128, "Tokens of each continuation.", "Workload", is_common=True, least=1
    )
    margin: float = option(
        0.01, "Perplexity may rise by this share.", "Limits", is_common=True, least=0, is_open=True
    )
    hardware: str | None = option(
        None,
        "Device of the catalogue for which the gain is predicted.",
        "Hardware",
        is_common=True,
        metavar="ID",
    )
    given: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRow:
    """One change: its cost in quality, and its gain."""

    name: str
    verdict: QualityVerdict
    difference: QualityDifference
    tpot_gain_ratio: Estimate | None
    """Predicted, at batch 1; None without --hardware or where the format has no kernel there."""
    weight_bytes_saved_fraction: float | None


_EXIT_CODES: Final = {
    "not worse": EXIT_ANSWERED,
    "worse": EXIT_SLO_MISSED,
    "undecided": EXIT_UNDECIDED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityAnswer(Answer):
    """Each change against the reference; and the difference of two readings of one model."""

    table = "changes"

    model_id: str
    text: str
    """Source of the text."""
    n_tokens: int
    window_tokens: int
    margin_fraction: float
    perplexity: float
    """Perplexity of the reference."""
    noise: QualityDifference
    """The reference against itself, computed in batches of another size (A/A)."""
    changes: tuple[QualityRow, ...]
    cautions: tuple[tuple[str, str], ...]
    """Cautions, each with a remedy."""

    @property
    def verdict(self) -> QualityVerdict:
        """Verdict of the worst change."""
        return worst_verdict(row.verdict for row in self.changes)

    @property
    def exit_code(self) -> int:
        """0 not worse, 10 worse, 11 undecided."""
        return _EXIT_CODES[self.verdict]


TokenRows: TypeAlias = tuple[tuple[int, ...], ...]


class _Task(NamedTuple):
    name: str
    model: resolve.ResolvedModel
    change: LossyChange
    engine: EngineSpec
    n_at_once: int = 1


def quality(question: Quality) -> QualityAnswer:
    """Perplexity, top-1 and greedy agreement of changed models against their reference.

    Raises
    ------
    SpecError
        No change is named, or the text is too short.
    MeasureError, EngineError
        The engine is not there, or failed.
    """
    model = resolve.resolve_model(question.model, load_format="auto", can_be_dummy=False)
    window_tokens = _window(question)
    text, text_name = _text(question.text)
    tasks = list(_tasks(question, model))
    readings = list[Reading]()
    ids: tuple[tuple[int, ...], ...] = ()
    for n_done, (task, scored) in enumerate(_readings(question, tasks, text)):
        if ids and scored.token_ids != ids:
            raise SpecError(
                f"{task.name} cuts the text into other tokens than {question.model}",
                where="MODEL OTHER",
                allowed="two checkpoints of one tokenizer",
            )
        ids = scored.token_ids
        readings.append(_reading(scored))
        talk(PartsDone("readings", n_done + 1, len(tasks)))
    reference, again, *changed = readings
    return QualityAnswer(
        model_id=model.spec.model_id,
        text=text_name,
        n_tokens=sum(len(row) for row in ids),
        window_tokens=window_tokens,
        margin_fraction=question.margin,
        perplexity=reference.perplexity,
        noise=difference(again, reference),
        changes=tuple(
            _row(question, task, model, difference(reading, reference))
            for task, reading in zip(tasks[2:], changed, strict=True)
        ),
        cautions=tuple(_cautions(question, model)),
    )


def _text(path: Path | None) -> tuple[str, str]:
    if path is None:
        return _TEXT.text_of(_OPTICKS), "Newton's Opticks (1730)"
    return _TEXT.text_of(path), str(path)


def _tasks(question: Quality, model: resolve.ResolvedModel) -> Iterator[_Task]:
    """The reference twice, then each change."""
    plain = _engine(question)
    yield _Task("the reference", model, LossyChange(), plain)
    # other batches add up in another order: what differs then is noise
    yield _Task("the reference again", model, LossyChange(), plain, n_at_once=3)
    other = (
        None
        if question.other is None
        else resolve.resolve_model(question.other, load_format="auto", can_be_dummy=False)
    )
    if question.engine != "transformers":
        yield from _of_engine(question, other or model)
        return
    n_changes = 0
    for change, name in _changes(question):
        n_changes += 1
        yield _Task(name, model, change, plain)
    if other is not None:
        n_changes += 1
        yield _Task(question.other or "", other, LossyChange(), plain)
    for dtype in dict.fromkeys(question.other_dtype):
        n_changes += 1
        engine = replace(plain, dtype=cast("DType", dtype))
        yield _Task(f"{dtype} arithmetic", model, LossyChange(), engine)
    if n_changes == 0:
        raise SpecError(
            "nothing is changed",
            where="quality",
            allowed="--quantization, --kv-dtype, --sparsity, --other-dtype or another checkpoint",
            try_="--quantization int8",
        )


def _of_engine(question: Quality, model: resolve.ResolvedModel) -> Iterator[_Task]:
    """The model in the named engine: unchanged, with fewer bits, and with each KV format."""
    _check_of_engine(question, model)
    named = question.other or "the same weights"
    plain = replace(_engine(question), engine=question.engine)
    for cache in (None, *dict.fromkeys(question.kv_dtype)):
        engine = _of_openvino(replace(plain, kv_cache_dtype=cast("DType | None", cache)))
        words = "" if cache is None else f", {cache} KV cache"
        yield _Task(f"{named} in {question.engine}{words}", model, LossyChange(), engine)
    for weights in dict.fromkeys(question.quantization):
        engine = _of_openvino(replace(plain, quantization=cast("DType", weights)))
        yield _Task(f"{weights} weights in {question.engine}", model, LossyChange(), engine)


def _of_openvino(engine: EngineSpec) -> EngineSpec:
    """The engine; formats that OpenVINO does not have are refused before the reference is read."""
    if engine.engine == "openvino":
        openvino_spec.check_spec(engine)
    return engine


def _check_of_engine(question: Quality, model: resolve.ResolvedModel) -> None:
    """Refuse changes that the engine does not support, before the reference is read."""
    packs = question.engine == "openvino"
    refused = {
        "--quantization": bool(question.quantization) and not packs,
        "--group-size": "group_size" in question.given,
        "--sparsity": question.sparsity,
        "--other-dtype": bool(question.other_dtype),
    }
    stated = next((flag for flag, is_stated in refused.items() if is_stated), None)
    if stated is not None:
        raise SpecError(
            f"{question.engine} does not do {stated} itself",
            where=f"--engine, {stated}",
            allowed="a checkpoint in its format as OTHER, and --kv-dtype"
            + (", and --quantization int8 or int4 (in groups of 64)" if packs else ""),
            try_="the same command without --engine, which changes them in transformers",
        )
    stored = model.spec.checkpoint_dtype
    is_packed = model.kind == "gguf" and stored is not None and DTYPE_BITS[stored] < _PLAIN_BITS
    if question.quantization and is_packed:
        raise SpecError(
            f"the weights of {model.spec.model_id} are stored in {stored}",
            where=f"--quantization {question.quantization[0]}",
            allowed=f"weights in {_PLAIN_BITS} bits or more: {question.engine} packs no others",
            try_="the same command without --quantization, which reads them as they are",
        )


def _changes(question: Quality) -> Iterator[tuple[LossyChange, str]]:
    for weights in dict.fromkeys(question.quantization):
        change = LossyChange(weights=cast("LossyFormat", weights), group_size=question.group_size)
        groups = f", groups of {question.group_size}" if weights == "int4" else ""
        yield change, f"{weights} weights{groups}"
    for cache in dict.fromkeys(question.kv_dtype):
        yield LossyChange(kv_cache=cast("CacheFormat", cache)), f"{cache} KV cache"
    if question.sparsity:
        yield LossyChange(is_sparse=True), "2:4 sparse weights"


def _engine(question: Quality) -> EngineSpec:
    return EngineSpec(
        engine="transformers",
        dtype=cast("DType", question.dtype),
        device=cast('Literal["cpu", "cuda"]', question.device),
    )


def _readings(
    question: Quality, tasks: list[_Task], text: str
) -> Iterator[tuple[_Task, protocol.Scored]]:
    """Readings of the text by each model; a checkpoint is loaded once in each engine.

    Other engines than the reference's get its tokens.
    """
    token_ids: TokenRows = ()
    for of_model in _grouped(tasks):
        first = of_model[0]
        is_plain = first.engine.engine == "transformers"
        python = None if is_plain else str(find_environment(first.engine.engine).python)
        settings = None if python is None else WorkerSettings(python=python)
        with RemoteEngine(first.engine, reference_to(first.model), settings) as engine:
            for task in of_model:
                cut = () if is_plain else token_ids
                scored = engine.score(_score(question, task, text, cut))
                token_ids = token_ids or scored.token_ids
                yield task, scored


def _grouped(tasks: list[_Task]) -> list[list[_Task]]:
    groups = dict[tuple[str, EngineSpec], list[_Task]]()
    for task in tasks:
        groups.setdefault((str(task.model.path), task.engine), []).append(task)
    return list(groups.values())


def _window(question: Quality) -> int:
    """Tokens of a window: no more than are read in all."""
    if question.tokens < question.window and "window" in question.given:
        raise SpecError(
            f"windows of {question.window} tokens, and {question.tokens} tokens to read",
            where="--window, --tokens",
            allowed="one window or more",
            try_=suggestions.flags("--window", question.tokens),
        )
    return min(question.window, question.tokens)


def _score(question: Quality, task: _Task, text: str, token_ids: TokenRows) -> protocol.Score:
    return protocol.Score(
        change=task.change,
        text=text,
        window_tokens=_window(question),
        n_windows=question.tokens // _window(question),
        prompt_tokens=_window(question) // 4,
        gen_tokens=question.gen_tokens,
        n_generated=question.generated,
        n_at_once=task.n_at_once,
        token_ids=token_ids,
    )


def _reading(scored: protocol.Scored) -> Reading:
    return Reading(
        nll=np.asarray(scored.nll, dtype=np.float64),
        top_ids=np.asarray(scored.top_ids, dtype=np.int64) if scored.top_ids else None,
        generated_ids=scored.generated_ids,
    )


def _row(
    question: Quality, task: _Task, model: resolve.ResolvedModel, found: QualityDifference
) -> QualityRow:
    gain = None if question.hardware is None else _gain(question.hardware, task.change, model)
    return QualityRow(
        name=task.name,
        verdict=judge_quality(found.perplexity_ratio, question.margin),
        difference=found,
        tpot_gain_ratio=None if gain is None else gain.tpot_gain_ratio,
        weight_bytes_saved_fraction=(
            None
            if gain is None
            else gain.weight_bytes_saved / (gain.weight_bytes_saved + gain.after.sizes.weight_bytes)
        ),
    )


def _gain(device: str, change: LossyChange, model: resolve.ResolvedModel) -> whatif.WhatIf | None:
    """Gain of the change on this device at batch 1, by the datasheet; None where it cannot run."""
    before = scenario.Scenario(
        model=replace(model.spec, checkpoint_dtype=None),
        engine=EngineSpec(dtype="bfloat16", device="cuda"),
        hardware=catalog.find_hardware(device, where="--hardware"),
        batch_size=1,
        prompt_tokens=512,
        output_tokens=128,
    )
    try:
        if change.weights is not None:
            return whatif.what_if(before, whatif.with_quantization(before, change.weights))
        if change.kv_cache is not None:
            return whatif.what_if(before, whatif.with_kv_dtype(before, change.kv_cache))
        if change.is_sparse:
            return whatif.what_if(before, whatif.with_sparsity(before))
    except SpecError:
        return None
    return None


def _cautions(question: Quality, model: resolve.ResolvedModel) -> Iterator[tuple[str, str]]:
    """Cautions and remedies."""
    if question.quantization:
        yield (
            "weights are rounded to nearest: a checkpoint made with calibration loses less",
            "compare an AWQ or GPTQ checkpoint as a second MODEL",
        )
    if question.engine != "transformers" and question.kv_dtype:
        yield (
            (
                "a prompt's own step attends to keys and values before they are rounded: what a KV"
                " cache costs stands in the continuations"
            ),
            "--generated and --gen-tokens, for more and longer ones",
        )
    if model.kind == "gguf":
        yield (
            "the reference is a GGUF file, whose weights are rounded already",
            "take the original checkpoint as the reference",
        )
    if question.text is None:
        yield ("one English text of 1730", "--text FILE with texts of your own traffic")

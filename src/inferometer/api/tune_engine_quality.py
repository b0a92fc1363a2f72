"""Does a change of an engine's options cost too much quality to be taken?

::

    OUT/quality-DIGEST.json   the ratio of perplexities that `inferometer quality` measured
"""

import hashlib
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from inferometer.api.progress import talk
from inferometer.api.quality import Quality, quality
from inferometer.api.tuning import MeasuredDecision
from inferometer.decide.tuning.engine_steps import changed_names, quality_options, quality_words
from inferometer.errors import SpecError
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.types import EngineSpec, LoadFormat
from inferometer.records.quality import QualityVerdict, judge_quality, worst_verdict
from inferometer.records.run_folder import replace_file
from inferometer.stats.estimate import Estimate
from inferometer.suggestions import command

_DECISIONS: Final[dict[QualityVerdict, MeasuredDecision]] = {
    "worse": "drop",
    "undecided": "check quality",
    "not worse": "keep",
}


class Judged(NamedTuple):
    """Decision on a change, and the reason."""

    decision: MeasuredDecision
    why: str


class Decided(NamedTuple):
    """Decision on a change, with the commands that settle an open one."""

    judged: Judged
    commands: list[str]


def check_margin(margin: float | None, load_format: LoadFormat) -> None:
    """Refuse a margin of random weights."""
    if margin is not None and load_format == "dummy":
        raise SpecError(
            "random weights have no quality",
            where="--quality-margin, --load-format dummy",
            allowed="a model with its weights and its tokenizer",
            try_="the same command without --quality-margin",
        )


def decided(
    model: str,
    specs: tuple[EngineSpec, EngineSpec],
    faster: Judged,
    *,
    margin: float | None,
    folder: Path,
    door: Door,
) -> Decided:
    """Decision on a faster change by its quality; without a margin, commands that decide.

    ``specs`` are the options without and with the change. What was measured before is read again
    from the folder. Random weights have no quality.

    Raises
    ------
    SpecError, EngineError
        The model has no tokenizer, or does not run in one of the formats.
    """
    before, after = specs
    if after.load_format == "dummy":
        return Decided(faster, [])
    names = changed_names(after, before)
    commands = [command("quality", *quality_words(model, after, name)) for name in names]
    if margin is None:
        return Decided(faster, commands)
    verdicts = list[QualityVerdict]()
    seen = list[str]()
    for name, words in zip(names, commands, strict=True):
        ratio = _ratio(quality_options(after, name), model, folder, door, words)
        verdicts.append(judge_quality(ratio, margin))
        low, high = ("?" if one is None else f"{one - 1:+.2%}" for one in (ratio.low, ratio.high))
        seen.append(f"perplexity {ratio.value - 1:+.2%} [{low}, {high}]")
    worst = worst_verdict(verdicts)
    why = f"{faster.why}; {', '.join(seen)}, at most {100 * margin:+.3g}% is allowed"
    return Decided(Judged(_DECISIONS[worst], why), commands if worst == "undecided" else [])


def _ratio(
    options: dict[str, object], model: str, folder: Path, door: Door, words: str
) -> Estimate:
    digest = hashlib.sha256(msgspec.json.encode(options)).hexdigest()[:8]
    path = folder / f"quality-{digest}.json"
    if path.exists():
        return door.json(door.bytes_of(path), Estimate, where=str(path))
    talk(words)
    answer = quality(msgspec.convert({"model": model, "given": list(options), **options}, Quality))
    ratio = answer.changes[-1].difference.perplexity_ratio
    replace_file(path, msgspec.json.encode(ratio))
    return ratio

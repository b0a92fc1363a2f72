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
from inferometer.decide.tuning.engine_steps import quality_options
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.types import EngineSpec
from inferometer.records.durability import replace_file
from inferometer.records.quality import QualityVerdict, judge_quality
from inferometer.stats.estimate import Estimate

_WORST_FIRST: Final[tuple[QualityVerdict, ...]] = ("worse", "undecided", "not worse")


class Judged(NamedTuple):
    """What quality says of a change, and why."""

    verdict: QualityVerdict
    why: str


def judged(
    model: str, spec: EngineSpec, names: tuple[str, ...], *, folder: Path, door: Door, margin: float
) -> Judged:
    """The worst of the options that changed; what was measured before is read again.

    Raises
    ------
    SpecError, EngineError
        The model has no tokenizer, or does not run in one of the formats.
    """
    found = list[Judged]()
    for name in names:
        ratio = _ratio(quality_options(spec, name), model, folder, door)
        low, high = ("?" if one is None else f"{one - 1:+.2%}" for one in (ratio.low, ratio.high))
        why = f"perplexity {ratio.value - 1:+.2%} [{low}, {high}], at most {100 * margin:+.3g}% is allowed"
        found.append(Judged(judge_quality(ratio, margin), why))
    return min(found, key=lambda one: _WORST_FIRST.index(one.verdict))


def _ratio(options: dict[str, object], model: str, folder: Path, door: Door) -> Estimate:
    digest = hashlib.sha256(msgspec.json.encode(options)).hexdigest()[:8]
    path = folder / f"quality-{digest}.json"
    if path.exists():
        return door.json(door.bytes_of(path), Estimate, where=str(path))
    talk(f"quality of {', '.join(map(str, options.values()))}")
    answer = quality(msgspec.convert({"model": model, "given": list(options), **options}, Quality))
    ratio = answer.changes[-1].difference.perplexity_ratio
    replace_file(path, msgspec.json.encode(ratio))
    return ratio

"""Does `inferometer explain` say first what takes the most time?"""

from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from inferometer.api.explain import headline
from inferometer.cli.main import app
from inferometer.perfmodel.roofline import exact
from inferometer.report.views import Explained, TimePart

SMOLLM2 = Path(__file__).parents[1] / "fit" / "data" / "smollm2-135m-float32"


def explained(prompt_tokens, batch_size, seconds, *, phase="decode", label="a"):
    parts = tuple(
        TimePart(name=name, duration_s=duration_s) for name, duration_s in seconds.items()
    )
    measured = exact(sum(seconds.values()), method="a test")
    return Explained(
        run_label=label,
        phase=phase,
        prompt_tokens=prompt_tokens,
        batch_size=batch_size,
        measured_s=measured,
        parts=parts,
        limited_by="weights",
    )


def test_the_largest_part_of_the_smallest_and_of_the_largest_point_is_the_answer():
    rows = [
        explained(64, 8, {"launch": 0.01, "kv": 0.03}),
        explained(32, 1, {"launch": 0.03, "kv": 0.01}),
        explained(64, 1, {"launch": 0.02, "kv": 0.02}),
    ]
    assert (
        headline(rows)
        == "decode is mostly launch (75 % of 40 ms) at 32×1, kv (75 % of 40 ms) at 64×8"
    )
    assert headline(rows[:1]) == "decode is mostly kv (75 % of 40 ms) at 64×8"
    two = [*rows[:1], replace(rows[1], run_label="b")]
    assert (
        headline(two)
        == "a: decode is mostly kv (75 % of 40 ms) at 64×8; b: decode is mostly launch (75 % of 40"
        " ms) at 32×1"
    )


def test_the_answer_stands_first():
    done = CliRunner().invoke(app, ["explain", str(SMOLLM2)])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("decode is mostly launch (")

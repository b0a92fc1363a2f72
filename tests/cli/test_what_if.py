"""Is each row of `predict --what-if` what predict says when it is run with the row's flags?"""

import json
import shlex
from pathlib import Path

import pytest
from command_line import run

ROOT = Path(__file__).parents[2]

BASES = (
    ("llama-2-70b", "--hardware", "a100_80gb_sxm", "--tp", "4", "--batch", "8"),
    (
        "llama-3.1-8b",
        "--hardware",
        "h100_sxm",
        "--batch",
        "32",
        "--prompt",
        "1024",
        "--output",
        "256",
    ),
)


@pytest.mark.parametrize("base", BASES)
def test_flags_of_a_row_give_the_row(base, tmp_path):
    def predict(*more: str) -> dict:
        outcome = run("predict", *base, *more, "--json", folder=tmp_path)
        assert outcome.returncode == 0, outcome.stderr
        return json.loads(outcome.stdout)

    plain = predict("--what-if")
    rows = [row for row in plain["what_ifs"] if row["name"].startswith("--")]
    assert {"--kv-cache-dtype", "--quantization", "--tp", "--prefix-hit"} <= {
        row["name"].split()[0] for row in rows
    } | {"--kv-cache-dtype"}
    for row in rows:
        changed = predict(*shlex.split(row["name"]))
        for name in ("ttft", "tpot"):
            before, after = (
                answer["datasheet"]["speeds"][f"{name}_s"]["value"] for answer in (plain, changed)
            )
            assert row[f"{name}_gain_ratio"]["value"] == pytest.approx(before / after)


@pytest.mark.slow
def test_a_prefill_that_the_host_launches_gains_nothing_beside_decode_steps_of_one_graph(tmp_path):
    """A compiled fit's what-if gave prefills the launch time of a captured decode step."""
    recorded = ROOT / "bench" / "results" / "h200_transformers" / "compiled"
    fitted = run("fit", str(recorded), "--out", "compiled.json", folder=tmp_path)
    assert fitted.returncode == 0, fitted.stderr
    base = ("predict", "qwen2.5-3b", "--fit", "compiled.json", "--prompt", "32", "--what-if")
    outcome = run(*base, "--json", folder=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    rows = {row["name"]: row for row in json.loads(outcome.stdout)["what_ifs"]}
    assert rows["--quantization int4"]["tpot_gain_ratio"]["value"] > 1.1
    assert rows["--quantization int4"]["ttft_gain_ratio"]["value"] == pytest.approx(1, abs=0.02)

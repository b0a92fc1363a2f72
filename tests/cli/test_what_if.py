"""Is each row of `predict --what-if` what predict says when it is run with the row's flags?"""

import json
import shlex

import pytest
from command_line import run

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

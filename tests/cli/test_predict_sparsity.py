"""Does ``inferometer predict --sparsity`` say what sparse weights gain, and on which devices the model then fits?"""

import json

import pytest
from click.testing import CliRunner

from inferometer.cli.answer import plain_command

WORDS = (
    "llama-2-70b",
    "--hardware",
    "h100_sxm",
    "--quantization",
    "float8",
    "--batch",
    "16",
    "--prompt",
    "128",
    "--output",
    "128",
)


def predicted(*words):
    outcome = CliRunner().invoke(plain_command("predict"), [*WORDS, *words], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def test_the_json_holds_the_gain_over_dense_weights():
    sparse, dense = (
        json.loads(predicted("--sparsity", "--json")),
        json.loads(predicted("--what-if", "--json")),
    )
    assert dense["sparsity"] is None
    row = sparse["sparsity"]
    assert row == next(one for one in dense["what_ifs"] if one["name"] == "2:4 sparsity")
    assert row["weight_saved_fraction"] == pytest.approx(0.37, abs=0.005)
    assert "rtx_a6000" in row["newly_fits_on"]
    budgets = [answer["datasheet"]["sizes"]["memory"]["weight_bytes"] for answer in (dense, sparse)]
    assert budgets[0] - budgets[1] == row["weight_bytes_saved"]


def test_the_text_says_it():
    text = " ".join(predicted("--sparsity", "--verbose").split())
    assert "23.9 GiB (37%)" in text
    assert {"rtx_a6000"} <= set(text.replace(",", " ").split()), "what it makes it fit on"

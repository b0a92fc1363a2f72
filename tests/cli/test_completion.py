"""What does a shell complete, and how soon?"""

import os
import subprocess
import sys

import pytest

from inferometer.cli.completion import candidates
from inferometer.inputs.catalog import load_hardware, load_models

MODELS = {one.model_id for one in load_models()}
DEVICES = {one.hardware_id for one in load_hardware()}


def values(*words, begun=""):
    found = candidates(words, begun)
    return None if found is None else {one.value for one in found if one.type == "plain"}


def test_models_and_devices_are_those_of_the_catalogue():
    """They are read without the catalogue's own reader, which imports numpy."""
    assert values("predict") == MODELS
    assert values("predict", "llama-3.1-8b", "--hardware") == DEVICES
    assert values("size", "--gpus") == DEVICES
    assert values("simulate", "llama-3.1-8b", "--workload") >= {"chat", "code", "batch"}


SMOL = {f"smollm{n}-{size}" for n in ("", "2") for size in ("135m", "360m", "1.7b")} | {
    "smollm3-3b"
}


@pytest.mark.parametrize(
    ("words", "begun", "some"),
    [
        (("predict",), "smol", SMOL),
        (("tune", "--hardware", "h100_sxm"), "smollm2-1.", {"smollm2-1.7b"}),
        (("study", "policies"), "smollm2-1.", {"smollm2-1.7b"}),
        (("sweep", "--model"), "smollm2-1.", {"smollm2-1.7b"}),
        (("predict", "gpt2"), "--hardware=h100_p", {"--hardware=h100_pcie"}),
        (("predict", "gpt2", "--hardware", "="), "h100_p", {"h100_pcie"}),
        (("predict", "gpt2", "--hardware"), "=", DEVICES),
        (("size", "gpt2", "--gpus"), "l4,h100_p", {"l4,h100_pcie"}),
        ((), "pred", {"predict"}),
        (("predict",), "no-such", set()),
    ],
)
def test_what_has_begun_is_completed(words, begun, some):
    assert values(*words, begun=begun) == some


@pytest.mark.parametrize(
    ("words", "begun"),
    [
        (("predict",), "--har"),
        (("predict", "gpt2", "--policy"), ""),
        (("predict", "gpt2"), ""),
        (("study",), ""),
        (("show",), ""),
        ((), "--v"),
    ],
)
def test_all_else_is_left_to_click(words, begun):
    assert values(*words, begun=begun) is None


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_them_without_the_numerics(shell):
    words, place = ("inferometer predict gpt2 --hardware h100", "4")
    code = (
        "import sys; from inferometer.cli.main import main; main();"
        " print('numpy' in sys.modules, file=sys.stderr)"
    )
    asked = {
        "_INFEROMETER_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": "h100" if shell == "fish" else place,
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.strip() == "False"
    found = [line for line in done.stdout.split() if "h100" in line]
    prefix = {"bash": "plain,", "fish": "plain,", "zsh": ""}[shell]
    assert {f"{prefix}h100_sxm", f"{prefix}h100_pcie"} <= set(found)

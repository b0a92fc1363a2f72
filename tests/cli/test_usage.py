"""Does a refusal name what was meant, so that its `try:` is the command that was wanted?"""

import click
import pytest

from inferometer.cli.flags import as_spec_error
from inferometer.cli.main import app


@pytest.mark.parametrize(
    ("typed", "try_"),
    [
        ("catalog devices", "inferometer catalog hardware"),
        ("catalog modles", "inferometer catalog models"),
        ("study lengths m", "inferometer study length"),
        ("study gpus m", "inferometer study devices"),
        ("study quantization m", "inferometer study precision"),
        ("study nothing", "inferometer study --help"),
        ("simulate m --policy tensorrt-llm", "--policy trtllm"),
        ("explore m --policy continuous", "--policy vllm"),
        ("timeline --batching continuous", "--batching in-flight"),
        ("simulate m --policy vlm", "--policy vllm"),
        ("export r --out o.json --format vllm", "--format vllm-bench"),
        ("simulate m --policy fastest", "inferometer simulate --help"),
    ],
)
def test_a_word_that_is_no_choice_is_answered_with_the_nearest(typed, try_):
    with pytest.raises(click.UsageError) as caught:
        app.main(typed.split(), prog_name="inferometer", standalone_mode=False)
    refusal = as_spec_error(caught.value)
    assert refusal.try_ == try_
    assert refusal.allowed

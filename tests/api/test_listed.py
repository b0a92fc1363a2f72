"""Lists and ranges of one option."""

import pytest

from inferometer.api.question import is_listed, listed
from inferometer.errors import SpecError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,4", ("1", "2", "4")),
        ("1..256", tuple(str(2**i) for i in range(9))),
        ("1..100", ("1", "2", "4", "8", "16", "32", "64", "100")),
        ("100..1000:300", ("100", "400", "700", "1000")),
        ("0.1..0.3:0.1", ("0.1", "0.2", "0.3")),
        ("0.5..4, 3", ("0.5", "1", "2", "4", "3")),
        ("4,4,1", ("4", "1")),
        ("7..7", ("7",)),
        ("bf16, fp8", ("bf16", "fp8")),
        ("chat,8k1k", ("chat", "8k1k")),
        ("1024x64..256, chat", ("1024x64..256", "chat")),
        ("prompt=1,output=2,prompt=1,output=4", ("prompt=1,output=2", "prompt=1,output=4")),
        ("chat,prompt=64..128,output=2", ("chat", "prompt=64..128,output=2")),
    ],
)
def test_values(text: str, values: tuple[str, ...]) -> None:
    assert is_listed(text)
    assert listed(text, where="--x") == values


@pytest.mark.parametrize(
    "text",
    ["1,,2", "8..2", "0..4", "-1..4", "a..b", "1..9:0", "1..1e9:1", "1..inf", "1..nan", "1.."],
)
def test_what_is_no_list_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        listed(text, where="--x")
    assert caught.value.where == "--x"
    assert caught.value.try_


@pytest.mark.parametrize(
    "text",
    [
        "7",
        "0.5",
        "1.5e3",
        "h100_sxm",
        "../folder",
        "a/../b",
        "model.v2",
        "1024x64..256",
        "1kx64..128",
        "prompt=64..128,output=32",
    ],
)
def test_one_value_is_no_list(text: str) -> None:
    assert not is_listed(text)


def test_a_comma_inside_a_number_is_no_list():
    """--prompt 1,024 was a grid of 1 and 24 tokens."""
    with pytest.raises(SpecError, match="'024' in '1,024' begins with 0") as refused:
        listed("1,024", where="--prompt")
    assert refused.value.try_ == "--prompt 1024"
    assert listed("0,0.5,10", where="--rate") == ("0", "0.5", "10")

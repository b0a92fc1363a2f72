import struct
from pathlib import Path

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.gguf import hash_file, read_gguf


def test_smollm2_is_counted_as_published(smollm2):
    content = read_gguf(Path(smollm2.location))
    assert (
        content.n_parameters == 134_515_008
    )  # 49152·576 + 30 layers + the last norm, the head being tied
    assert dict(content.formats).keys() == {"Q4_1", "Q8_0", "F32"}
    header_bytes = Path(smollm2.location).stat().st_size - content.weight_bytes
    assert 0 < header_bytes < 3e6  # vocabulary and merges


def gguf_with(tensors: bytes, n_tensors: int, values: bytes = b"", n_values: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_values) + values + tensors


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


def test_a_file_made_by_hand_is_added_up(tmp_path):
    values = text("a.list") + struct.pack("<IIQ", 9, 8, 2) + text("x") + text("yz")
    values += (
        text("a.flag")
        + struct.pack("<IB", 7, 1)
        + text("a.numbers")
        + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3)
    )
    tensors = (
        text("w")
        + struct.pack("<IQQIQ", 2, 64, 10, 3, 0)
        + text("n")
        + struct.pack("<IQIQ", 1, 7, 0, 400)
    )
    (tmp_path / "made.gguf").write_bytes(gguf_with(tensors, 2, values, 3))
    content = read_gguf(tmp_path / "made.gguf")
    assert (content.n_parameters, content.weight_bytes) == (647, 640 // 32 * 20 + 7 * 4)
    assert content.formats == (("Q4_1", 640), ("F32", 7))


@pytest.mark.parametrize(
    "content",
    [b"", b"GGUF", b"PK\x03\x04", gguf_with(b"", 5), gguf_with(text("w") * 2, 1)],
    ids=["empty", "cut", "no-gguf", "tensors-missing", "absurd-dimensions"],
)
def test_what_is_no_gguf_is_a_bad_question(tmp_path, content):
    (tmp_path / "broken.gguf").write_bytes(content)
    with pytest.raises(SpecError, match=r"broken\.gguf"):
        read_gguf(tmp_path / "broken.gguf")


def test_bytes_of_an_unknown_format_are_absent(tmp_path):
    tensors = text("w") + struct.pack("<IQIQ", 1, 7, 99, 0)
    (tmp_path / "new.gguf").write_bytes(gguf_with(tensors, 1))
    content = read_gguf(tmp_path / "new.gguf")
    assert (content.n_parameters, content.weight_bytes, content.formats) == (
        7,
        None,
        (("type 99", 7),),
    )


def test_a_missing_file_cannot_be_hashed(tmp_path):
    with pytest.raises(SpecError, match="cannot be read"):
        hash_file(tmp_path / "nothing.gguf")

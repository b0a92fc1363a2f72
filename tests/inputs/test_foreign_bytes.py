"""Is whatever can be wrong with foreign bytes one typed error, and cheap?"""

import gzip
import resource
import time

import msgspec
import pytest

from inferometer.errors import RecordError, SpecError
from inferometer.inputs import foreign_bytes
from inferometer.inputs.file_tables import table_from_text, yaml_value
from inferometer.inputs.foreign_bytes import Door

DOOR = Door(
    noun="file", allowed="what is allowed", refusal=RecordError, try_="another", max_bytes=10_000
)
DEEP = 100_000


class Row(msgspec.Struct):
    rate_per_s: float = 1.0
    n_rows: int = 1


def refused(call, *words):
    with pytest.raises(RecordError) as caught:
        call()
    assert caught.value.where
    assert caught.value.allowed
    assert all(word in caught.value.what for word in words), caught.value.what


@pytest.fixture
def packed(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(
        gzip.compress(b"".join(b'{"a": %d}\n' % number for number in range(800)), mtime=0)
    )
    return path


def test_lines_of_a_packed_file_are_those_inside(packed):
    assert list(DOOR.lines_of(packed))[-1] == (800, b'{"a": 799}')


def test_what_is_packed_says_its_beginning_and_not_its_name(packed, tmp_path):
    plain = tmp_path / "plain.jsonl.gz"
    plain.write_bytes(DOOR.bytes_of(packed))
    renamed = packed.rename(tmp_path / "a.jsonl")
    assert DOOR.bytes_of(renamed) == DOOR.bytes_of(plain)
    for begin, name in ((b"(\xb5/\xfd\x04", "zstd"), (b"BZh91AY", "bzip2"), (b"PK\3\4", "zip")):
        plain.write_bytes(begin + bytes(100))
        refused(lambda: DOOR.bytes_of(plain), f"packed with {name}")


def test_damaged_compression(packed):
    content = packed.read_bytes()
    for broken in (
        content[:-20],
        content[:100],
        b"\x1f\x8b" + content[4:],
        content[:200] + b"\x00\xff\x00" + content[203:],
    ):
        packed.write_bytes(broken)
        refused(lambda: list(DOOR.lines_of(packed)), "the file is damaged")
        refused(lambda: DOOR.bytes_of(packed), "the file is damaged")


def test_a_small_file_that_unpacks_into_a_long_line_costs_little(packed):
    packed.write_bytes(gzip.compress(bytes(100_000_000), compresslevel=1))
    before_kib, began_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    refused(lambda: list(DOOR.lines_of(packed)), "line 1 has more than 67,108,864 bytes")
    refused(lambda: DOOR.bytes_of(packed), "more than 10,000 bytes")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 300_000
    assert time.process_time() - began_s < 5


def test_a_file_that_unpacks_into_too_much(packed, monkeypatch):
    monkeypatch.setattr(foreign_bytes, "MOST_UNPACKED_BYTES", 5000)
    refused(lambda: list(DOOR.lines_of(packed)), "more than 5,")


@pytest.mark.parametrize("content", [b"\xff\xfea\x00", b"\xfe\xff\x00a"])
def test_utf_16_is_named(content):
    refused(lambda: DOOR.text(content, where="here"), "UTF-16")


def test_text():
    assert DOOR.text(b"\xef\xbb\xbfa", where="here") == "a"
    refused(lambda: DOOR.text(b"ab\xffc", where="here"), "byte 0xff at 2 is not UTF-8")


@pytest.mark.parametrize(
    "content", [b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b"]" * DEEP, b'["\\\\", ' * 100]
)
def test_deep_json(content):
    refused(lambda: DOOR.json(content, object, where="here"), "nested more than 64 deep")
    refused(lambda: DOOR.loose_json(content.decode(), where="here"), "nested more than 64 deep")


def test_brackets_in_texts_are_not_nesting():
    content = b"[" + b",".join([b'"[[[{\\"[[\\\\"'] * 100) + b"]"
    assert DOOR.json(content, object, where="here") == ['[[[{"[[\\'] * 100


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "nul",
        "9" * 5000,
        '{"a": 1}x',
        '"\\ud800"',
        "[1,]",
        '"\x00"',
        '"' + "a" * 1000,
        "-",
        "1e999999999999x",
    ],
)
def test_broken_json(text):
    refused(lambda: DOOR.loose_json(text, where="here"), "the file is damaged")


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_json_is_not_damaged(text):
    refused(lambda: DOOR.loose_json(text, where="here"), "the file is empty")
    refused(lambda: DOOR.json(text, object, where="here"), "the file is empty")


def test_too_many_values(monkeypatch):
    monkeypatch.setattr("inferometer.inputs.foreign_bytes.MOST_VALUES", 100)
    refused(lambda: DOOR.json(b"[" + b"0," * 100 + b"0]", object, where="here"), "about 102 values")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (".".join(["a"] * 60_000) + " = 1", "a key of more than 32 parts"),
        ("[" + ".".join(["'a b'"] * 60_000) + "]", "a key of more than 32 parts"),
        ("a = " + "[" * DEEP, "nested more than 64 deep"),
        ("a = " + "{b=" * DEEP, "nested more than 64 deep"),
        ("a = 2026-02-30", "Invalid date"),
        ("a = 1\na = 2", "Cannot overwrite"),
        ("x = 1\n" * 800_000, "4,800,000 characters"),
        ("\n".join(f"a{number} = 1" for number in range(100_001)), "100,001 keys"),
        ("a = '" + "é" * 10, "the file is damaged"),
    ],
)
def test_broken_toml(text, words):
    began_s = time.process_time()
    refused(lambda: DOOR.toml(text, where="here"), words)
    assert time.process_time() - began_s < 5


def test_sound_toml_passes():
    text = (
        'a.b = [1.5, 2.5]\n[c."d.e.f".g]\nh = """x.y.z = [[[["""\ni = \'[[[\'  # a.b.c.d\nj ='
        " 192.5\n"
    )
    assert DOOR.toml(text, where="here") == {
        "a": {"b": [1.5, 2.5]},
        "c": {"d.e.f": {"g": {"h": "x.y.z = [[[[", "i": "[[[", "j": 192.5}}},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &b [1]\nc: *b", "an alias, *b"),
        ("[" * DEEP, "nested more than 64 deep"),
        ("a: 2026-13-01", "month must be in"),
        ("a: !!python/object:os.system x", "the file is damaged"),
        ("? [1, 2]\n: 3\n? {a: 1}\n: 4", "the file is damaged"),
        ("\x00", "the file is damaged"),
        ("a" * 5_000_000, "5,000,000 characters"),
    ],
)
def test_broken_yaml(text, words):
    refused(lambda: yaml_value(text, DOOR, where="here"), words)


def test_csv():
    assert list(DOOR.csv_records(["a,b", "1,2", "", "3,4"], where="here")) == [
        {"a": "1", "b": "2"},
        {"a": "3", "b": "4"},
    ]
    refused(
        lambda: list(DOOR.csv_records(["a,b", "1"], where="here")),
        "line 2 has 1 fields, the header has 2",
    )
    refused(
        lambda: list(DOOR.csv_rows(["a" * 200_000], where="here")), "field larger than field limit"
    )
    for text in ("nan", "inf", "1e400", "x", "", "1e16"):
        refused(lambda text=text: DOOR.number(text, "rate", where="here"), f"rate = {text!r}")


def test_files_that_are_none(tmp_path):
    refused(lambda: DOOR.bytes_of(tmp_path), "Is a directory")
    refused(lambda: DOOR.text_of(tmp_path / "none"), "No such file")
    (tmp_path / "empty").touch()

    def mapped():
        with DOOR.mapped(tmp_path / "empty"):
            raise AssertionError

    refused(mapped, "is empty")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e30", "9223372036854775808", "1" * 400])
@pytest.mark.parametrize("key", ["rate_per_s", "n_rows"])
def test_numbers_of_tables_are_finite_and_bounded(key, value):
    with pytest.raises(SpecError) as caught:
        table_from_text(f"{key} = {value}", Row, where="a.toml")
    assert key in caught.value.what
    assert caught.value.where.startswith("a.toml")
    assert caught.value.allowed

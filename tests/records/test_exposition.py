import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.records.server_pages import FOLDER, page

from inferometer.errors import RecordError
from inferometer.records.exposition import (
    MAX_LINE_BYTES,
    PageReader,
    SeriesName,
    labels_of,
    labels_text,
)

PAGES = sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", PAGES)
def test_the_same_as_prometheus_own_parser(name):
    text = "\n".join(
        line for line in page(name).splitlines() if not line.startswith("#")
    )  # it renames counters that lack _total
    theirs = {
        (sample.name, labels_text(sample.labels)): sample.value
        for family in text_string_to_metric_families(text + "\n")
        for sample in family.samples
    }
    ours = {tuple(sample.series): sample.value for sample in PageReader().read(page(name).encode())}
    assert ours == theirs
    assert len(ours) >= 5


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ('a{x="}",y="1 # 2"} 3', ("a", 'x="}",y="1 # 2"', 3.0)),
        (r'a{x="\"\\\n"} 3', ("a", r'x="\"\\\n"', 3.0)),
        ("a:b_total +Inf", ("a:b_total", "", math.inf)),
        ("a 1.5 1700000000000", ("a", "", 1.5)),
        ('a{le="0.5"} 7 # {trace_id="abc"} 0.43', ("a", 'le="0.5"', 7.0)),
        ("a\t 1e-3", ("a", "", 0.001)),
    ],
)
def test_lines(line, sample):
    assert [(*one.series, one.value) for one in PageReader().read(line.encode())] == [sample]


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a b",
        'a{x="1} 2',
        "a{x=1} 2",
        "{} 1",
        "a 1_0",
        "1a 2",
        'a{x="1",x="2"} 3',
        "a " + "9" * MAX_LINE_BYTES,
        "a 1 2 3",
    ],
)
def test_a_broken_line_is_named(line):
    with pytest.raises(RecordError, match="line 2 is no sample"):
        PageReader().read(f"fine 1\n{line}\n".encode())


def test_no_text_is_named():
    with pytest.raises(RecordError, match="no UTF-8 text: byte 2"):
        PageReader().read(b"a \xff")


def test_a_nan_is_a_nan():
    (sample,) = PageReader().read(b"a NaN")
    assert math.isnan(sample.value)


def test_a_reader_forgets_no_series_and_mixes_none_up():
    reader = PageReader(
        lambda series: (
            None if series.name == "b" else SeriesName(series.name.upper(), series.labels)
        )
    )
    for value in (1, 2):
        assert reader.read(f'a{{x="1"}} {value}\nb 5\n'.encode()) == (
            (SeriesName("A", 'x="1"'), float(value)),
        )


def _answer(reader, line):
    try:
        return repr(reader.read(line.encode()))
    except RecordError as error:
        return str(error)


@pytest.mark.parametrize(
    "line",
    [
        *("a 2", "a  2", " a 2", "a\t2", "a \t2", "a \f2", "a \xa02", "a 2\t3", "a 2 3", "a 2 3 4"),
        *("a 2#b", 'a 2 # {b="c"} 1', "a # 2", "a 1_0", "a 1e", "a b", "a NaN", "a -Inf", "a ٣"),
        *("a " + "9" * MAX_LINE_BYTES, "#a 2", "a{} 2", 'a{b="c d"} 2'),
    ],
)
def test_a_series_that_is_known_is_read_as_at_first(line):
    known = PageReader()
    known.read(b'a 1\na{} 1\na{b="c d"} 1')
    assert _answer(known, line) == _answer(known, line) == _answer(PageReader(), line)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]\w*", fullmatch=True).filter(str.isascii),
        st.text(max_size=12),
        max_size=4,
    )
)
@example({"a": '"\\n\n}'})
def test_labels_come_back(labels):
    assert labels_of(labels_text(labels)) == labels


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_whatever_the_bytes(page):
    _read(page)


def _read(page: bytes) -> bool:
    try:
        PageReader().read(page)
    except RecordError:
        return False
    return True


@pytest.mark.slow
def test_broken_pages_in_bounded_memory():
    """Real lines, cut, joined, and with bytes changed to what matters in the format: every one is read or named."""
    rng = np.random.default_rng(20261121)
    lines = [line for name in PAGES for line in page(name).encode().splitlines() if len(line) < 200]
    letters = np.frombuffer(b'{}"\\,=# \n\t\x00\xff_:.0eN+-', np.uint8)
    n_read = 0
    tracemalloc.start()
    for _ in range(5):
        first, second = rng.integers(len(lines), size=(2, 10_000))
        cuts, n_changes = rng.integers(1, 200, 10_000), rng.integers(0, 4, 10_000)
        places, written = (
            rng.integers(0, 400, (10_000, 4)),
            letters[rng.integers(len(letters), size=(10_000, 4))],
        )
        for i in range(10_000):
            broken = bytearray(lines[first[i]][: cuts[i]] + lines[second[i]])
            for change in range(n_changes[i]):
                broken[places[i, change] % len(broken)] = written[i, change]
            n_read += _read(bytes(broken))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 500 < n_read < 49_500, "the inputs should be broken, and not all of them"
    assert peak_bytes < 32 * 2**20


@pytest.mark.parametrize("letter", ['"', "\\", ",", "{", "}", "#", 'a="1",', '\\"'])
def test_a_long_line_of_one_letter_takes_no_time(letter):
    line = "a{" + letter * ((MAX_LINE_BYTES - 10) // len(letter)) + "} 1"
    assert not _read(line.encode())

"""Does any reader of foreign bytes answer a changed input with something else than a typed error, or need too much time or memory?

Sound examples of every format are changed at random (bits, cuts, splices, numbers, nesting,
encodings, compression) and read in process. Anything but an answer or an ``InferometerError`` is a
finding, as are more than 10 s of CPU time or 500 MB of memory for one input, and a process that
dies. A finding is repeated by its number: ``bench_mutated_inputs.py --first NUMBER --inputs 1``.
"""

import argparse
import ctypes
import gzip
import multiprocessing
import os
import random  # noqa: TID251 -- an explicit seed for each input, and its small draws are ten times as fast
import re
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from mutated_readers import Reader, readers
from results_log import log_row

from inferometer.errors import InferometerError

MOST_S, MOST_KIB = 10.0, 500_000
PER_PROCESS = 2_000
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
KEY = re.compile(rb'"[A-Za-z_]+"')
NUMBERS = tuple(
    word.encode()
    for line in (
        (
            "NaN nan Infinity -Infinity inf 1e999 -1e999 1e308 1e-320 1e18 1e12 1e5 -1 0 -0.0 1.5"
            " 10000000 99999999999"
        ),
        (
            "2147483647 2147483648 -2147483649 4294967296 9007199254740993 9223372036854775807"
            " 9223372036854775808 -9223372036854775809"
        ),
        '18446744073709551616 null true "x" "" [] {} 0x10 1_000 2026-13-01 [1,2] "nan" "\\ud800" ٣',
    )
    for word in line.split()
) + tuple(b"9" * n_digits for n_digits in (40, 400, 5000))
PIECES = (
    *(
        b"\xff",
        b"\xfe\xff",
        b"\xef\xbb\xbf",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\x00",
        b"\x1b[2J",
        b"\r\n",
        b"\n",
        b"\r",
        b"\x85",
        b"\xe2\x80\xa8",
    ),
    *(
        b'"',
        b"'",
        b",",
        b";",
        b"|",
        b"{",
        b"}",
        b"[",
        b"]",
        b"=",
        b":",
        b"#",
        b"\\",
        b"-",
        b"<",
        b"%",
        b"NaN",
        b"\\ud800",
        b"\\u0000",
    ),
    *(
        b"[" * 70,
        b"{" * 70,
        b"[" * 5000,
        b'{"a":' * 2000,
        b"a." * 100,
        b"A" * 300,
        b"1" * 200_000,
        b'"' + b"x" * 140_000 + b'"',
    ),
    *(b"&a [*a, *a]", b"<<: ", b"? ", b"!!python/name:os.system ", b"[[a]]\n", b"'''", b'"""'),
)


class Finding(NamedTuple):
    number: int
    reader: str
    kind: str
    where: str


def changed(rng: random.Random, content: bytes, *, is_text: bool) -> bytes:  # noqa: C901, PLR0911 -- one kind of change after the other
    """One change; text formats get more of those that keep a text."""
    kinds = (
        "number",
        "number",
        "number",
        "piece",
        "piece",
        "cut",
        "delete",
        "repeat",
        "bit",
        "key",
        "lines",
        "encoding",
    )
    kind = rng.choice(
        kinds
        if is_text
        else ("bit", "bit", "bit", "byte", "cut", "delete", "repeat", "piece", "field")
    )
    at = rng.randrange(len(content) + 1)
    to = min(len(content), at + int(rng.expovariate(1 / 8)) + 1)
    match kind:
        case "number":
            found = list(NUMBER.finditer(content))
            one = rng.choice(found) if found else None
            return (
                content
                if one is None
                else content[: one.start()] + rng.choice(NUMBERS) + content[one.end() :]
            )
        case "key":
            found = list(KEY.finditer(content))
            one = rng.choice(found) if found else None
            return (
                content
                if one is None
                else content[: one.start()]
                + rng.choice((b'"x"', b'""', b"1", b"null", b'"kind"'))
                + content[one.end() :]
            )
        case "piece":
            return content[:at] + rng.choice(PIECES) + content[at:]
        case "cut":
            return content[:at]
        case "delete":
            return content[:at] + content[to:]
        case "repeat":
            return content[:to] + content[at:to] * rng.choice((1, 1, 2, 100)) + content[to:]
        case "bit" if content:
            at = min(at, len(content) - 1)
            return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
        case "byte" if content:
            return (
                content[:at] + rng.choice((b"\x00", b"\xff", b"\x7f", b"\x80")) + content[at + 1 :]
            )
        case "field":
            return (
                content[:at]
                + rng.choice(
                    (b"\xff" * 8, b"\xff" * 4, bytes(8), b"\xff\xff\xff\x7f", b"\xff" * 7 + b"\x7f")
                )
                + content[at + 8 :]
            )
        case "lines":
            parts = content.split(b"\n")
            rng.shuffle(parts)
            return b"\n".join(parts[: rng.randrange(len(parts) + 1)])
        case "encoding":
            text = content.decode("utf-8", "replace")
            return text.encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig")))
    return content


def input_of(rng: random.Random, reader: Reader) -> bytes:
    content = rng.choice(reader.contents)
    n_changes = rng.choice((0, 1, 1, 1, 2, 3, 6))
    if reader.file.endswith(".gz") and rng.random() < 0.6:
        inside = gzip.decompress(content)
        for _ in range(n_changes):
            inside = changed(rng, inside, is_text=True)
        return gzip.compress(inside, mtime=0, compresslevel=1)
    for _ in range(n_changes):
        content = changed(rng, content, is_text=reader.is_text)
    return reader.repaired(content) if rng.random() < 0.9 else content


def peak_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def too_slow(*_: object) -> None:
    raise TimeoutError(f"more than {MOST_S} s")


def written(reader: Reader, content: bytes, folder: Path) -> Path:
    """The file of this content, and those that its reader needs beside it."""
    for name, one in (*reader.beside.items(), (reader.file, content)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(one)
    return folder / reader.file


def try_one(reader: Reader, content: bytes, folder: Path) -> tuple[str, str] | None:
    """What is wrong with how the reader took this input; None: nothing."""
    path = written(reader, content, folder)
    forget_peak()
    before_kib = peak_kib()
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_S)
    try:
        reader.read(path)
    except InferometerError as error:
        return None if error.what.strip() else ("an error without words", "")
    except BaseException as error:  # noqa: BLE001 -- whatever it is, it is the finding
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "/inferometer/" in frame.filename
        ]
        last = frames[-1] if frames else None
        where = (
            ""
            if last is None
            else f"{last.filename.rpartition('/inferometer/')[2]}:{last.name}:{last.lineno}"
        )
        return f"{type(error).__name__}: {str(error)[:80]}", where
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        grown_kib = peak_kib() - before_kib
    return ("memory", f"{grown_kib // 1000} MB") if grown_kib > MOST_KIB else None


def chosen(number: int, known: tuple[Reader, ...]) -> tuple[Reader, bytes]:
    """The reader and the input of this number."""
    rng = random.Random(number)  # noqa: S311 -- no secret
    reader = rng.choices(known, [one.weight for one in known])[0]
    return reader, input_of(rng, reader)


def try_many(
    first: int,
    n_inputs: int,
    found: "multiprocessing.SimpleQueue[Finding]",
    last: ctypes.c_longlong,
) -> None:
    """Try these; ``last`` is the number under way, for the parent to know should this process die."""
    signal.signal(signal.SIGVTALRM, too_slow)
    warnings.simplefilter("error", RuntimeWarning)
    shm = Path("/dev/shm")  # noqa: S108 -- a folder of its own below
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as root:
        known = readers(Path(root) / "made")
        for number in range(first, first + n_inputs):
            last.value = number
            reader, content = chosen(number, known)
            folder = Path(root) / "one"
            problem = try_one(reader, content, folder)
            shutil.rmtree(folder)
            if problem is not None:
                found.put(Finding(number, reader.name, *problem))


def sample(numbers: range, folder: Path) -> list[Finding]:
    """The findings of these inputs, in this process; used by the tests."""
    known = readers(folder / "made")
    before = signal.signal(signal.SIGVTALRM, too_slow)
    findings = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            for number in numbers:
                reader, content = chosen(number, known)
                problem = try_one(reader, content, folder / "one")
                shutil.rmtree(folder / "one")
                findings += [] if problem is None else [Finding(number, reader.name, *problem)]
    finally:
        signal.signal(signal.SIGVTALRM, before)
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--for", dest="minutes", type=float, default=600.0)
    asked = parser.parse_args()
    os.nice(10)
    counts: Counter[tuple[str, str, str]] = Counter()
    began_s, number, n_deaths = time.monotonic(), asked.first, 0
    while number < asked.first + asked.inputs and time.monotonic() - began_s < asked.minutes * 60:
        n_inputs = min(PER_PROCESS, asked.first + asked.inputs - number)
        context = multiprocessing.get_context("fork")
        found: multiprocessing.SimpleQueue[Finding] = context.SimpleQueue()
        last = context.Value("q", number, lock=False)
        process = context.Process(target=try_many, args=(number, n_inputs, found, last))
        process.start()
        while process.is_alive() or not found.empty():
            if found.empty():
                process.join(timeout=0.1)
                continue
            one = found.get()
            counts[one.reader, one.kind, one.where] += 1
            if counts[one.reader, one.kind, one.where] <= 1:
                print(*one, sep="  ", flush=True)
        process.join()
        if process.exitcode:
            n_deaths += 1
            print(f"{last.value}  the process ended with {process.exitcode}", flush=True)
        number = last.value + 1
        print(
            f"... {number - asked.first} inputs, {sum(counts.values())} findings,"
            f" {time.monotonic() - began_s:.0f} s",
            flush=True,
        )
    n_done = number - asked.first
    log_row(
        "mutated inputs",
        f"{n_done:,} inputs, {sum(counts.values())} findings, {n_deaths} deaths",
        f"seeds {asked.first} to {number - 1}, every reader of foreign bytes; at most {MOST_S:.0f}"
        f" s of CPU and {MOST_KIB // 1000} MB each",
    )


if __name__ == "__main__":
    main()

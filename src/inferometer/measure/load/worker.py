"""A client process of a load test.

Takes its job from standard input, says when it is ready, starts at the given instant, reports,
ends.

``python -m inferometer.measure.load.worker``; ``load_test`` starts it.
"""

import asyncio
import ctypes
import gc
import os
import platform
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from inferometer.errors import InferometerError, MeasureError
from inferometer.measure.load import messages
from inferometer.measure.load.client import LoadClient, RawLogWriter

try:
    from uvloop import new_event_loop
except ImportError:  # no wheel for this platform: the standard loop does the same, slower
    from asyncio import new_event_loop  # type: ignore[assignment]

_PREPARE_NS: Final = 250_000_000
_STDIN: Final = 0
_STDOUT: Final = 1


def main() -> NoReturn:
    """Do one job."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, signal.SIG_IGN
        )  # the command says when to stop; where it dies, its pipe ends
    _allow_many_files()
    scheduled = wake_at_once()
    job = messages.read_message(_STDIN)
    if not isinstance(job, messages.Job):
        sys.exit(MeasureError.exit_code)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            done = runner.run(_do(job, scheduled))
    except InferometerError as error:
        _send(messages.Failed(process_index=job.process_index, why=str(error)))
        sys.exit(error.exit_code)
    _send(done)
    sys.exit(0)


async def _do(job: messages.Job, scheduled: str) -> messages.Done:
    writer = RawLogWriter(Path(job.raw_path))
    try:
        client = LoadClient(job, writer, _send_report, scheduled=scheduled)
        client.ahead.prepare_for(_PREPARE_NS)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: client.fail(_cause(context)))
        _send(messages.Ready())
        start = messages.read_message(_STDIN)
        if not isinstance(start, messages.Start):
            raise MeasureError("the command ended before the start")
        loop.add_reader(_STDIN, client.stop)  # a Stop, or the end of the command
        gc.collect()
        gc.freeze()
        try:
            return await client.run(start.origin_ns)
        finally:
            gc.unfreeze()  # nanobind, below duckdb, reports frozen objects as leaks at exit
            loop.remove_reader(_STDIN)
    finally:
        writer.close()


def _send(message: messages.FromClient) -> None:
    """Send a message; if the command is gone, drop it, as the raw log has the data."""
    with suppress(BrokenPipeError):
        messages.write_all(_STDOUT, messages.encoded(message))


def _send_report(report: messages.Report) -> None:
    """Send a report, or skip it if the pipe is full: the next one covers it."""
    data = messages.encoded(report)
    if len(data) > messages.ATOMIC_BYTES:
        return
    os.set_blocking(_STDOUT, False)
    try:
        os.write(_STDOUT, data)
    except (BlockingIOError, BrokenPipeError):
        pass
    finally:
        os.set_blocking(_STDOUT, True)


def _cause(context: dict[str, object]) -> BaseException:
    error = context.get("exception")
    return (
        error
        if isinstance(error, BaseException)
        else MeasureError(f"the client's loop failed: {context.get('message')}")
    )


def _allow_many_files() -> None:
    """Raise the limit on open files as far as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# How does a client process get its core at once when something is due, however busy its
# neighbours are?
# A process that wakes waits until the one that runs has used up its slice, some milliseconds;
# lateness of a client is mostly that. Where the system lets this user have real-time priority,
# the lowest of it is taken: whoever computes is interrupted, and the client, which needs a
# fraction of a core, soon sleeps again. Elsewhere the process asks for short slices, which Linux
# grants to anybody since 6.12: short slices are due earlier. Where there is neither, nothing
# changes: the run says how late it was.
# Source: sched(7); sched_setattr(2); Linux, kernel/sched/fair.c, PREEMPT_SHORT.


_SLICE_NS: Final = 100_000
"""The shortest that Linux grants."""
_SET_ATTRIBUTES: Final = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, which older C libraries have no function for."""


class _Attributes(ctypes.Structure):
    """``struct sched_attr``."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def wake_at_once() -> str:
    """Request the most prompt CPU scheduling available to this user; returns its name.

    Threads that are started later have it too.
    """
    if sys.platform != "linux":
        return "usual"
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return "short slices" if _has_short_slices() else "usual"
    return "real-time"


def _has_short_slices() -> bool:
    """Request short scheduler time slices; False where the system does not support that."""
    number = _SET_ATTRIBUTES.get(platform.machine())
    if number is None:
        return False
    attributes = _Attributes(
        size=ctypes.sizeof(_Attributes), nice=os.getpriority(os.PRIO_PROCESS, 0), runtime=_SLICE_NS
    )
    return int(ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), 0)) == 0


if __name__ == "__main__":
    main()

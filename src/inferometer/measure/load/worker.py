"""The client process.

Takes its job from standard input, says when it is ready, starts at the instant it is told, reports,
ends.

``python -m inferometer.measure.load.worker``; ``load_test`` starts it.
"""

import asyncio
import gc
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from inferometer.errors import InferometerError, MeasureError
from inferometer.measure.load import messages, scheduling
from inferometer.measure.load.client import LoadClient
from inferometer.measure.load.raw_writer import RawLogWriter

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
    scheduled = scheduling.wake_at_once()
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
            gc.unfreeze()  # what is frozen at the end of Python is called a leak on stderr, by what duckdb is bound with
            loop.remove_reader(_STDIN)
    finally:
        writer.close()


def _send(message: messages.FromClient) -> None:
    """Where the command is gone, nobody needs to know; what was received is in the raw log."""
    with suppress(BrokenPipeError):
        messages.write_all(_STDOUT, messages.encoded(message))


def _send_report(report: messages.Report) -> None:
    """A report that finds no room is left out: the next one says more."""
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
    """As many connections as the system lets this user have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()

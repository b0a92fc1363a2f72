"""How is an emulated server run: in this process, or in one of its own for tests and tools?"""

import asyncio
import errno
import gc
import multiprocessing
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

from inferometer import suggestions
from inferometer.errors import InferometerError, MeasureError, SpecError
from inferometer.measure import child_processes
from inferometer.serve import emulator_server
from inferometer.serve.emission_log import EmissionWriter
from inferometer.serve.emulator_plan import LOOPBACK, EmulatorPlan
from inferometer.serve.emulator_server import EmulatorServer, ServedCounts
from inferometer.simulate.outcome import FAR_NS
from inferometer.units import NS_PER_S

_START_S: Final = 300.0
"""The first emulator of an installation compiles the simulator."""
_STOP_S: Final = 10.0


class Emulator(NamedTuple):
    """An emulated server that runs in another process."""

    url: str
    emission_log: Path | None
    stop: Callable[[], None]
    """Stops the server and completes the emission log; a second call does nothing."""


def run_emulator(
    plan: EmulatorPlan, on_ready: Callable[[str], None]
) -> emulator_server.ServedCounts:
    """Serve in this process until SIGINT, SIGTERM or the plan's time; ``on_ready`` gets the URL."""
    return asyncio.run(_run(plan, on_ready))


@contextmanager
def start(plan: EmulatorPlan) -> Generator[Emulator, None, None]:
    """Serve in another process, until the context ends or ``stop`` is called.

    Raises
    ------
    MeasureError
        It did not start; the message has what it printed.

    Example
    -------
    ::

        fleet = lone_replica(config, cost)
        with start(EmulatorPlan(model_name="m", fleet=fleet, emission_log=path)) as emulator:
            ...  # requests to emulator.url
            emulator.stop()
            log = read_emission_log(path)
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(
        target=_in_child, args=(plan, there, child_processes.starts_in_main_thread()), daemon=True
    )
    with child_processes.without_script():
        process.start()
    there.close()

    def stop() -> None:
        if process.is_alive():
            process.terminate()
            process.join(_STOP_S)
        if process.is_alive():
            process.kill()
            process.join()

    try:
        yield Emulator(_url_of(here), plan.emission_log, stop)
    finally:
        stop()
        process.close()
        here.close()


def _url_of(pipe: Connection) -> str:
    try:
        kind, detail = (
            pipe.recv() if pipe.poll(_START_S) else ("error", f"nothing for {_START_S:.0f} s")
        )
    except EOFError:
        kind, detail = "error", "it ended without a word"
    if kind != "url":
        raise MeasureError(f"the emulator did not start: {detail}")
    return str(detail)


def _in_child(plan: EmulatorPlan, pipe: Connection, may_ask_kernel: bool) -> None:  # noqa: FBT001
    child_processes.hold_in_pool(may_ask_kernel)
    try:
        run_emulator(plan, lambda url: pipe.send(("url", url)))
    except (InferometerError, OSError) as problem:
        pipe.send(("error", str(problem)))


async def _run(plan: EmulatorPlan, on_ready: Callable[[str], None]) -> emulator_server.ServedCounts:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    ready: asyncio.Future[str] = loop.create_future()
    ready.add_done_callback(lambda url: on_ready(url.result()))
    gc.collect()
    gc.freeze()  # what is there now stays: the collector need not look at it
    try:
        return await serve(plan, stop, ready)
    finally:
        gc.unfreeze()  # what is frozen at the end of Python is called a leak on stderr, by what duckdb is bound with


_FLUSH_S: Final = 0.5


async def serve(
    plan: EmulatorPlan, stop: asyncio.Event, ready: asyncio.Future[str]
) -> ServedCounts:
    """Serve until stopped, or until the plan's time is over; ``ready`` gets the URL when clients may come.

    Raises
    ------
    SpecError
        The port is taken, or there is no folder for the log.
    RecordError
        The log's disk is full.
    """
    log = EmissionWriter(plan.emission_log)
    server = EmulatorServer(plan, log)
    try:
        listening = await asyncio.get_running_loop().create_server(
            server.new_line, plan.host, plan.port, backlog=1024
        )
    except OSError as problem:
        raise SpecError(
            f"cannot listen: {problem}",
            where="--host, --port",
            try_=(
                "--port 0, which takes one that is free"
                if problem.errno == errno.EADDRINUSE
                else suggestions.flags("--host", LOOPBACK)
            ),
        ) from problem
    host, port = listening.sockets[0].getsockname()[:2]
    ready.set_result(f"http://{host}:{port}")
    ends_ns = (
        FAR_NS if plan.for_s is None else time.perf_counter_ns() + round(plan.for_s * NS_PER_S)
    )
    try:
        while not stop.is_set() and time.perf_counter_ns() < ends_ns:
            wait_s = min(_FLUSH_S, (ends_ns - time.perf_counter_ns()) / NS_PER_S)
            try:
                await asyncio.wait_for(stop.wait(), max(wait_s, 0.0))
            except TimeoutError:
                log.flush()
    finally:  # also where the log cannot be written
        listening.close()
        server.hang_up()
    log.close()
    return server.counts()

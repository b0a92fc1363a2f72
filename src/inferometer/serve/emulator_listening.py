"""How long does an emulated server listen, and what is left when it stops?"""

import asyncio
import time
from typing import Final

from inferometer.errors import SpecError
from inferometer.serve.emission_log import EmissionWriter
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_server import EmulatorServer, ServedCounts
from inferometer.simulate.outcome import FAR_NS
from inferometer.units import NS_PER_S

_FLUSH_S: Final = 0.5


async def serve(
    plan: EmulatorPlan, stop: asyncio.Event, ready: asyncio.Future[str]
) -> ServedCounts:
    """Serve until told to stop, or until the plan's time is over; ``ready`` gets the URL when clients may come.

    Raises
    ------
    SpecError
        The port is taken, or the log cannot be written.
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
            try_="--port 0, which takes one that is free",
        ) from problem
    host, port = listening.sockets[0].getsockname()[:2]
    ready.set_result(f"http://{host}:{port}")
    ends_ns = (
        FAR_NS if plan.for_s is None else time.perf_counter_ns() + round(plan.for_s * NS_PER_S)
    )
    while not stop.is_set() and time.perf_counter_ns() < ends_ns:
        wait_s = min(_FLUSH_S, (ends_ns - time.perf_counter_ns()) / NS_PER_S)
        try:
            await asyncio.wait_for(stop.wait(), max(wait_s, 0.0))
        except TimeoutError:
            log.flush()
    listening.close()
    server.hang_up()
    log.close()
    return server.counts()

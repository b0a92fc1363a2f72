"""A tiny real server on a socket, which answers as it is told to, and a way to load it."""

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field, replace

from inferometer.inputs.plans import LoadPlan
from inferometer.inputs.workload.plan import request_plan
from inferometer.inputs.workload.reading import resolve_workload
from inferometer.measure.load.load_test import LoadQuestion, run_session
from inferometer.measure.load.messages import ClientLimits
from inferometer.measure.load.schedule import Past
from inferometer.measure.load.target import Secrets
from inferometer.records.raw_log import (
    EndFrame,
    LagFrame,
    RawLogReader,
    RequestFrame,
    SessionFrame,
    raw_logs,
)

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"text":"tok"}]}\n\n'
LAST = b"data: [DONE]\n\n"
WORKLOAD = resolve_workload("chat")


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


END = chunk(LAST) + b"0\r\n\r\n"


async def stream(writer, body):
    """As many events as tokens are asked for, all at once."""
    writer.write(HEAD + chunk(EVENT) * body["max_tokens"] + END)


async def silent_inside(writer, body):
    writer.write(HEAD + chunk(EVENT))
    await asyncio.sleep(30)


@dataclass
class Seen:
    """A request as the server saw it."""

    at_ns: int
    connection: int
    head: str
    body: dict


@dataclass
class TinyServer:
    """Runs in a thread of its own; ``answer(writer, body)`` writes an answer, or what it likes."""

    answer: object = stream
    ssl: object = None
    host: str = "127.0.0.1"
    seen: list[Seen] = field(default_factory=list)
    n_connections: int = 0
    port: int = 0

    @property
    def url(self):
        return f"{'https' if self.ssl else 'http'}://127.0.0.1:{self.port}"

    def start(self):
        is_up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(is_up,), daemon=True)
        self._thread.start()
        assert is_up.wait(10)

    def stop(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, is_up):
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, self.host, 0, ssl=self.ssl, backlog=1024)
        )
        self.port = server.sockets[0].getsockname()[1]
        is_up.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _serve(self, reader, writer):
        connection, self.n_connections = self.n_connections, self.n_connections + 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                text = head.decode()
                length = int(
                    next(
                        line.split(":")[1]
                        for line in text.split("\r\n")
                        if line.lower().startswith("content-length")
                    )
                )
                body = json.loads(await reader.readexactly(length) or b"null")
                self.seen.append(Seen(time.monotonic_ns(), connection, text, body))
                await self.answer(writer, body)
                if writer.is_closing():
                    return
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@dataclass
class Loaded:
    outcome: object
    sessions: list[SessionFrame]
    requests: list[RequestFrame]
    lags: list[LagFrame]
    ends: list[EndFrame]

    def of(self, row):
        return next(frame for frame in self.requests if frame.request_index == row)


def frames_of(folder):
    frames = [frame for path in raw_logs(folder) for frame in RawLogReader(path)]
    return [
        [frame for frame in frames if isinstance(frame, kind)]
        for kind in (SessionFrame, RequestFrame, LagFrame, EndFrame)
    ]


def a_plan(n_requests, gap_ns=0, **columns):
    given = {
        "arrival_ns": [i * gap_ns for i in range(n_requests)],
        "prompt_tokens": [5] * n_requests,
        "output_tokens": [3] * n_requests,
    }
    return request_plan("the test", **(given | columns))


def question_of(url, plan, folder, limits=None, secrets=None, past=None, **load):
    asked = LoadPlan(url=url, served_model="tiny", endpoint="completions", workload=WORKLOAD)
    return LoadQuestion(
        load=replace(asked, **load),
        plan=plan,
        past=past or Past(),
        folder=folder,
        id_prefix="test",
        secrets=secrets or Secrets(),
        limits=limits or ClientLimits(),
    )


def load(url, plan, folder, on_progress=lambda _: None, **question):
    outcome = run_session(question_of(url, plan, folder, **question), on_progress)
    return Loaded(outcome, *frames_of(folder))

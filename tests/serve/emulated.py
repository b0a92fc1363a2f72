"""Emulated servers for tests: short steps, raw clients that see every byte."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import serve
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

MODEL = "test-model"
PLAN = EmulatorPlan(
    model_name=MODEL,
    fleet=lone_replica(
        SchedulerConfig(num_blocks=2000, max_model_len=512, max_num_seqs=64),
        linear_cost(launch_s=1e-3),
    ),
    mean_output_tokens=None,
    enable_prompt_tokens_details=True,
)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool
    """Did it end as HTTP says, not by hanging up?"""

    @property
    def events(self):
        """The data of each event of a stream."""
        lines = [line for line in self.body.decode().split("\n\n") if line.startswith("data: ")]
        return [line.removeprefix("data: ") for line in lines]

    @property
    def chunks(self):
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    @property
    def json(self):
        return json.loads(self.body)


@asynccontextmanager
async def emulator(**changes):
    """A server in this event loop: its port."""
    plan = replace(PLAN, **changes)
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(plan, stop, ready))
    await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving
    try:
        yield int(ready.result().rpartition(":")[2])
    finally:
        stop.set()
        await serving


class Client:
    """One connection, kept alive."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port):
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**26))

    def send(self, method, path, body=None, **headers):
        payload = (
            b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(payload)}"]
        headers = {"content_type": "application/json", **headers}
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + payload)

    async def receive(self):
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body, is_whole = b"", True
        if headers.get("transfer-encoding") == "chunked":
            try:
                while size := int(await self.reader.readline() or b"x", 16):
                    body += (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readline()
            except (ValueError, asyncio.IncompleteReadError, ConnectionError):
                is_whole = False
        else:
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Reply(int(first.split()[1]), headers, body, is_whole)

    async def ask(self, method, path, body=None, **headers):
        self.send(method, path, body, **headers)
        await self.writer.drain()
        return await asyncio.wait_for(self.receive(), 20)

    async def complete(self, prompt="one two three", **body):
        return await self.ask(
            "POST",
            "/v1/completions",
            {"model": MODEL, "prompt": prompt, **body},
            x_request_id="mine",
        )

    async def chat(self, *texts, **body):
        messages = [
            {"role": "user" if i % 2 == 0 else "assistant", "content": text}
            for i, text in enumerate(texts)
        ]
        return await self.ask(
            "POST", "/v1/chat/completions", {"model": MODEL, "messages": messages, **body}
        )

    async def close(self):
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def talking(**changes):
    """A server and a client that is connected to it."""
    async with emulator(**changes) as port:
        client = await Client.connect(port)
        try:
            yield client
        finally:
            await client.close()

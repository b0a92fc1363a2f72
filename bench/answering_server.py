"""A server that answers whatever is posted at once with a short stream, and has no pages.

All of its time is the client's. For benchmarks and slow tests.

Prints its port; ends when its standard input does.
"""

import asyncio
import os
import sys

import uvloop

EVENT = b'data: {"choices":[{"text":"tok"}]}\n\n'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWER += (
    b"".join(b"%x\r\n%b\r\n" % (len(data), data) for data in (EVENT * 4, b"data: [DONE]\n\n"))
    + b"0\r\n\r\n"
)
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Answering(asyncio.Protocol):
    """Counts bodies by their lengths; looks at nothing else."""

    def connection_made(self, transport):
        self.transport = transport
        self.waiting = b""

    def data_received(self, data):
        self.waiting += data
        while True:
            head, found, rest = self.waiting.partition(b"\r\n\r\n")
            if not found:
                return
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(rest) < length:
                return
            self.waiting = rest[length:]
            self.transport.write(ANSWER if head.startswith(b"POST") else NOT_FOUND)


async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    over = loop.create_future()
    loop.add_reader(
        sys.stdin.fileno(), lambda: over.done() or os.read(0, 1) or over.set_result(None)
    )
    await over


if __name__ == "__main__":
    uvloop.run(main())

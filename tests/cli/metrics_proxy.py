"""``metrics_proxy.py SECONDS COMMAND… --port PORT``: a server whose metrics vanish after a while.

The command runs at another port; what comes to PORT is passed on, but pages of metrics only in the
first seconds.
"""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time

BYTES = 1 << 16
GONE = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def passed_on(source, target, until_s=None):
    with contextlib.suppress(OSError):
        while chunk := source.recv(BYTES):
            if until_s is not None and time.monotonic() > until_s:
                break
            target.sendall(chunk)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def answer(client, port, until_s):
    with client, socket.socket() as server:
        head = client.recv(BYTES)
        is_metrics = head.startswith(b"GET /metrics")
        if is_metrics and time.monotonic() > until_s:
            client.sendall(GONE)
            return
        try:
            server.connect(("127.0.0.1", port))
            server.sendall(head)
        except OSError:
            return
        back = threading.Thread(target=passed_on, args=(server, client), daemon=True)
        back.start()
        passed_on(client, server, until_s if is_metrics else None)
        back.join()


def main():
    lasts_s, *words = sys.argv[1:]
    at = words.index("--port") + 1
    port = int(words[at])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        behind = probe.getsockname()[1]
    words[at] = str(behind)
    command = subprocess.Popen(words)
    signal.signal(signal.SIGTERM, lambda *_: command.terminate())
    while command.poll() is None:
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", behind)):
                break
        time.sleep(0.1)
    until_s = time.monotonic() + float(lasts_s)
    listener = socket.create_server(("127.0.0.1", port), backlog=256)

    def serve():
        while True:
            client, _ = listener.accept()
            threading.Thread(target=answer, args=(client, behind, until_s), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    sys.exit(command.wait())


if __name__ == "__main__":
    main()

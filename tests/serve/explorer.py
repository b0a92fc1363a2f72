"""The explorer, served for a test."""

import http.client
import json
import threading
from contextlib import contextmanager

from inferometer.api.explore import Explore
from inferometer.api.question import question_of
from inferometer.serve.explore_server import serving

STATE = {
    "model": "smollm2-135m",
    "hardware": "l4",
    "rate": 20.0,
    "requests": 120,
    "datasheet": True,
}


def launched(**changes):
    return question_of(Explore, {**STATE, **changes})


@contextmanager
def served(question):
    with serving(question) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def ask(port, method="GET", path="/", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, sent)
    reply = connection.getresponse()
    found = (reply.status, reply.read(), dict(reply.getheaders()))
    connection.close()
    return found


def answer(port, **asked):
    status, body, _ = ask(
        port, "POST", "/answer", json.dumps(asked), content_type="application/json"
    )
    assert status == 200, body
    return json.loads(body)

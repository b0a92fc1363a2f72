"""Emulated servers and their traffic, both of which can be changed while somebody watches."""

import asyncio
import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import urlsplit

import inferometer as im
from inferometer.api.watch_state import RegimeChange
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import serve, start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

STEP_S = 40e-3
CONFIG = SchedulerConfig(num_blocks=4000, max_model_len=1024, max_num_seqs=64)


def plan(step_s=STEP_S, port=0, **config):
    return EmulatorPlan(
        model_name="m",
        fleet=lone_replica(replace(CONFIG, **config), linear_cost(launch_s=step_s)),
        mean_output_tokens=None,
        port=port,
    )


class Loop:
    """An event loop in a thread of its own, in which servers and their traffic live."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self):
        self.do(asyncio.sleep(0.5))  # connections are closed
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class Server:
    """An emulated server on a port of its own that can be stopped and started anew.

    In a process of its own it shows another start time after a restart, as real servers do.
    """

    def __init__(self, loop, traffic=None, *, has_own_process=False, **config):
        self._loop, self._config = loop, config
        self._own = ExitStack() if has_own_process else None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()
        self.traffic = Traffic(loop, self.url, **(traffic or {}))

    def stop(self):
        if self._own is None:
            self._loop.do(self._stop())
        else:
            self._own.close()

    def start(self, **changes):
        if self._own is None:
            self._loop.do(self._start(changes))
        else:
            self._own.enter_context(start(plan(port=self._port, **(self._config | changes))))

    def restart(self, **changes):
        self.stop()
        self.start(**changes)

    def close(self):
        self.traffic.stop()
        self.stop()

    async def _start(self, changes):
        self._over, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        made = plan(port=self._port, **(self._config | changes))
        self._serving = asyncio.create_task(serve(made, self._over, ready))
        await asyncio.wait({self._serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        assert ready.done()

    async def _stop(self):
        self._over.set()
        await self._serving


class Traffic:
    """Requests to one server: users who wait for their answers, and arrivals that do not."""

    def __init__(self, loop, url, *, n_users=2, n_tokens=20, is_alike=True):
        self.address = urlsplit(url)
        self.n_users, self.rate_per_s, self.n_tokens = n_users, 0.0, n_tokens
        self.is_alike = is_alike
        self._n, self._is_over = 0, False
        self._running = asyncio.run_coroutine_threadsafe(self._run(), loop.loop)

    def change(self, **changes):
        for name, value in changes.items():
            setattr(self, name, value)

    def stop(self):
        self._is_over = True
        self._running.result(30)

    async def _run(self):
        users, arrivals, came, at_s = set(), set(), 0.0, time.monotonic()
        while not self._is_over:
            users = {one for one in users if not one.done()}
            arrivals = {one for one in arrivals if not one.done()}
            while len(users) < self.n_users:
                users.add(asyncio.create_task(self._ask()))
            before_s, at_s = at_s, time.monotonic()
            came += self.rate_per_s * (at_s - before_s)
            while came >= 1:
                came -= 1
                arrivals.add(asyncio.create_task(self._ask()))
            await asyncio.sleep(0.02)
        for task in users | arrivals:
            task.cancel()
        await asyncio.gather(*users, *arrivals, return_exceptions=True)

    async def _ask(self):
        self._n += 1
        first = 0 if self.is_alike else self._n * 1000
        words = " ".join(f"w{first + i}" for i in range(120))
        # Answers differ in length, so that a batch does not end all at once.
        n_tokens = round(self.n_tokens * (0.5 + self._n * 0.618 % 1))
        body = json.dumps(
            {"model": "m", "prompt": words, "max_tokens": n_tokens, "ignore_eos": True}
        )
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(self.address.hostname, self.address.port)
            head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            try:
                writer.write((head + body).encode())
                answer = await reader.read(-1)
            finally:
                writer.close()
            assert not answer or answer.startswith(b"HTTP/1.1 200"), answer
            return
        await asyncio.sleep(0.2)


@contextmanager
def emulated(servers):
    """These servers, by name, in this process unless their configuration has ``has_own_process``.

    It may hold their ``traffic`` too.
    """
    loop, made = Loop(), {}
    try:
        for name, config in servers.items():
            made[name] = Server(loop, **config)
        yield made
    finally:
        for one in made.values():
            one.close()
        loop.close()


class Scene(NamedTuple):
    """A server whose regime is changed."""

    config: dict
    act: object
    condition: str
    has_begun: bool = True
    is_learned: bool = False
    """Is it judged by what was learned in the first minute?"""


UNIQUE = {"is_alike": False}
"""Prompts that share nothing: of 120 tokens, 8 blocks of the KV cache."""
SLOW_S = 0.2
"""Of a step: on a busy machine servers and users, who live in one process, stand still for a second
now and then; what is staged has to outlast that, else the queue is empty before anybody asks."""
SCENES = {
    "restarted": Scene({"has_own_process": True}, lambda one: one.restart(), "restarted"),
    "unreachable": Scene({}, lambda one: one.stop(), "unreachable"),
    "idle": Scene({}, lambda one: one.traffic.change(n_users=0), "idle"),
    "batch full": Scene(
        {"max_num_seqs": 4}, lambda one: one.traffic.change(n_users=32), "max_num_seqs_full"
    ),
    "overloaded": Scene(
        {"max_num_seqs": 16}, lambda one: one.traffic.change(rate_per_s=30.0), "overloaded"
    ),
    "KV cache full": Scene(
        {
            "num_blocks": 34,
            "max_model_len": 512,
            "step_s": SLOW_S,
            "traffic": UNIQUE | {"n_tokens": 5},
        },
        lambda one: one.traffic.change(n_users=24),
        "kv_full",
    ),
    "preempting": Scene(
        {"num_blocks": 60, "max_model_len": 512, "traffic": UNIQUE | {"n_tokens": 100}},
        lambda one: one.traffic.change(n_users=16),
        "preempting",
    ),
    "batch no longer full": Scene(
        {"max_num_seqs": 4, "traffic": {"n_users": 32}},
        lambda one: one.traffic.change(n_users=2),
        "max_num_seqs_full",
        has_begun=False,
    ),
    "slower by 1.3": Scene(
        {}, lambda one: one.restart(step_s=1.3 * STEP_S), "slower", is_learned=True
    ),
    "faster by 1.3": Scene(
        {}, lambda one: one.restart(step_s=STEP_S / 1.3), "faster", is_learned=True
    ),
    "prefix cache hits lost": Scene(
        {"enable_prefix_caching": True, "traffic": {"n_users": 4}},
        lambda one: one.traffic.change(is_alike=False),
        "cache_hits_lost",
        is_learned=True,
    ),
    "acceptance 0.9 to 0.4": Scene(
        {"num_speculative_tokens": 3, "acceptance_fraction": 0.9},
        lambda one: one.restart(acceptance_fraction=0.4),
        "acceptance_dropped",
        is_learned=True,
    ),
}
"""The twelve kinds of change, each on a server of its own."""


class Staged(NamedTuple):
    """What a watcher of the scenes said."""

    found_s: dict
    """From the change, once it is made, to the line that says it, by scene; None: not in time."""
    false_alarms: list
    """Lines before anything was changed that are true of no server."""
    other_lines: list
    """Lines afterwards that name neither the staged change nor what it brings with it."""


MOST_ACTING_S = 25.0
"""Until a change is made: a server that is started anew is there when its process is."""
BROUGHT = {
    "restarted": {"unreachable"},
    "overloaded": {"max_num_seqs_full"},
    "KV cache full": {"preempting", "overloaded"},
    "preempting": {"kv_full", "overloaded"},
    "slower by 1.3": {"restarted"},
    "faster by 1.3": {"restarted"},
    "acceptance 0.9 to 0.4": {"restarted"},
}


def staged(names, learning_s, found_s, *, ends_when_found=False):
    """Watch these scenes' servers, change them all after ``learning_s``, listen for ``found_s``.

    Lines that come later can only be others: who does not judge them need not wait for them.
    """
    heard, staged_s = [], {}

    def judged():
        return _judged([(at_s, by_url[one.url], one) for at_s, one in heard], staged_s, found_s)

    def listen(event):
        if isinstance(event, RegimeChange):
            heard.append((time.monotonic(), event))
            if (
                ends_when_found
                and len(staged_s) == len(names)
                and None not in judged().found_s.values()
            ):
                raise KeyboardInterrupt  # ends the watch in order

    def act(name, server):
        began_s = time.monotonic()
        SCENES[name].act(server)
        staged_s[name] = (began_s, time.monotonic())

    with emulated({name: SCENES[name].config for name in names}) as servers:
        by_url = {one.url: name for name, one in servers.items()}
        for_s = learning_s + found_s + MOST_ACTING_S
        watching = threading.Thread(
            target=im.watch,
            args=(list(by_url),),
            kwargs={"duration": for_s, "limit": False, "progress": listen},
        )
        watching.start()
        time.sleep(learning_s)
        acting = [threading.Thread(target=act, args=pair) for pair in servers.items()]
        for one in acting:
            one.start()  # a process takes seconds to start: the others do not wait for it
        for one in (*acting, watching):
            one.join(for_s + 30)
        assert not watching.is_alive()
    return judged()


def _judged(heard, staged_s, most_s):
    found, early, others = dict.fromkeys(staged_s), [], []
    for at_s, name, event in heard:
        scene, (began_s, done_s) = SCENES[name], staged_s[name]
        took_s = max(0.0, at_s - done_s)
        is_it = (event.condition, event.has_begun) == (scene.condition, scene.has_begun)
        if at_s < began_s:
            is_true = not scene.has_begun and event.condition == scene.condition
            early += [] if is_true else [f"{name}: {event.text}"]
        elif is_it and found[name] is None and took_s <= most_s:
            found[name] = round(took_s, 1)
        elif not is_it and event.condition not in BROUGHT.get(name, ()):
            others.append(f"{name}: {event.text}")
    return Staged(found, early, others)

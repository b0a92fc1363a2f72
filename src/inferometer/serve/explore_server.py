"""How does the explorer's page get its answers: over HTTP on loopback, newest state first?

One computation runs at a time, in parts: a coarse answer waits for the part that runs, never for
what refines an older state. Requests from pages of other origins, and those that name another host
(DNS rebinding), are refused.
"""

import heapq
import itertools
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from inferometer.api import explore, explore_page, explore_states, explored as exploring, progress
from inferometer.errors import InferometerError, SpecError
from inferometer.inputs.foreign_bytes import Door
from inferometer.measure.executors.local import Inline
from inferometer.records.run_folder import make_folder, replace_file
from inferometer.records.slot_timeline import CellState
from inferometer.report import html
from inferometer.report.request_tables import STATE_LETTERS

T = TypeVar("T")
R = TypeVar("R")
HOST: Final = "127.0.0.1"
_MOST_BYTES: Final = 64 * 1024
_TIMEOUT_S: Final = 30
_DOOR: Final = Door(noun="question", allowed="an object with query, stage, tab and turn")
_STAGES: Final[Mapping[str, Callable[..., exploring.Explored]]] = {
    "coarse": exploring.coarse,
    "sketch": exploring.sketched,
    "refined": exploring.refined,
}


class Question(msgspec.Struct, frozen=True):
    """A page's request: a state, an accuracy, and its number in the tab."""

    query: str
    stage: str
    tab: str = ""
    turn: int = 0


class SupersededError(Exception):
    """The tab requested something newer."""


class Turns:
    """Orders computations: one at a time, coarse answers before refinements."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = list[tuple[int, int]]()
        self._numbers = itertools.count()
        self._is_taken = False

    @contextmanager
    def of(self, rank: int) -> Generator[None]:
        """Wait for the turn of this rank; the lowest goes first."""
        place = (rank, next(self._numbers))
        with self._changed:
            heapq.heappush(self._waiting, place)
            while self._is_taken or self._waiting[0] != place:
                self._changed.wait()
            heapq.heappop(self._waiting)
            self._is_taken = True
        try:
            yield
        finally:
            with self._changed:
                self._is_taken = False
                self._changed.notify_all()


class InTurns:
    """Computes the parts of one answer in turns, until the tab requests something newer."""

    def __init__(self, turns: Turns, rank: int, is_wanted: Callable[[], bool]) -> None:
        self._turns, self._rank, self._is_wanted = turns, rank, is_wanted

    def map(self, function: Callable[[T], R], parts: Iterable[T]) -> tuple[R, ...]:
        """Results of the function for each part, in their order."""
        answers = list[R]()
        for part in parts:
            if not self._is_wanted():
                raise SupersededError
            with self._turns.of(self._rank):
                answers.append(function(part))
        return tuple(answers)


class Answers:
    """Answers to all tabs, cached."""

    def __init__(
        self, launched: explore.Explore, measured: tuple[explore_page.Measured, ...]
    ) -> None:
        self._launched, self._measured = launched, measured
        self._turns = Turns()
        self._newest = dict[str, int]()

    def answer(self, question: Question) -> dict[str, Any]:
        """The parts of the page for this state, or the problem with it."""
        self._newest[question.tab] = max(question.turn, self._newest.get(question.tab, 0))
        stage = _STAGES.get(question.stage)
        if stage is None:
            raise SpecError(
                f"{question.stage!r} is no stage", where="stage", allowed=", ".join(_STAGES)
            )
        rank = list(_STAGES).index(question.stage)
        executor = InTurns(
            self._turns, rank, lambda: self._newest.get(question.tab, 0) <= question.turn
        )
        try:
            state = explore.question_at(explore.values_of(question.query), self._launched)
            return answer_parts(question.stage, stage(state, executor), self._measured)
        except SupersededError:
            return {"superseded": True}
        except InferometerError as error:
            return {"problem": str(error), "query": question.query}


def answer_parts(
    stage: str, explored: exploring.Explored, measured: tuple[explore_page.Measured, ...]
) -> dict[str, Any]:
    """Data of an answer for the page's script."""
    found = explore_page.shown(explored, measured)
    steps = [
        {
            "name": name,
            "first": timeline.first_step,
            "slots": [
                "".join(STATE_LETTERS[CellState(state)] for state in row)
                for row in timeline.states.tolist()
            ],
        }
        for name, timeline in explored.timelines
    ]
    return {
        "stage": stage,
        "query": found.query,
        "command": found.command,
        "simulate_command": found.simulate_command,
        "numbers": explore_page.numbers_of(found.page),
        "steps": steps,
        **html.fragments(found.page, found.charts),
    }


def start_of(launched: explore.Explore) -> dict[str, Any]:
    """Data for the page's script before the first answer."""
    return {
        "query": explore.query_of(explore.state_of(launched)),
        "lacking": explore.lacking(),
    }


@contextmanager
def serving(
    launched: explore.Explore, measured: tuple[explore_page.Measured, ...] = ()
) -> Generator[ThreadingHTTPServer]:
    """The server, which listens; its ``serve_forever`` answers.

    Raises
    ------
    SpecError
        The port is taken.
    """
    answers = Answers(launched, measured)
    page = _explorer_page(start_of(launched), is_file=False).encode()
    assets = {
        f"/{name}": (kind, html.resource(name).encode()) for name, kind in html.ASSETS.items()
    }
    assets["/"] = ("text/html", page)

    class Handler(_Handler):
        pages = assets
        give = staticmethod(answers.answer)

    try:
        server = ThreadingHTTPServer((HOST, launched.port), Handler)
    except OSError as problem:
        raise SpecError(
            f"cannot listen: {problem}",
            where="--port",
            try_="--port 0, which takes one that is free",
        ) from problem
    server.daemon_threads = True
    try:
        yield server
    finally:
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """One connection of a browser."""

    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_S
    disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its head
    server_version, sys_version = "inferometer", ""
    pages: Mapping[str, tuple[str, bytes]]
    give: Callable[[Question], dict[str, Any]]

    def do_GET(self) -> None:
        """Answer with the page, its style or a script."""
        if not self._is_from_here():
            return
        found = self.pages.get(urlsplit(self.path).path)
        if found is None:
            self._reply(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page\n")
            return
        kind, body = found
        self._reply(HTTPStatus.OK, kind, body)

    def do_POST(self) -> None:
        """Answer a question of the page."""
        if not self._is_from_here():
            return
        length = self.headers.get("content-length", "")
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.path != "/answer" or kind != "application/json" or not length.isdecimal():
            self._refuse(HTTPStatus.BAD_REQUEST, "POST /answer takes JSON")
            return
        if int(length) > _MOST_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a state is shorter than 64 KiB")
            return
        try:
            question = _DOOR.json(self.rfile.read(int(length)), Question, where="POST /answer")
            body = msgspec.json.encode(self.give(question))
        except InferometerError as problem:
            self._refuse(HTTPStatus.BAD_REQUEST, str(problem))
            return
        self._reply(HTTPStatus.OK, "application/json", body)

    def _is_from_here(self) -> bool:
        """Refuse another host's name, and pages of other origins; browsers send both."""
        port = self.connection.getsockname()[1]
        hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
        if self.headers.get("host", "").lower() not in hosts:
            self._refuse(
                HTTPStatus.MISDIRECTED_REQUEST, "this server answers for its own host alone"
            )
            return False
        origin = self.headers.get("origin")
        site = self.headers.get("sec-fetch-site", "same-origin")
        is_own = origin is None or origin.lower() in {f"http://{host}" for host in hosts}
        is_page = self.command == "GET" and self.headers.get("sec-fetch-mode") == "navigate"
        if not is_own or (site not in {"same-origin", "none"} and not is_page):
            self._refuse(HTTPStatus.FORBIDDEN, "pages of other origins get no answer")
            return False
        return True

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self.close_connection = True
        self._reply(status, "text/plain", f"{text}\n".encode())

    def _reply(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        charset = "; charset=utf-8" if kind.startswith("text/") else ""
        for name, value in (
            ("content-type", f"{kind}{charset}"),
            ("content-length", str(len(body))),
            ("content-security-policy", html.POLICY),
            ("x-content-type-options", "nosniff"),
            ("cross-origin-resource-policy", "same-origin"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
        ):
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print no line for each request, as the base class would."""


# How is the explorer written as one file, for people without Python?


def write_file(started: explore_states.Started, path: Path) -> int:
    """Write the page with answers of states around its start; returns their number.

    Raises
    ------
    SpecError, ModelError
        The first state cannot be answered.
    RecordError
        The file cannot be written.
    """
    states = tuple(explore_states.around(started.question))
    executor = Inline(lambda _done, _all: None)
    grid = list[object]()
    for state in states:
        grid.append(answer_parts("refined", exploring.refined(state, executor), started.measured))
        progress.talk(progress.PartsDone("states", len(grid), len(states)))
    start = {**start_of(started.question), "grid": grid}
    text = _explorer_page(start, is_file=True)
    make_folder(path.parent)
    replace_file(path, text.encode())
    return len(states)


def _explorer_page(start: dict[str, Any], *, is_file: bool) -> str:
    return html.render_explorer(
        start,
        explore.choices(),
        explore_page.CHAPTERS,
        explore_page.CHART_IDS,
        is_file=is_file,
    )

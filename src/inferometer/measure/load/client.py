"""How does one process send its share of the requests, each at its instant, and keep what came back?

Instants inside are those of CLOCK_MONOTONIC; in frames those of the run. Nothing that happens on
the wire moves the schedule: a request that is due is sent at once, and how late it was shows in its
frame.
"""

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs.plans import most_in_flight, texts_of
from inferometer.inputs.spans import SpanIds, span_ids
from inferometer.inputs.workload.plan import NONE
from inferometer.measure.load import answers, bodies, connections, messages, schedule, target
from inferometer.measure.load.answers import Answer
from inferometer.records import run_folder
from inferometer.records.raw_log import (
    MAGIC,
    EndFrame,
    Frame,
    LagFrame,
    RequestFrame,
    SessionFrame,
    encode_frame,
    int32s,
    int64s,
)
from inferometer.units import NS_PER_S, ns_from_s

# How do frames get to the disk without holding up the loop?
# A thread writes what has gathered, four times a second.


_EVERY_S: Final = 0.25
_MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Beyond it the loop waits for the disk, and its lag shows."""


class RawLogWriter:
    """Appends frames to one raw log.

    What is older than a quarter of a second survives ``kill -9``.
    """

    def __init__(self, path: Path) -> None:
        run_folder.make_folder(path.parent)
        try:
            self._descriptor = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise run_folder.cannot_write(path, error) from error
        self._path = path
        self._waiting: list[bytes] = [MAGIC]
        self._n_waiting_bytes = 0
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._error: OSError | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._write_often, name="raw log", daemon=True)
        self._thread.start()

    def append(self, frame: Frame) -> None:
        """Keep a frame.

        Raises
        ------
        RecordError
            An earlier frame could not be written.
        """
        if self._error is not None:
            raise self._failure(self._error)
        data = encode_frame(frame)
        with self._lock:
            self._waiting.append(data)
            self._n_waiting_bytes += len(data)
        if self._n_waiting_bytes > _MOST_WAITING_BYTES:
            self._write()

    def close(self) -> None:
        """Write the rest, and flush it to disk.

        Raises
        ------
        RecordError
            The log could not be written.
        """
        self._is_closing.set()
        self._thread.join()
        self._write()
        try:
            if self._error is None:
                os.fsync(self._descriptor)
        except OSError as error:
            self._error = error
        os.close(self._descriptor)
        if self._error is not None:
            raise self._failure(self._error)

    def _write_often(self) -> None:
        while not self._is_closing.wait(_EVERY_S):
            self._write()

    def _write(self) -> None:
        with self._writing:
            with self._lock:
                frames, self._waiting = self._waiting, []
                self._n_waiting_bytes = 0
            view = memoryview(b"".join(frames))
            try:
                while view and self._error is None:
                    view = view[os.write(self._descriptor, view) :]
            except OSError as error:
                self._error = error

    def _failure(self, error: OSError) -> RecordError:
        return run_folder.cannot_write(self._path, error)


_BRIEF_DRAIN_S: Final = 2.0
"""For what is in flight when somebody stops the run."""
_TOKEN_BYTES: Final = 16 * 1024
"""An event with the twenty likeliest tokens takes some 2 KiB."""
_ERROR_KEY: Final = b'"error"'
_SWEEP_EVERY: Final = 10
_REPORT_EVERY: Final = 50


class LoadClient:
    """One process's share of a load test."""

    def __init__(
        self,
        job: messages.Job,
        writer: RawLogWriter,
        send_report: Callable[[messages.Report], None],
        *,
        scheduled: str = "",
    ) -> None:
        self._job = job
        self._plan = messages.unpacked_plan(job.columns)
        self._writer = writer
        self._send_report = send_report
        self._scheduled = scheduled
        place = target.target_of(job.load)
        self._bodies = bodies.body_writer(job.load, self._plan, job.id_prefix, job.session_index)
        self._rows: list[int] = int32s(job.rows).tolist()
        head = target.request_head(place, job.secrets, is_streaming=job.load.is_streaming)
        self.ahead = bodies.MessagesAhead(
            self._bodies, head, job.id_prefix, self._rows, span_ids=_span_ids(job.tracing)
        )
        self._wanted_type = answers.STREAM_TYPE if job.load.is_streaming else answers.JSON_TYPE
        self._loop = asyncio.get_running_loop()
        self._agenda = schedule.Agenda(self._loop)
        self._pool = connections.ConnectionPool(
            place,
            job.secrets,
            job.addresses,
            connect_s=job.limits.connect_s,
            most=most_in_flight(job.load, job.n_processes, job.process_index),
            on_over=self._on_over,
        )
        self._hider = target.Hider(job.secrets)
        # A server may repeat the body in an error. In good answers the same texts may be keys of
        # the protocol.
        body_texts = [text for _, value in job.load.extra_body for text in texts_of(value)]
        self._error_hider = target.Hider(job.secrets, body_texts)
        self._owners = AnswerOwners(job.id_prefix)
        self._pulse = OwnPulse(job.process_index)
        self._in_flight: dict[int, connections.Exchange] = {}
        total_s = job.load.timeout_s
        self._time_limits = connections.TimeLimits(
            total_ns=ns_from_s(total_s),
            head_ns=ns_from_s(job.limits.head_s or total_s),
            read_ns=ns_from_s(job.limits.read_s or total_s),
        )
        self._alarms: dict[int, asyncio.TimerHandle] = {}
        """One for each request in flight: none is moved as an answer's bytes come in."""
        self._n_awaited = dict(job.n_awaited)
        self._n_followers_due = 0
        self._next = 0
        self._is_stopped = False
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._tally = messages.Tally()
        self._origin_ns = 0

    async def run(self, origin_ns: int) -> messages.Done:
        """Send everything that is due from instant 0 of the run at ``origin_ns`` on, and wait for the ends.

        Raises
        ------
        RecordError
            The raw log cannot be written.
        """
        job = self._job
        self._origin_ns = origin_ns
        self._due_ns: list[int] = (int64s(job.due_ns) + np.int64(origin_ns)).tolist()
        cpu_s = messages.cpu_s()
        self._writer.append(
            SessionFrame(
                session_index=job.session_index,
                process_index=job.process_index,
                n_processes=job.n_processes,
                begins_ns=job.begins_ns,
                origin_monotonic_ns=origin_ns,
                started_utc=job.started_utc,
                scheduled=self._scheduled,
                origin_unix_ns=time.time_ns() - (time.monotonic_ns() - origin_ns),
            )
        )
        self._agenda.add(origin_ns + job.begins_ns, self._on_pulse)
        if self._rows:
            self._agenda.add(self._due_ns[0], self._on_fixed)
        if job.cutoff_ns is not None:
            self._agenda.add(
                origin_ns + job.cutoff_ns + round(job.load.drain_s * NS_PER_S), self._on_drained
            )
        self._end_if_over()
        try:
            await self._over
        finally:
            self._agenda.close()
            await self._pool.close()
        return self._ended(messages.cpu_s() - cpu_s)

    def stop(self) -> None:
        """Send nothing more; requests in flight may end within seconds."""
        if not self._is_stopped and not self._over.done():
            self._is_stopped = True
            self._agenda.add(
                time.monotonic_ns() + round(_BRIEF_DRAIN_S * NS_PER_S), self._on_drained
            )
            self._end_if_over()

    def fail(self, error: BaseException) -> None:
        """End the run with this error."""
        if not self._over.done():
            self._over.set_exception(error)

    # The agenda calls these with the instant at which they were due.

    def _on_fixed(self, due_ns: int) -> None:
        """Send the next request with an instant of its own."""
        if self._is_stopped:
            return
        row = self._rows[self._next]
        self._next += 1
        if self._next < len(self._rows):
            self._agenda.add(self._due_ns[self._next], self._on_fixed)
        self.ahead.skip_to(self._next)
        self._send(row, due_ns)

    def _on_follower(self, row: int, due_ns: int) -> None:
        self._n_followers_due -= 1
        if not self._is_stopped:
            self._send(row, due_ns)
        self._end_if_over()

    def _on_impatience(self, exchange: connections.Exchange, _: int) -> None:
        self._give_up(exchange, "aborted", "")

    def _on_drained(self, _: int) -> None:
        error = "interrupted" if self._is_stopped else "drain_over"
        for exchange in tuple(self._in_flight.values()):
            self._give_up(exchange, error, "")
        self._n_followers_due = 0
        self._finish()

    def _on_pulse(self, due_ns: int) -> None:
        """Every 10 ms: measure this call's delay; sometimes do the periodic checks."""
        now_ns = time.monotonic_ns()
        self._agenda.add(self._pulse.beat(due_ns, now_ns, len(self._in_flight)), self._on_pulse)
        if self._pulse.n_beats % _SWEEP_EVERY == 0:
            self._sweep()
        if self._pulse.n_beats % _REPORT_EVERY == 0:
            self._report()
        if self._pulse.is_full:
            self._keep(self._pulse.taken(self._origin_ns))
        self.ahead.prepare(self._agenda.next_ns())

    # One request's way.

    def _send(self, row: int, due_ns: int) -> None:
        exchange = connections.Exchange(
            row,
            due_ns,
            self.ahead.take(row),
            answers.Answer(self._answer_limits(row), self._wanted_type),
        )
        self._in_flight[row] = exchange
        self._tally.n_sent += 1
        patience_ns = int(self._plan.abort_after_ns[row])
        if patience_ns != NONE:
            self._agenda.add(due_ns + patience_ns, partial(self._on_impatience, exchange))
        self._alarms[row] = self._loop.call_later(
            self._time_limits.shortest_ns / NS_PER_S, self._on_limit, exchange
        )
        self._pool.send(exchange)

    def _answer_limits(self, row: int) -> answers.AnswerLimits:
        limits = self._job.limits
        usual_bytes = bodies.LEAST_ANSWER_BYTES + _TOKEN_BYTES * max(
            self._bodies.asked_tokens(row), 0
        )
        return answers.AnswerLimits(
            head_bytes=limits.head_bytes, body_bytes=limits.body_bytes or usual_bytes
        )

    def _give_up(self, exchange: connections.Exchange, error: str, detail: str) -> None:
        if exchange.answer.is_over:
            return
        exchange.answer.give_up(error, detail)
        connection, exchange.connection = exchange.connection, None
        if connection is not None:
            connection.abort()
        self._on_over(exchange, time.monotonic_ns())

    def _on_over(self, exchange: connections.Exchange, now_ns: int) -> None:
        """Store an ended request, and send those that waited for it."""
        row = exchange.request_index
        if self._in_flight.pop(row, None) is None:
            return
        self._alarms.pop(row).cancel()
        self._disown(exchange)
        self._keep(self._frame(exchange, now_ns))
        self._tally.count(exchange)
        exchange.message = b""
        exchange.answer.parts.clear()
        for waiting in self._job.waiting_for.get(row, ()):
            self._n_awaited[waiting] -= 1
            if not self._n_awaited[waiting] and not self._is_stopped:
                self._schedule_follower(waiting, now_ns + int(self._plan.think_ns[waiting]))
        self._end_if_over()

    def _disown(self, exchange: connections.Exchange) -> None:
        """Fail an answer that names another request as its own."""
        other = (
            None
            if exchange.answer.error
            else self._owners.other_owner(exchange.answer, exchange.request_index)
        )
        if other is not None:
            exchange.answer.error, exchange.answer.detail = (
                "foreign_answer",
                f"it says that it is request {other}'s",
            )

    def _schedule_follower(self, row: int, due_ns: int) -> None:
        cutoff_ns = self._job.cutoff_ns
        if cutoff_ns is None or due_ns - self._origin_ns <= cutoff_ns:
            self._n_followers_due += 1
            self._agenda.add(due_ns, partial(self._on_follower, row))

    def _frame(self, exchange: connections.Exchange, now_ns: int) -> RequestFrame:
        answer, origin_ns, body = exchange.answer, self._origin_ns, b"".join(exchange.answer.parts)
        hider = self._error_hider if answer.error or _ERROR_KEY in body else self._hider
        return RequestFrame(
            request_index=exchange.request_index,
            process_index=self._job.process_index,
            connection_index=exchange.connection_index,
            is_reused=exchange.is_reused,
            intended_ns=exchange.intended_ns - origin_ns,
            sent_ns=_since(exchange.sent_ns, origin_ns),
            connected_ns=_since(exchange.connected_ns, origin_ns),
            head_ns=_since(answer.head_ns, origin_ns),
            finished_ns=now_ns - origin_ns,
            http_status=answer.status or None,
            error=answer.error,
            detail=hider.text(answer.detail),
            content_type=hider.text(answer.content_type),
            retry_after=hider.text(answer.retry_after),
            asked_prompt_tokens=int(self._plan.prompt_tokens[exchange.request_index]),
            asked_output_tokens=self._bodies.asked_tokens(exchange.request_index),
            sent_bytes=0 if exchange.sent_ns is None else len(exchange.message),
            received_bytes=answer.received_bytes,
            read_ns=(np.array(answer.read_ns, "<i8") - origin_ns).tobytes(),
            read_bytes=np.array(answer.read_bytes, "<i4").tobytes(),
            body=hider.data(body),
        )

    def _keep(self, frame: Frame) -> None:
        try:
            self._writer.append(frame)
        except RecordError as error:
            self.fail(error)

    def _on_limit(self, exchange: connections.Exchange) -> None:
        """Cancel a request whose time is over; otherwise look again when it may be."""
        now_ns = time.monotonic_ns()
        passed = self._time_limits.passed(exchange, now_ns)
        if passed is not None:
            self._give_up(exchange, *passed)
            return
        wait_ns = self._time_limits.next_ns(exchange, now_ns) - now_ns
        self._alarms[exchange.request_index] = self._loop.call_later(
            wait_ns / NS_PER_S, self._on_limit, exchange
        )

    def _sweep(self) -> None:
        """Cancel requests once all answers in flight take too much memory."""
        n_kept_bytes = 0
        for exchange in tuple(self._in_flight.values()):
            n_kept_bytes += exchange.answer.received_bytes
            if n_kept_bytes > self._job.limits.kept_bytes:
                self._give_up(
                    exchange,
                    "body_too_long",
                    "all answers in flight together went past"
                    f" {self._job.limits.kept_bytes:,} bytes",
                )

    # The end.

    def _end_if_over(self) -> None:
        nothing_due = self._is_stopped or (
            self._next == len(self._rows) and not self._n_followers_due
        )
        if nothing_due and not self._in_flight:
            self._finish()

    def _finish(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _ended(self, cpu_s: float) -> messages.Done:
        if self._pulse.n_waiting:
            self._writer.append(self._pulse.taken(self._origin_ns))
        self._report()
        done = messages.Done(
            process_index=self._job.process_index,
            n_sent=self._tally.n_sent,
            n_unsent=len(self._rows) - self._next,
            n_failed=self._tally.n_failed,
            cpu_s=cpu_s,
            is_interrupted=self._is_stopped,
        )
        self._writer.append(
            EndFrame(
                process_index=done.process_index,
                ended_ns=time.monotonic_ns() - self._origin_ns,
                is_interrupted=done.is_interrupted,
                n_unsent=done.n_unsent,
                cpu_s=cpu_s,
            )
        )
        return done

    def _report(self) -> None:
        n_waiting = self._pool.n_waiting  # at the cap: due, and not sent
        n_in_flight = len(self._in_flight) - n_waiting
        self._send_report(
            self._tally.report(
                self._job.process_index,
                n_in_flight,
                self._pulse.worst_since_last_ns(),
                n_waiting=n_waiting,
            )
        )


def _span_ids(tracing: messages.Tracing | None) -> SpanIds | None:
    if tracing is None:
        return None
    return span_ids(tracing.run_name, sample_fraction=tracing.sample_fraction)


def _since(instant_ns: int | None, origin_ns: int) -> int | None:
    return None if instant_ns is None else instant_ns - origin_ns


# How late is the client itself?
# A beat is due every 10 ms on a grid that is never moved; each says by how much it came late.


PERIOD_NS: Final = 10_000_000
_FULL: Final = 50
"""Half a second's worth: then they go to the raw log."""


class OwnPulse:
    """The beats of one process.

    After a standstill every beat that was missed is counted, as late as it was.
    """

    def __init__(self, process_index: int) -> None:
        self._process_index = process_index
        self._due_ns: list[int] = []
        self._lag_ns: list[int] = []
        self._n_in_flight: list[int] = []
        self._worst_ns = 0
        self.n_beats = 0

    @property
    def n_waiting(self) -> int:
        """Beats not yet in the raw log."""
        return len(self._due_ns)

    @property
    def is_full(self) -> bool:
        """Is it time to write the delays to the log?"""
        return len(self._due_ns) >= _FULL

    def beat(self, due_ns: int, now_ns: int, n_in_flight: int) -> int:
        """Count a beat; returns when the next one is due."""
        self._due_ns.append(due_ns)
        self._lag_ns.append(now_ns - due_ns)
        self._n_in_flight.append(n_in_flight)
        self._worst_ns = max(self._worst_ns, now_ns - due_ns)
        self.n_beats += 1
        return due_ns + PERIOD_NS

    def worst_since_last_ns(self) -> int:
        """The longest delay since the last call."""
        worst_ns, self._worst_ns = self._worst_ns, 0
        return worst_ns

    def taken(self, origin_ns: int) -> LagFrame:
        """The waiting beats as a frame, their instants since ``origin_ns``."""
        frame = LagFrame(
            process_index=self._process_index,
            due_ns=(np.array(self._due_ns, "<i8") - origin_ns).tobytes(),
            lag_ns=np.array(self._lag_ns, "<i8").tobytes(),
            n_in_flight=np.array(self._n_in_flight, "<i4").tobytes(),
        )
        self._due_ns.clear()
        self._lag_ns.clear()
        self._n_in_flight.clear()
        return frame


# Whose answer is it.
# That of the request it came for, or, where something on the way mixed connections up, another
# one's?
# A server or proxy that keeps ``X-Request-Id`` says it in that header; vLLM makes the answer's
# ``id`` of it.


_IN_BODY: Final = r'"id" ?: ?"[^"]{0,40}?%s-(\d+)'


class AnswerOwners:
    """Maps ids in answers to the requests of one run."""

    def __init__(self, id_prefix: str) -> None:
        self._in_head = re.compile(re.escape(id_prefix) + r"-(\d+)")
        self._in_body = re.compile((_IN_BODY % re.escape(id_prefix)).encode())

    def other_owner(self, answer: Answer, row: int) -> int | None:
        """The request that the answer names as its own; None where it is ``row`` or unnamed."""
        found = self._in_head.fullmatch(answer.request_id) or (
            self._in_body.search(answer.parts[0]) if answer.parts else None
        )
        number = None if found is None else int(found[1])
        return None if number == row else number

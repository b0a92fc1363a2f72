"""A client's request to the emulator: its engine requests, and its reply with faults."""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from inferometer.inputs.spans import TraceParent, traceparent_of
from inferometer.records.types import ABSENT
from inferometer.serve import emulator_pages, emulator_plan
from inferometer.serve.emission_log import EmissionKind
from inferometer.serve.emulator_pages import (
    CHAT_PATH,
    DONE,
    Delta,
    End,
    Usage,
    Wording,
    error_event,
)
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_requests import (
    Limits,
    ParsedRequest,
    read_chat,
    read_completion,
)
from inferometer.serve.emulator_words import (
    Answer,
    Tokenizer,
    content_ids,
    draw_answer,
    stopped,
)
from inferometer.serve.http_line import HttpRequest, Line
from inferometer.simulate.live import LiveRequest
from inferometer.simulate.outcome import Status
from inferometer.units import NS_PER_S, s_from_ns

Note = Callable[[int, EmissionKind, int, int, int], None]
"""Number, kind, tokens, due, written: what the emission log takes."""
CLASS_HEADER: Final = "x-gateway-inference-objective"
TENANT_HEADER: Final = "x-gateway-inference-fairness-id"
"""Header of the Gateway API Inference Extension."""


class _Piece(NamedTuple):
    data: bytes
    kind: EmissionKind
    n_tokens: int
    due_ns: int
    is_last: bool


class Choice:
    """One answer (of ``n``) to a request, with its engine request and the tokens sent.

    ``echo``: the prompt's text, which is sent before the answer where the request wants it.
    """

    __slots__ = (
        "answer",
        "echo",
        "first_ns",
        "index",
        "is_over",
        "last_ns",
        "n_due",
        "n_said",
        "request",
    )

    def __init__(
        self, index: int, answer: Answer, request: LiveRequest, echo: tuple[str, ...]
    ) -> None:
        self.index = index
        self.answer = answer
        self.request = request
        self.echo = echo
        self.n_due = 0
        self.n_said = 0
        self.first_ns = self.last_ns = ABSENT
        """When its first and its latest token were due."""
        self.is_over = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A client's request, its requests in the engine, and all that the reply needs."""

    number: int
    client_id: str
    reply_id: str
    path: str
    accepted_ns: int
    parsed: ParsedRequest
    choices: tuple[Choice, ...]
    """In order of prompts, those of one prompt together."""
    faults: emulator_plan.Faults
    wording: Wording
    likelihoods: emulator_pages.Likelihoods | None
    """Writes logprobs; None where the request wants none."""
    traced_by: TraceParent | None
    """The client's trace span (``traceparent``); None where it sent none."""

    @property
    def usage(self) -> Usage:
        """Token counts of all choices so far; the prompt counts once."""
        firsts = [choice.request for choice in self.choices[:: self.parsed.n_choices]]
        return Usage(
            sum(request.num_prompt_tokens for request in firsts),
            sum(choice.n_due for choice in self.choices),
            sum(request.num_cached_tokens for request in firsts),
        )


class Exchange:
    """A request and its reply."""

    def __init__(self, served: Served, line: Line, note: Note) -> None:
        self.served = served
        self.line = line
        self.is_over = False
        """Nothing more will be sent."""
        self._note = note
        self._has_struck = False
        self._held: list[_Piece] | None = None

    @property
    def is_answered(self) -> bool:
        """Has each choice its last token?"""
        return all(choice.is_over for choice in self.served.choices)

    def open(self, due_ns: int) -> None:
        """Send the headers of a stream, as vLLM does before there is a token."""
        strike = self.served.faults.strike
        if strike is not None and strike.kind == "slow-headers":
            self._hold(strike.hold_ns)
        if self.served.parsed.is_streaming:
            self._emit(_Piece(b"", EmissionKind.HEADERS, 0, due_ns, is_last=False))

    def deliver(self, choice: Choice, n_tokens: int, due_ns: int) -> None:
        """Send new tokens of a choice; its request's status says whether they are the last."""
        if n_tokens:
            choice.last_ns = due_ns
            if not choice.n_due:
                choice.first_ns = due_ns
        choice.n_due += n_tokens
        choice.is_over = choice.request.status.is_finished
        if self.is_over:
            return
        if self.served.parsed.is_streaming:
            if (
                choice.is_over
                or choice.n_due - choice.n_said >= self.served.faults.tokens_per_chunk
            ):
                self._say(choice, due_ns)
        elif self.is_answered:
            self._reply(due_ns)

    def fail(self, message: str, status: int, due_ns: int) -> None:
        """Answer with an error: the engine refused the request."""
        if self.is_over:
            return
        if self.served.parsed.is_streaming:
            data = error_event(message, "ServiceUnavailableError", status) + DONE
            self._emit(_Piece(data, EmissionKind.END, 0, due_ns, is_last=True))
        else:
            body = (
                error_event(message, "ServiceUnavailableError", status)
                .removeprefix(b"data: ")
                .strip()
            )
            self.is_over = True
            self._note(
                self.served.number, EmissionKind.END, 0, due_ns, self.line.reply(status, body)
            )

    def _say(self, choice: Choice, due_ns: int) -> None:
        """Send all due tokens of a choice in one event, with the finish reason after the last one."""
        served, first = self.served, choice.n_said
        choice.n_said, is_end = choice.n_due, self.is_answered
        delta = self._delta(choice, first)
        usage = served.usage if served.parsed.has_continuous_usage else None
        event = (
            served.wording.opening(choice.index, usage and usage._replace(output_tokens=0))
            if first == 0
            else b""
        )
        event += (
            served.wording.last(delta, _end(choice), usage)
            if choice.is_over
            else served.wording.tokens(delta, usage)
        )
        piece = _Piece(event, EmissionKind.TOKENS, choice.n_said - first, due_ns, is_last=is_end)
        if self._strikes(is_end=is_end):
            struck = self._struck(piece)
            if struck is None:
                return
            piece = struck
        if is_end:
            piece = piece._replace(data=piece.data + self._closing())
        self._emit(piece)

    def _reply(self, due_ns: int) -> None:
        """Send the reply that is no stream."""
        served = self.served
        body = served.wording.whole(
            [(self._delta(choice, 0), _end(choice)) for choice in served.choices],
            self._usage_to_send(),
        )
        piece = _Piece(body, EmissionKind.TOKENS, served.usage.output_tokens, due_ns, is_last=True)
        if self._strikes(is_end=True):
            struck = self._struck(piece)
            if struck is None:
                return
            piece = struck
        self._emit(piece)

    def _delta(self, choice: Choice, first: int) -> Delta:
        """Text and logprobs of a choice's tokens from ``first`` on, with the prompt if echoed."""
        answer, likelihoods = choice.answer, self.served.likelihoods
        echo = choice.echo if first == 0 else ()
        text = "".join(echo) + answer.text(first, choice.n_due)
        if likelihoods is None:
            return Delta(choice.index, text)
        tokens = [*echo, *(answer.text(i, i + 1) for i in range(first, choice.n_due))]
        if self.served.parsed.is_chat:
            return Delta(choice.index, text, likelihoods.of_chat(tokens))
        n_before = (
            0 if echo or first == 0 else len("".join(choice.echo)) + len(answer.text(0, first))
        )
        return Delta(
            choice.index,
            text,
            likelihoods.of_completion(tokens, n_chars_before=n_before, is_from_start=bool(echo)),
        )

    def _usage_to_send(self) -> Usage | None:
        """Token counts of the reply; wrong ones where a fault wants that."""
        usage, strike = self.served.usage, self.served.faults.strike
        if strike is not None and strike.kind == "no-usage":
            return None
        wrong = strike.count if strike is not None and strike.kind == "wrong-usage" else 0
        return usage._replace(output_tokens=usage.output_tokens + wrong)

    def _closing(self) -> bytes:
        strike = self.served.faults.strike
        usage = self._usage_to_send() if self.served.parsed.includes_usage else None
        usage_event = b"" if usage is None else self.served.wording.usage(usage)
        return (
            usage_event
            if strike is not None and strike.kind == "missing-done"
            else usage_event + DONE
        )

    def _strikes(self, *, is_end: bool) -> bool:
        """Does this request's fault apply to this event?"""
        strike = self.served.faults.strike
        return (
            strike is not None
            and not self._has_struck
            and (
                is_end or sum(choice.n_said for choice in self.served.choices) > strike.after_tokens
            )
        )

    def _struck(self, piece: _Piece) -> _Piece | None:
        """The event as the fault changes it; None where the fault ended the stream."""
        strike = self.served.faults.strike
        if strike is None:
            return piece
        self._has_struck = strike.kind not in _LASTING
        if strike.kind in _CUTTING:
            self._cut(strike, piece)
            return None
        if strike.kind == "stall":
            self._hold(strike.hold_ns)
        elif strike.kind == "split-writes" and self.served.parsed.is_streaming:
            half = len(piece.data) // 2
            self._emit(piece._replace(data=piece.data[:half], n_tokens=0, is_last=False))
            return piece._replace(data=piece.data[half:])
        return piece._replace(data=self._spoiled(strike, piece.data))

    def _spoiled(self, strike: emulator_plan.FaultRule, data: bytes) -> bytes:
        if strike.kind == "malformed-json":
            return data.replace(b'"choices":[', b'"choices":[[,', 1)
        if strike.kind == "invalid-utf8":
            return data.replace(b'" ', b'"\xff\xfe ', 1)
        if strike.kind == "huge-chunk" and self.served.parsed.is_streaming:
            return self.served.wording.tokens(Delta(0, " " + "x" * strike.size_bytes), None) + data
        if strike.kind == "comments" and self.served.parsed.is_streaming:
            return b": keep-alive\n\n" + data
        return data

    def _cut(self, strike: emulator_plan.FaultRule, piece: _Piece) -> None:
        """Break the reply off, as the fault wants it."""
        if strike.kind == "error-event" and self.served.parsed.is_streaming:
            data = (
                error_event("the emulator was configured to fail", "InternalServerError", 500)
                + DONE
            )
            self._emit(piece._replace(data=data, kind=EmissionKind.END, n_tokens=0, is_last=True))
            return
        if strike.kind == "truncated-sse":
            self._emit(
                piece._replace(
                    data=piece.data[: len(piece.data) // 2],
                    kind=EmissionKind.END,
                    n_tokens=0,
                    is_last=False,
                )
            )
        self.is_over = True
        if strike.kind == "reset":
            self.line.reset()
        else:
            self.line.cut()

    def _hold(self, hold_ns: int) -> None:
        """Send nothing for this time."""
        if self._held is None:
            self._held = []
            asyncio.get_running_loop().call_later(s_from_ns(hold_ns), self._release)

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for piece in held:
            self._emit(piece)

    def _emit(self, piece: _Piece) -> None:
        if piece.is_last:
            self.is_over = True
        if self._held is not None:
            self._held.append(piece)
            return
        if not self.line.is_open:
            return
        if piece.kind is EmissionKind.HEADERS:
            written_ns = self.line.begin_stream()
        elif self.served.parsed.is_streaming:
            written_ns = self.line.chunk(piece.data, is_last=piece.is_last)
        else:
            written_ns = self.line.reply(200, piece.data)
        self._note(self.served.number, piece.kind, piece.n_tokens, piece.due_ns, written_ns)
        if piece.is_last and self.served.parsed.is_streaming:
            self.line.done()


def _end(choice: Choice) -> End:
    if choice.answer.stop_reason is not None and choice.n_due >= choice.answer.n_tokens:
        return End("stop", choice.answer.stop_reason)
    return End("stop" if choice.request.status is Status.STOPPED else "length", None)


_LASTING: Final = ("comments", "split-writes")
"""Faults that apply to every event, not to one."""
_CUTTING: Final = ("reset", "truncated-sse", "error-event")


class Desk:
    """Makes exchanges of HTTP requests, for one plan."""

    def __init__(self, plan: EmulatorPlan) -> None:
        self.limits = Limits(plan.model_name, plan.max_model_len)
        self.tokenizer = Tokenizer(plan.tokenizer)
        self._plan = plan
        self._n_choices = 0

    def take(self, request: HttpRequest, number: int, faults: emulator_plan.Faults) -> Served:
        """Create the engine's requests and the reply for an HTTP request.

        Raises
        ------
        Refusal
            The request cannot be served.
        """
        is_chat = request.path == CHAT_PATH
        parsed = (read_chat if is_chat else read_completion)(
            request.body, self.limits, self.tokenizer
        )
        client_id = request.headers.get("x-request-id", "")
        reply_id = ("chatcmpl-" if is_chat else "cmpl-") + (client_id or uuid.uuid4().hex)
        wording = Wording(
            reply_id=reply_id,
            model_name=self._plan.model_name,
            created_s=int(datetime.now(UTC).timestamp()),
            is_chat=is_chat,
            has_details=self._plan.enable_prompt_tokens_details,
        )
        return Served(
            number=number,
            client_id=client_id,
            reply_id=reply_id,
            path=request.path,
            accepted_ns=request.accepted_ns,
            parsed=parsed,
            choices=tuple(
                self._choice(parsed, place, number, request)
                for place in range(len(parsed.prompts) * parsed.n_choices)
            ),
            faults=faults,
            wording=wording,
            likelihoods=None
            if parsed.n_top_logprobs is None
            else emulator_pages.Likelihoods(parsed.n_top_logprobs, self.tokenizer.vocabulary),
            traced_by=traceparent_of(request.headers.get("traceparent")),
        )

    def _choice(
        self, parsed: ParsedRequest, place: int, number: int, request: HttpRequest
    ) -> Choice:
        i_prompt, answer = place // parsed.n_choices, self._answer(parsed, number, place)
        engine_index = self._n_choices
        self._n_choices += 1
        echo = self.tokenizer.pieces(parsed.prompts[i_prompt]) if parsed.echoes else ()
        return Choice(
            place, answer, self._request(parsed, i_prompt, answer, engine_index, request), echo
        )

    def _answer(self, parsed: ParsedRequest, number: int, place: int) -> Answer:
        mean_tokens = None if parsed.ignores_eos else self._plan.mean_output_tokens
        seed = self._plan.seed
        vocabulary = self.tokenizer.vocabulary
        most_tokens = parsed.most_tokens[place // parsed.n_choices]
        drawn = draw_answer(
            vocabulary, mean_tokens, most_tokens, seed=seed, number=number, place=place
        )
        answer = drawn._replace(n_tokens=max(drawn.n_tokens, min(parsed.least_tokens, most_tokens)))
        if parsed.is_silent:
            return answer._replace(n_chars=0)
        return stopped(
            answer,
            self.tokenizer,
            stops=parsed.stops,
            stop_ids=parsed.stop_ids,
            least_tokens=parsed.least_tokens,
            includes_stop=parsed.includes_stop,
        )

    def _request(
        self,
        parsed: ParsedRequest,
        i_prompt: int,
        answer: Answer,
        engine_index: int,
        request: HttpRequest,
    ) -> LiveRequest:
        config, prompt = self._plan.config, parsed.prompts[i_prompt]
        contents = list[int]()
        if self._plan.fleet.has_contents:
            contents = content_ids([*prompt, *self.tokenizer.spoken(answer)], config.block_size)
        return LiveRequest(
            engine_index,
            # As in a simulation, it comes to the scheduler behind HTTP, tokenising and a queue of
            # processes; what the emulator itself takes of these is short beside them.
            arrival_ns=request.accepted_ns + round(self._plan.fleet.front_end_s * NS_PER_S),
            prompt=len(prompt),
            stop=answer.n_tokens,
            max_tokens=parsed.most_tokens[i_prompt],
            priority=parsed.priority,
            contents=contents,
            kind=self._plan.kind_of(
                request.headers.get(CLASS_HEADER), request.headers.get(TENANT_HEADER)
            ),
        )

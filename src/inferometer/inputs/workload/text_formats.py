"""Readers of files of texts: ShareGPT conversations, OpenAI batches and lists of prompts.

Token counts in a file are used; for text alone four characters count as one token, and the row is
marked as estimated.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from inferometer.inputs.workload.trace_formats import (
    Count,
    Spoken,
    TraceRow,
    broken,
    decoded,
    estimated_tokens,
    items,
    text_of_parts,
)

_ASKS: Final = ("human", "user", "system", "developer", "tool", "function", "observation")
_ANSWERS: Final = ("gpt", "assistant", "chatgpt", "bing", "bard", "model", "function_call")


class Said(msgspec.Struct, frozen=True):
    """A message of a conversation, in ShareGPT's words or in OpenAI's (``role``, ``content``)."""

    value: str | None = None
    by: str | None = msgspec.field(name="from", default=None)
    role: str | None = None
    content: str | list[dict[str, object]] | None = None

    @property
    def text(self) -> str:
        """Text of the message; '' for a call without text."""
        return text_of_parts(self.content or "") if self.value is None else self.value


class Conversation(msgspec.Struct, frozen=True):
    """An item of a ShareGPT file, or of one with other names; other keys are ignored."""

    conversations: tuple[Said, ...] = ()
    conversation: tuple[Said, ...] = ()
    messages: tuple[Said, ...] = ()

    @property
    def said(self) -> tuple[Said, ...]:
        """Messages of the conversation."""
        return self.conversations or self.conversation or self.messages


class Message(msgspec.Struct, frozen=True):
    """A chat message; parts that are not text are ignored."""

    role: str = "user"
    content: str | list[dict[str, object]] | None = None


class BatchBody(msgspec.Struct, frozen=True):
    """The body of a request of a batch."""

    messages: list[Message] = []
    prompt: str | list[int] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None


class Usage(msgspec.Struct, frozen=True):
    """Token counts in an answer."""

    prompt_tokens: Count
    completion_tokens: Count


class AnswerBody(msgspec.Struct, frozen=True):
    """The body of an answer of a batch."""

    usage: Usage


class Answer(msgspec.Struct, frozen=True):
    """An answer of a batch."""

    body: AnswerBody


class BatchLine(msgspec.Struct, frozen=True):
    """A line of a batch's input (``body``) or output (``response``) file."""

    custom_id: str
    body: BatchBody | None = None
    response: Answer | None = None


class PromptLine(msgspec.Struct, frozen=True):
    """A line of a prompt list (HumanEval, GSM8K, MT-Bench, vLLM custom); other keys are ignored."""

    prompt: str | None = None
    question: str | None = None
    turns: tuple[str, ...] = ()
    answer: str | None = None
    canonical_solution: str | None = None
    output_tokens: Count | None = None


def sharegpt_rows(
    path: Path, *, only_first_turn: bool, with_texts: bool = False
) -> Iterator[TraceRow]:
    """Requests of a ShareGPT file: one for each answer, its prompt all messages before.

    A conversation is a session without times.
    """
    for index, (number, raw) in enumerate(items(path)):
        said_tokens, n_turns, new = 0, 0, list[Spoken]()
        for message in decoded(raw, Conversation, path, number).said:
            if message.by is not None and message.value is None:
                broken(path, number, f"a message from {message.by!r} without a value")
            tokens = estimated_tokens(message.text)
            role = _role(message, path, number)
            if role == "assistant" and (said_tokens or n_turns):
                if n_turns == 0 or not only_first_turn:
                    row = TraceRow(
                        number,
                        None,
                        said_tokens,
                        tokens,
                        session=index,
                        prompt_is_estimate=True,
                        output_is_estimate=True,
                    )
                    yield row._replace(said=tuple(new) if with_texts else ())
                n_turns += 1
                new = []
            new.append(Spoken(role, message.text))
            said_tokens += tokens


def prompt_rows(
    path: Path, *, output_tokens: int | None, with_texts: bool = False
) -> Iterator[TraceRow]:
    """Requests of a list of prompts, without instants.

    ``output_tokens`` is used for lines without an answer. Only the first of several turns.
    """
    for number, line in items(path):
        row = decoded(line, PromptLine, path, number)
        asked = next(
            (text for text in (row.prompt, row.question, *row.turns[:1]) if text is not None), None
        )
        if asked is None:
            broken(path, number, "neither a prompt nor a question nor turns")
        answer = row.answer if row.answer is not None else row.canonical_solution
        said = (
            row.output_tokens
            if row.output_tokens is not None
            else None
            if answer is None
            else estimated_tokens(answer)
        )
        output = output_tokens if said is None else said
        if output is None:
            broken(
                path,
                number,
                "no answer, so its length is unknown",
                try_="--output-tokens 256",
            )
        is_estimate = row.output_tokens is None and answer is not None
        n_later = max(len(row.turns) - 1, 0)
        found = TraceRow(
            number,
            None,
            estimated_tokens(asked),
            output,
            prompt_is_estimate=True,
            output_is_estimate=is_estimate,
            n_later_turns=n_later,
        )
        yield found._replace(said=(Spoken("user", asked),)) if with_texts else found


def openai_batch_rows(
    path: Path, *, output_tokens: int | None = None, with_texts: bool = False
) -> Iterator[TraceRow]:
    """Requests of an OpenAI batch, all arriving at the start.

    Output files have token counts; for input files they are estimated.
    """
    for number, line in items(path):
        row = decoded(line, BatchLine, path, number)
        if row.response is not None:
            usage = row.response.body.usage
            yield TraceRow(number, 0, usage.prompt_tokens, usage.completion_tokens)
            continue
        if row.body is None:
            broken(path, number, "neither a body nor a response")
        most = row.body.max_completion_tokens or row.body.max_tokens or output_tokens
        if most is None:
            what = "no max_tokens, so the output length is unknown; a batch's output file has it"
            broken(path, number, what, try_="--output-tokens 256")
        is_counted = isinstance(row.body.prompt, list)
        prompt = (
            len(row.body.prompt)
            if isinstance(row.body.prompt, list)
            else sum(map(estimated_tokens, _texts(row.body)))
        )
        found = TraceRow(
            number,
            0,
            prompt,
            most,
            max_tokens=most,
            prompt_is_estimate=not is_counted,
            output_is_estimate=True,
        )
        yield found._replace(said=tuple(_spoken(row.body))) if with_texts else found


def _role(message: Said, path: Path, number: int) -> str:
    by = message.by or message.role
    if by in _ANSWERS:
        return "assistant"
    if by not in _ASKS:
        broken(
            path,
            number,
            f"a message is from {by!r}, not from one of {', '.join((*_ASKS, *_ANSWERS))}",
        )
    return "system" if by == "system" else "user"


def _spoken(body: BatchBody) -> Iterator[Spoken]:
    if isinstance(body.prompt, str):
        yield Spoken("user", body.prompt)
    for message in body.messages:
        if message.content is not None:
            yield Spoken(message.role, message.content)


def _texts(body: BatchBody) -> Iterator[str]:
    return (text_of_parts(said.content) for said in _spoken(body))

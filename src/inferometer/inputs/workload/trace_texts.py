"""How long are the requests of files of texts, and what do they say.

ShareGPT conversations, OpenAI batches, lists of prompts?

Counts that a file gives are taken. Where it has only text, a token is taken for four characters,
and the row says so.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec

from inferometer.inputs.workload.trace_formats import DOOR, Spoken, TraceRow, broken, decoded, lines

CHARACTERS_PER_TOKEN: Final = 4
_ASKS: Final = ("human", "user", "system")
_ANSWERS: Final = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Said(msgspec.Struct, frozen=True):
    """A message of a conversation."""

    value: str
    by: str = msgspec.field(name="from")


class Conversation(msgspec.Struct, frozen=True):
    """An item of a ShareGPT file; other keys are passed over."""

    conversations: tuple[Said, ...]


class Message(msgspec.Struct, frozen=True):
    """A chat message; parts that are not text count nothing."""

    role: str = "user"
    content: str | list[dict[str, object]] | None = None


class BatchBody(msgspec.Struct, frozen=True):
    """The body of a request of a batch."""

    messages: list[Message] = []
    prompt: str | list[int] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None


class Usage(msgspec.Struct, frozen=True):
    """What an answer counted."""

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


def estimated_tokens(text: str) -> int:
    """About how many tokens has a text? An estimate: a token for each four characters begun."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def sharegpt_rows(
    path: Path, *, only_first_turn: bool, with_texts: bool = False
) -> Iterator[TraceRow]:
    """Requests of a ShareGPT file: each answer is one, its prompt everything said before.

    A conversation is a session without instants.
    """
    for index, (number, raw) in enumerate(_items(path)):
        said_tokens, n_turns, new = 0, 0, list[Spoken]()
        for message in decoded(raw, Conversation, path, number).conversations:
            tokens = estimated_tokens(message.value)
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
            new.append(Spoken(role, message.value))
            said_tokens += tokens


def prompt_rows(
    path: Path, *, output_tokens: int | None, with_texts: bool = False
) -> Iterator[TraceRow]:
    """Requests of a list of prompts, without instants.

    ``output_tokens`` where a line has no answer. Of several turns the first.
    """
    for number, line in lines(path):
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
                "no answer, so nothing says how long it is",
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
    """Requests of an OpenAI batch, all there at once.

    Of an output file what was counted, of an input file what can be told.
    """
    for number, line in lines(path):
        row = decoded(line, BatchLine, path, number)
        if row.response is not None:
            usage = row.response.body.usage
            yield TraceRow(number, 0, usage.prompt_tokens, usage.completion_tokens)
            continue
        if row.body is None:
            broken(path, number, "neither a body nor a response")
        most = row.body.max_completion_tokens or row.body.max_tokens or output_tokens
        if most is None:
            what = (
                "no max_tokens, so nothing says how long the answer is; a batch's output file"
                " says it"
            )
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


def text_of_parts(content: str | list[dict[str, object]]) -> str:
    """The text of a message; parts that are none (images) say nothing."""
    if isinstance(content, str):
        return content
    return "\n".join(text for part in content if isinstance(text := part.get("text"), str))


def _role(message: Said, path: Path, number: int) -> str:
    if message.by in _ANSWERS:
        return "assistant"
    if message.by not in _ASKS:
        broken(
            path,
            number,
            f"a message is from {message.by!r}, not from one of {', '.join((*_ASKS, *_ANSWERS))}",
        )
    return "system" if message.by == "system" else "user"


def _spoken(body: BatchBody) -> Iterator[Spoken]:
    if isinstance(body.prompt, str):
        yield Spoken("user", body.prompt)
    for message in body.messages:
        if message.content is not None:
            yield Spoken(message.role, message.content)


def _texts(body: BatchBody) -> Iterator[str]:
    return (text_of_parts(said.content) for said in _spoken(body))


def _items(path: Path) -> Iterator[tuple[int, bytes]]:
    """The conversations and the lines at which they begin, of a JSON list or of JSON lines."""
    if not DOOR.start_of(path).startswith(b"["):
        yield from lines(path)
        return
    text = DOOR.bytes_of(path).removeprefix(b"\xef\xbb\xbf")
    raws = DOOR.json(text, list[msgspec.Raw], where=str(path))
    at, line = 0, 1
    for raw in raws:
        item = bytes(raw)
        begin = text.index(item, at)
        line += text.count(b"\n", at, begin)
        at = begin
        yield line, item

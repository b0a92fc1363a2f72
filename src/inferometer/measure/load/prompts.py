"""What does each request ask: invented words of the plan's lengths, or what a file of texts says?

In a chat a session's turns become a growing list of messages: what was asked and what was answered
in turns. Any other shared prefix is the beginning of one user message.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol, TypeAlias

from inferometer.measure.load.contents import WORDS, Stretch, stretches, token_ids, words
from inferometer.spec.workload.plan import NONE, RequestPlan
from inferometer.spec.workload.trace_lines import Spoken
from inferometer.spec.workload.trace_texts import text_of_parts

Message: TypeAlias = dict[str, object]


class Prompts(Protocol):
    """What each request says, the same whenever it is asked."""

    def messages(self, row: int) -> list[Message]:
        """Of a chat: turn by turn, the earliest first."""
        ...

    def prompt(self, row: int) -> str | list[int]:
        """Of a completion."""
        ...


class InventedPrompts:
    """Words, or ids of tokens, of the plan's lengths."""

    def __init__(self, plan: RequestPlan, seed: int, vocabulary: tuple[str, ...] | None) -> None:
        self._plan = plan
        self._seed = seed
        self._vocabulary = vocabulary
        """None for ids."""

    def prompt(self, row: int) -> str | list[int]:
        """All of it, shared beginnings included."""
        parts = stretches(self._plan, row)
        return token_ids(self._seed, parts) if self._vocabulary is None else self._text(parts)

    def messages(self, row: int) -> list[Message]:
        """The turns of the session; the answers in between are invented too."""
        said: list[Message] = []
        for turn in reversed(self._turns(row)):
            whole, begin = stretches(self._plan, turn), 0
            if said:
                leader = int(self._plan.prefix_request[turn])
                asked = int(self._plan.prompt_tokens[leader])
                begin = asked + int(self._plan.output_tokens[leader])
                said.append(
                    {"role": "assistant", "content": self._text(_between(whole, asked, begin))}
                )
            said.append(
                {
                    "role": "user",
                    "content": self._text(
                        _between(whole, begin, int(self._plan.prompt_tokens[turn]))
                    ),
                }
            )
        return said

    def _turns(self, row: int) -> list[int]:
        """The request and those whose whole exchange it goes on from, the latest first."""
        plan, turns = self._plan, [row]
        while (leader := int(plan.prefix_request[turns[-1]])) != NONE:
            turn = turns[-1]
            held = int(plan.prompt_tokens[leader]) + int(plan.output_tokens[leader])
            is_next = (
                plan.follows[turn] == leader
                and plan.prefix_tokens[turn] == held < plan.prompt_tokens[turn]
            )
            if not is_next:
                break
            turns.append(leader)
        return turns

    def _text(self, parts: tuple[Stretch, ...]) -> str:
        return words(self._seed, parts, self._vocabulary or WORDS)


class TracePrompts:
    """What a file of texts says, its answers between the turns included."""

    def __init__(self, plan: RequestPlan, texts: Sequence[tuple[Spoken, ...]]) -> None:
        self._plan = plan
        self._texts = texts

    def messages(self, row: int) -> list[Message]:
        """The file's messages before this request's answer."""
        return [{"role": said.role, "content": said.content} for said in self._said(row)]

    def prompt(self, row: int) -> str | list[int]:
        """Their texts, a line each."""
        return "\n".join(text_of_parts(said.content) for said in self._said(row))

    def _said(self, row: int) -> Iterator[Spoken]:
        turns = [row]
        while (leader := int(self._plan.prefix_request[turns[-1]])) != NONE:
            turns.append(leader)
        return chain.from_iterable(self._texts[turn] for turn in reversed(turns))


def _between(parts: tuple[Stretch, ...], begin: int, end: int) -> tuple[Stretch, ...]:
    cut = (Stretch(part.owner, max(part.begin, begin), min(part.end, end)) for part in parts)
    return tuple(part for part in cut if part.begin < part.end)

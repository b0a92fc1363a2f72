"""Whose answer is it.

That of the request it came for, or, where something on the way mixed connections up, another one's?

A server or proxy that keeps ``X-Request-Id`` says it in that header; vLLM makes the answer's ``id``
of it.
"""

import re
from typing import Final

from inferometer.measure.load.answers import Answer

_IN_BODY: Final = r'"id" ?: ?"[^"]{0,40}?%s-(\d+)'


class AnswerOwners:
    """Knows the ids of one run."""

    def __init__(self, id_prefix: str) -> None:
        self._in_head = re.compile(re.escape(id_prefix) + r"-(\d+)")
        self._in_body = re.compile((_IN_BODY % re.escape(id_prefix)).encode())

    def other_owner(self, answer: Answer, row: int) -> int | None:
        """The request whose answer it says it is; None where that is ``row``, or it does not say."""
        found = self._in_head.fullmatch(answer.request_id) or (
            self._in_body.search(answer.parts[0]) if answer.parts else None
        )
        said = None if found is None else int(found[1])
        return None if said == row else said

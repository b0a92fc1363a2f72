"""How are secrets kept off the disk and the screen where a server says them aloud.

In an error's words, or in where it points to?
"""

from collections.abc import Sequence
from typing import Final

from inferometer.measure.load.target import Secrets

_LEAST_CHARACTERS: Final = 8
"""Shorter values (``1``, ``true``) are words of any answer, and no secret."""


class Hider:
    """Puts asterisks for what was sent in secret; lengths stay."""

    def __init__(self, secrets: Secrets, texts: Sequence[str] = ()) -> None:
        """``texts``: further texts that were sent and may be secret."""
        values = [value for _, value in secrets.headers] + [
            secrets.proxy_authorization or "",
            *texts,
        ]
        words = {
            word for value in values for word in value.split() if len(word) >= _LEAST_CHARACTERS
        }
        self._words = tuple(sorted(words, key=len, reverse=True))
        self._bytes = tuple(word.encode() for word in self._words)

    def data(self, data: bytes) -> bytes:
        """The bytes without secrets."""
        for word in self._bytes:
            if word in data:
                data = data.replace(word, b"*" * len(word))
        return data

    def text(self, text: str) -> str:
        """The text without secrets."""
        for word in self._words:
            text = text.replace(word, "*" * len(word))
        return text

"""How likely does the emulator say that its words were?

Each as likely as any other of its vocabulary: they are drawn so.

Shapes are those of OpenAI's completions and chats.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class Likelihoods(NamedTuple):
    """Tells the logarithms of probabilities, with so many of the likeliest words beside each."""

    n_top: int
    vocabulary: tuple[str, ...]

    def of_completion(
        self, tokens: Sequence[str], *, n_chars_before: int, is_from_start: bool
    ) -> dict[str, Any]:
        """Of tokens that begin behind so many characters.

        ``is_from_start``: nothing tells how likely the first one was.
        """
        offsets = [n_chars_before]
        for token in tokens[:-1]:
            offsets.append(offsets[-1] + len(token))
        likely: list[float | None] = [self._each] * len(tokens)
        top: list[dict[str, float] | None] = [self._top(token) for token in tokens]
        if is_from_start and tokens:
            likely[0] = top[0] = None
        return {
            "text_offset": offsets[: len(tokens)],
            "token_logprobs": likely,
            "tokens": list(tokens),
            "top_logprobs": top,
        }

    def of_chat(self, tokens: Sequence[str]) -> dict[str, Any]:
        """Of tokens of an answer."""
        return {
            "content": [
                _told(token, self._each)
                | {"top_logprobs": [_told(*one) for one in self._top(token).items()]}
                for token in tokens
            ]
        }

    @property
    def _each(self) -> float:
        return -math.log(len(self.vocabulary))

    def _top(self, token: str) -> dict[str, float]:
        """The token itself and words as likely as it."""
        others = (" " + word for word in self.vocabulary if " " + word != token)
        return {
            word: self._each for _, word in zip(range(self.n_top), (token, *others), strict=False)
        }


def _told(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

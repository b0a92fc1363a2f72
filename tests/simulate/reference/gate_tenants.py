"""What has a tenant got, and what may it still have?

Its bucket of tokens and its service so far, in plain Python.
"""

import math
from fractions import Fraction

from inferometer.simulate.gate_config import TenantRules
from inferometer.units import NS_PER_S


class Tenant:
    """A bucket counts billionths of a token.

    At one token a second one comes in each nanosecond, so nothing is ever rounded.
    """

    def __init__(self, rules: TenantRules) -> None:
        self._rules = rules
        self._level = rules.burst_tokens * NS_PER_S
        self._filled_ns = 0
        self.service = 0
        """Tokens of prompts, and those of answers times their weight."""

    @property
    def share(self) -> Fraction:
        """Service by weight: what fairness makes equal."""
        return Fraction(self.service, self._rules.weight)

    def lift(self, share: Fraction) -> None:
        """It counts as having had at least this share, rounded down to whole tokens."""
        self.service = max(self.service, math.floor(share * self._rules.weight))

    def can_ever_pay(self, n_tokens: int) -> bool:
        """Does the full bucket hold so many?"""
        return self._rules.tokens_per_s == 0 or n_tokens <= self._rules.burst_tokens

    def payable_ns(self, n_tokens: int, now_ns: int) -> int:
        """When are so many in the bucket?"""
        rate = self._rules.tokens_per_s
        if rate == 0:
            return now_ns
        self._level = min(
            self._level + (now_ns - self._filled_ns) * rate, self._rules.burst_tokens * NS_PER_S
        )
        self._filled_ns = now_ns
        lacking = max(n_tokens * NS_PER_S - self._level, 0)
        return now_ns - (-lacking // rate)

    def pay(self, n_tokens: int) -> None:
        """Take so many out."""
        if self._rules.tokens_per_s:
            self._level -= n_tokens * NS_PER_S

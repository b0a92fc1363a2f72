"""What does a configuration file say under a name, and what is said when it says nothing or something impossible?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from inferometer.errors import SpecError
from inferometer.spec.foreign_shapes import shortened
from inferometer.units import MOST_COUNT

_MOST: Final = {
    "num_hidden_layers": 10_000,
    "num_attention_heads": 100_000,
    "num_key_value_heads": 100_000,
}
"""Of what is gone through one by one."""
_MOST_LETTERS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFields:
    """The fields of one ``config.json``, asked for by their usual (Llama) names.

    ``names`` maps a usual name to the family's own; ``filled`` holds what the family's classes or
    other fields say where the file is silent.
    """

    config: Mapping[str, object]
    where: str
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    filled: Mapping[str, object] = field(default_factory=dict[str, object])

    def value(self, name: str) -> object:
        """What the file, or else the family, says; None where neither does."""
        found = self.config.get(self.own_name(name))
        return self.filled.get(name) if found is None else found

    def own_name(self, name: str) -> str:
        """The name in this family's files."""
        return self.names.get(name, name)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of 1 or more.

        Raises
        ------
        SpecError
            It is missing and has no default, or is anything else.
        """
        found = self.optional_count(name)
        if found is not None:
            return found
        if default is None:
            raise SpecError(
                f"field {self.own_name(name)!r} is missing",
                where=self.where,
                allowed="a whole number, 1 or more",
                try_="is this the config.json of a decoder-only language model?",
            )
        return default

    def optional_count(self, name: str, *, minimum: int = 1) -> int | None:
        """A whole number of ``minimum`` or more; None where it is missing or null.

        Raises
        ------
        SpecError
            It is anything else.
        """
        found = self.value(name)
        if found is None:
            return None
        most = _MOST.get(name, MOST_COUNT)
        if isinstance(found, bool) or not isinstance(found, int) or not minimum <= found <= most:
            allowed = f"a whole number, {minimum} or more" + (
                f", up to {most}" if isinstance(found, int) and found > most else ""
            )
            raise SpecError(
                f"{self.own_name(name)} = {shortened(found)}", where=self.where, allowed=allowed
            )
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false.

        Raises
        ------
        SpecError
            It is anything else.
        """
        found = self.value(name)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise SpecError(
                f"{self.own_name(name)} = {shortened(found)}",
                where=self.where,
                allowed="true or false",
            )
        return found

    def text(self, name: str) -> str | None:
        """A text; None where it is missing.

        Raises
        ------
        SpecError
            It is anything else.
        """
        found = self.value(name)
        if found is not None and (not isinstance(found, str) or len(found) > _MOST_LETTERS):
            raise SpecError(
                f"{self.own_name(name)} = {shortened(found)}",
                where=self.where,
                allowed=f"a text of up to {_MOST_LETTERS} letters",
            )
        return found

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of texts; None where it is missing.

        Raises
        ------
        SpecError
            It is anything else.
        """
        found = self.value(name)
        if found is None:
            return None
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise SpecError(
                f"{self.own_name(name)} = {shortened(found)}",
                where=self.where,
                allowed="a list of texts",
            )
        return tuple(str(item) for item in found)

"""What does YAML say that this program did not write?"""

from typing import Final, cast

import yaml

from inferometer.errors import SpecError
from inferometer.inputs.foreign_bytes import MOST_DEPTH, Door, check_length, too_deep

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MOST_YAML_CHARACTERS: Final = 2**22


def yaml_value(text: str, door: Door, *, where: str) -> object:
    """What this YAML says, without aliases; ``file_tables.table_from`` checks its numbers.

    Raises
    ------
    InferometerError
        Of the kind that ``door`` refuses with: it is damaged, too long or nested too deeply, or has
        an alias.
    """
    with door.refusing(where):
        try:
            _check(text)
            return cast("object", yaml.load(text, Loader=_LOADER))  # noqa: S506
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error


def _check(text: str) -> None:
    """An alias could repeat a part without end, and a deep nest exhaust the stack."""
    check_length(text, MOST_YAML_CHARACTERS)
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if isinstance(event, yaml.AliasEvent):
            raise SpecError(f"an alias, *{event.anchor}", allowed="values written out")
        if depth > MOST_DEPTH:
            raise too_deep()

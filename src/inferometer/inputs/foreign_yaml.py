"""Reader of YAML that this program did not write."""

from typing import Final, cast

from inferometer.errors import SpecError
from inferometer.inputs.foreign_bytes import MOST_DEPTH, Door, check_length, too_deep

MOST_YAML_CHARACTERS: Final = 2**22


def yaml_value(text: str, door: Door, *, where: str) -> object:
    """The value of this YAML, without aliases; ``file_tables.table_from`` checks its numbers.

    Raises
    ------
    InferometerError
        Of ``door``'s error type: it is malformed, too long, nested too deeply, or has an alias.
    """
    with door.refusing(where):
        check_length(text, MOST_YAML_CHARACTERS)
        return _loaded(text)


def _loaded(text: str) -> object:
    """The value of the YAML; refuses aliases (unlimited repetition) and deep nesting (stack)."""
    # Imported here: most files are JSON, and the import takes as long as a fast command.
    import yaml  # noqa: PLC0415

    loader, depth = getattr(yaml, "CSafeLoader", yaml.SafeLoader), 0
    try:
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if isinstance(event, yaml.AliasEvent):
                raise SpecError(f"an alias, *{event.anchor}", allowed="values written out")
            if depth > MOST_DEPTH:
                raise too_deep()
        return cast("object", yaml.load(text, Loader=loader))  # noqa: S506
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error

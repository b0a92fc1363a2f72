"""Commands and flags in messages, made so that they parse.

It is built from words, so that a shell takes what is printed as it stands.

Names that a server or a file chose are quoted here and nowhere else. ``tests/suggested.py`` parses
whatever this file builds with the command line itself: a suggestion that a verb refuses fails the
test in which it was made.
"""

import shlex
from collections.abc import Sequence
from difflib import get_close_matches


def command(verb: str, *words: object) -> str:
    """A whole command. Words in capitals, such as ``RUN``, are for the reader to fill in.

    >>> command("show", "runs/two words")
    "inferometer show 'runs/two words'"
    """
    return _written("inferometer", verb, *map(_word, words))


def flags(*words: object) -> str:
    """Flags to add to the command that was typed.

    >>> flags("--model", "a;b", "--tp", 2, "--rate", 20.0)
    "--model 'a;b' --tp 2 --rate 20"
    """
    return _written(*map(_word, words))


def nearest(flag: str, word: str, allowed: Sequence[str]) -> str | None:
    """The flag with the allowed word that begins so or is most alike; None where none is.

    >>> nearest("--metric", "tpot_p5O_s", ["ttft_p50_s", "tpot_p50_s"]), nearest("--metric", "x", ["y"])
    ('--metric tpot_p50_s', None)
    """
    begun = [one for one in allowed if word and one.startswith(word)]
    close = begun or get_close_matches(word, allowed, n=1)
    return flags(flag, close[0]) if close else None


def nearest_setting(flag: str, name: str, known: Sequence[str]) -> str | None:
    """The most alike setting of an engine, with the flag that sets it; None where none is.

    >>> nearest_setting("--set", "max_num_seq", ["max_num_seqs", "policy"])
    '--set max_num_seqs=VALUE'
    """
    close = get_close_matches(name, known, n=1)
    return flags(flag, f"{close[0]}=VALUE") if close else None


def _word(word: object) -> str:
    """A whole number without its point, as people type it."""
    is_whole = isinstance(word, float) and word.is_integer() and abs(word) < 1e15
    return f"{word:.0f}" if is_whole else str(word)


def _written(*words: str) -> str:
    return shlex.join(words)

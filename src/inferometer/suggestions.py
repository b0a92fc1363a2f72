"""Which command does a message suggest?

It is built from words, so that a shell takes what is printed as it stands.

Names that a server or a file chose are quoted here and nowhere else. ``tests/suggested.py`` parses
whatever this file builds with the command line itself: a suggestion that a verb refuses fails the
test in which it was made.
"""

import shlex


def command(verb: str, *words: object) -> str:
    """A whole command. Words in capitals, such as ``RUN``, stand for what only the reader knows.

    >>> command("show", "runs/two words")
    "inferometer show 'runs/two words'"
    """
    return _written("inferometer", verb, *(str(word) for word in words))


def flags(*words: object) -> str:
    """Flags to add to the command that was typed.

    >>> flags("--model", "a;b", "--tp", 2)
    "--model 'a;b' --tp 2"
    """
    return _written(*(str(word) for word in words))


def _written(*words: str) -> str:
    return shlex.join(words)

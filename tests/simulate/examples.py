"""How many examples does a property of the simulator take?"""

import os

from hypothesis import settings

WHICH = os.environ.get("INFEROMETER_EXAMPLES", "few")
"""``half`` in the slow suite, ``all`` before a release (``make long``)."""
SHARE = {"few": 8, "half": 2, "all": 1}[WHICH]


def examples(n_examples: int) -> settings:
    """An eighth of them, half of them, or all.

    An example of the simulator takes 10 to 20 ms, nearly all of it to draw the requests.
    """
    return settings(max_examples=-(-n_examples // SHARE), deadline=None)

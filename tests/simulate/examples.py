"""How many examples does a property of the simulator take?"""

import os

from hypothesis import settings

WHICH = os.environ.get("INFEROMETER_EXAMPLES", "few")
"""``quarter`` in the slow suite, ``all`` before a release (``make long``)."""
SHARE = {"few": 8, "quarter": 4, "all": 1}[WHICH]


def examples(n_examples: int) -> settings:
    """An eighth of them, a quarter, or all.

    An example of the simulator takes 10 to 20 ms, nearly all of it to draw the requests.
    """
    return settings(max_examples=-(-n_examples // SHARE), deadline=None)

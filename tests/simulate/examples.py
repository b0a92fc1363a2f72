"""How many examples does a property of the simulator take?"""

import os

from hypothesis import settings


def examples(n_examples: int) -> settings:
    """All of them in the slow suite (``INFEROMETER_ALL_EXAMPLES``), an eighth in the fast one.

    An example of the simulator takes 10 to 20 ms, nearly all of it to draw the requests.
    """
    is_whole = bool(os.environ.get("INFEROMETER_ALL_EXAMPLES"))
    return settings(max_examples=n_examples if is_whole else -(-n_examples // 8), deadline=None)

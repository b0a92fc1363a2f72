"""What the tests of workloads share: strategies beside them, and the published data where the machine has them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

DATA = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture
def published():
    """Where a published file lies; skips where it does not."""

    def find(name):
        if not (DATA / name).exists():
            pytest.skip(f"the published {name} is not on this machine")
        return str(DATA / name)

    return find

"""A tiny server for each test of the load client."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tiny_server import TinyServer


@pytest.fixture
def server():
    """A server that streams, and keeps connections."""
    tiny = TinyServer()
    tiny.start()
    yield tiny
    tiny.stop()

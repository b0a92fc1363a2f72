"""What is a new run called, and when is now?"""

import uuid
from datetime import UTC, datetime


def new_run_id(created_utc: str) -> str:
    """A name that no other run has, and that sorts by time."""
    return f"{created_utc[:19].replace(':', '').replace('T', '-')}-{uuid.uuid4().hex[:8]}"


def now_utc() -> str:
    """Now, for people: ISO 8601 with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")

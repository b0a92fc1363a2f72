"""Is it the same machine? A hash tells, without saying which."""

import hashlib
import socket


def hostname_hash() -> str:
    """Of this machine's name."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]

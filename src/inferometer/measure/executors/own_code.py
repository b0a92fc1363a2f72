"""Would this code give the same answers there as here?

Its own text, and the versions of what computes.
"""

import hashlib
import platform
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import inferometer

_COMPUTING: Final = ("numpy", "numba", "scipy")


class OwnCode(NamedTuple):
    """Two that are equal compute the same."""

    digest: str
    """Of all modules of this package."""
    versions: tuple[str, ...]

    @property
    def text(self) -> str:
        """For people."""
        return (
            f"inferometer {inferometer.__version__} ({self.digest[:8]}), {', '.join(self.versions)}"
        )


@cache
def own_code() -> OwnCode:
    """What runs in this process."""
    # Imported here: a load test without Ray would pay for it before its first request.
    from importlib import metadata  # noqa: PLC0415

    folder, digest = Path(inferometer.__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    versions = (
        f"python {platform.python_version()}",
        *(f"{name} {metadata.version(name)}" for name in _COMPUTING),
    )
    return OwnCode(digest.hexdigest(), versions)

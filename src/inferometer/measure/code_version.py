"""Which version of this code runs here, and on which commit?"""

import subprocess
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_TIMEOUT_S: Final = 10


def git_commit() -> str | None:
    """The commit that this code is at, ``+changes`` if files differ; None outside a repository."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return (
        f"{commit}+changes"
        if _git("status", "--porcelain", "--untracked-files=no", "--", str(_HERE.parent))
        else commit
    )


def _git(*words: str) -> str | None:
    try:
        said = subprocess.run(
            ["git", *words],
            cwd=_HERE,
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip()

"""Where do folders live that we can make again at any time, and how are they written so that nobody sees half of one?"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def unpacked_folder() -> Path:
    """Where models are kept that were rewritten for an engine: in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "inferometer" / "unpacked"


def write_whole(folder: Path, write: Callable[[Path], None]) -> None:
    """Have ``write`` fill a folder that is then either not there or complete, whoever else writes it at the same time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=folder.parent))
    try:
        write(draft)
        try:
            draft.rename(folder)
        except OSError:
            if not folder.exists():  # else somebody was faster, with the same content
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)

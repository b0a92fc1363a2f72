"""Is the tree free of what must not be in it?"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORBIDDEN = re.compile(
    r"/(?:work|root|home|opt)/[a-z]|pypi\.org|files\.pythonhosted|registry\.npmjs|\.internal\b"
)


def tracked_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / name for name in listing.split("\0") if name]


def test_no_machine_path_and_no_registry_host():
    offenders = []
    for path in tracked_files():
        if (
            not path.is_file()
            or path == Path(__file__)
            or path.suffix in {".parquet", ".png", ".gz", ".npz"}
        ):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        offenders += [
            f"{path.relative_to(ROOT)}: {match.group()}" for match in FORBIDDEN.finditer(text)
        ]
    assert not offenders, offenders


def test_big_files_stay_out():
    big = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if path.is_file() and path.stat().st_size > 2_000_000
    ]
    assert not big


NAMED = re.compile(r"`([\w/-]+\.(?:py|toml|js))`")


def test_the_maps_of_the_code_name_files_that_exist():
    paths = [f"/{path.relative_to(ROOT)}" for path in tracked_files()]
    missing = [
        f"{page}: {named}"
        for page in ("CONTRIBUTING.md", "docs/architecture.md")
        for named in NAMED.findall((ROOT / page).read_text())
        if "NAME" not in named and not any(path.endswith(f"/{named}") for path in paths)
    ]
    assert not missing, missing

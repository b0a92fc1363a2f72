"""What can be done of all that users asked for? Runs each command and writes ``docs/coverage.md``.

    python bench/coverage_page.py [ID ...]

The requests stand in ``coverage.toml``. With ids, only these are run and the page keeps what it
shows of the others. ``tests/cli/test_docs.py`` holds the page to what the commands print.
"""

import argparse
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cli")]

from command_line import run  # noqa: E402

import pages  # noqa: E402 - of the tests, which are no package

REQUESTS = ROOT / "bench" / "coverage.toml"
PAGE = ROOT / "docs" / "coverage.md"
_LANGUAGES = {".prom": "text", ".csv": "csv", ".toml": "toml", ".json": "json", ".jsonl": "json"}
_HEAD = """# Coverage: requests and their commands

Every single request of users of the material that this project grew from, which could not be done
or only by hand, with the command that does it now and the first lines of what it prints.
`python bench/coverage_page.py` writes this page by running the commands; `runs/example` is a recorded
sweep of qwen2.5-0.5b. {how_many}
"""


def rows_of(data: dict) -> list[dict]:
    """All rows, in order."""
    return [row for group in data["groups"] for row in group["rows"]]


def page_text(data: dict, printed: dict[str, str]) -> str:
    """The page, with what each command printed."""
    rows = rows_of(data)
    n_done = sum("command" in row for row in rows)
    how_many = f"{n_done} of {len(rows)} can be done; the others say why not."
    if n_done == len(rows):
        how_many = f"All {n_done} can be done."
    parts = [_HEAD.format(how_many=how_many)]
    parts += [
        f'```{_LANGUAGES[Path(name).suffix]} title="{name}"\n{text.lstrip()}```\n'
        for name, text in data["files"].items()
    ]
    for group in data["groups"]:
        parts.append(f"## {group['title']}\n")
        parts += [_row_text(row, printed.get(row.get("command", ""), "")) for row in group["rows"]]
    return "\n".join(parts)


def _row_text(row: dict, printed: str) -> str:
    begin = f"**{row['id']}** {row['request']}\n"
    if "missing" in row:
        return f"{begin}\n*Not possible:* {row['missing']}\n"
    if "recorded" in row:
        return (
            f'{begin}\n```console title="{row["recorded"]}"\n$ {row["command"]}\n```\n\n'
            f"Run by `{row['test']}`.\n"
        )
    return f"{begin}\n```console\n$ {row['command']}\n{printed}```\n"


def main() -> None:
    """Run what was asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID")
    wanted = parser.parse_args().ids
    data = tomllib.loads(REQUESTS.read_text())
    shown = (
        {one.command: one.printed for one in pages.transcripts(PAGE)}
        if wanted and PAGE.exists()
        else {}
    )
    for row in rows_of(data):
        is_wanted = not wanted or any(row["id"].startswith(one) for one in wanted)
        if "command" not in row or "recorded" in row or not is_wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            pages.furnish(Path(folder), data["files"])
            shown[row["command"]] = pages.printed_by(row["command"], run, Path(folder))
        print(f"{row['id']} {row['command']}\n{shown[row['command']]}", flush=True)
        if not shown[row["command"]].strip():
            print(f"{row['id']}: NOTHING IS PRINTED", file=sys.stderr)
    PAGE.write_text(page_text(data, shown))


if __name__ == "__main__":
    main()

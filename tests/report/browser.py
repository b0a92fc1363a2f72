"""What a browser makes of a page: widths, charts, clipped and overlapping words, contrast."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

CHROMIUM = shutil.which("chromium")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

LOOK = (Path(__file__).parent / "look.js").read_text(encoding="utf-8")


class Seen(NamedTuple):
    """What there is to see, and what the browser's console said."""

    found: dict
    console: list[str]


def seen(page, folder, *, width, is_dark=False):
    """The page at this width; a window is never narrower than 500 pixels, a frame is."""
    (folder / "report.html").write_text(page, encoding="utf-8")
    (folder / "frame.html").write_text(
        f"""<iframe src="report.html" style="width:{width}px;height:900px;border:0"></iframe>
        <pre id="seen"></pre><script>{LOOK}
        setTimeout(function () {{ document.getElementById("seen").textContent = JSON.stringify(look()); }}, 1500);
        </script>""",
        encoding="utf-8",
    )
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--allow-file-access-from-files",
        f"--blink-settings=preferredColorScheme={0 if is_dark else 1}", f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=4000", "--window-size=1600,1000", "--dump-dom", f"file://{folder / 'frame.html'}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (text,) = re.findall(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    found = json.loads(text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return Seen(found, [line for line in done.stderr.splitlines() if "CONSOLE" in line])


def check_looks_right(page, folder, *, width, n_charts, is_dark=False):
    """Nothing is clipped, nothing lies upon anything, all can be read, the first screen has the answer."""
    found, console = seen(page, folder, width=width, is_dark=is_dark)
    assert console == []
    assert found["page_width"] <= found["wide"] <= width
    assert found["charts"] == found["live"] == n_charts
    assert found["images"] == 0
    assert found["outside"] == []
    assert found["overlaps"] == []
    assert found["faint"] == []
    if width >= 1280:
        tops = [top for top in found["tops"].values() if top is not None]
        assert all(0 <= top < 700 for top in tops), found["tops"]

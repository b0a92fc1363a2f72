"""Which scripts and styles does a page carry?"""

import base64
import hashlib
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import vl_convert
from markupsafe import Markup

from inferometer.errors import RecordError
from inferometer.records.durability import make_folder, replace_file

SNIPPET: Final = "window.vegaEmbed = vegaEmbed;"
"""The bundle's own name ``vega`` is null (Vega has no default export), so charts are drawn
through vega-embed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageScript:
    """The one script of a page, and the hash by which the page's policy knows it."""

    text: Markup
    sha256: str


def page_script() -> PageScript:
    """Vega with the notices of all that its bundle holds, which its minifier takes out, and what draws our charts with it."""
    text = f"/*!\n{resource('notices.txt')}*/\n{vega_bundle()}\n{resource('page.js')}"
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    # Package data and a library: no input of anybody's.
    return PageScript(text=Markup(text), sha256=digest)  # noqa: S704


def resource(name: str) -> Markup:
    """A file of the page that comes with the package."""
    # Package data: no input of anybody's.
    return Markup(  # noqa: S704
        resources.files("inferometer.report").joinpath("page", name).read_text(encoding="utf-8")
    )


def vega_bundle(cache_dir: Path | None = None) -> str:
    """Vega with its embedding as one script, from the user's cache or built (a second or more) and kept there."""
    folder = cache_dir or user_cache_dir()
    path = (
        folder
        / f"vega-{vl_convert.get_vega_version()}-embed-{vl_convert.get_vega_embed_version()}.js"
    )
    if path.is_file():
        return path.read_text(encoding="utf-8")
    script: str = vl_convert.javascript_bundle(SNIPPET)
    # A script element ends at the first such text, whatever JavaScript thinks of it.
    script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    try:
        make_folder(folder)
        replace_file(path, script.encode())
    except RecordError:
        # A home that cannot be written costs seconds for each report, not the report.
        return script
    return script


def user_cache_dir() -> Path:
    """Where this user's caches are: XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "inferometer"

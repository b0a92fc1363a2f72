import re
from pathlib import Path

import pytest
import vl_convert

from inferometer.report.html import page_script, vega_bundle


def test_built_once_then_read(tmp_path, monkeypatch):
    first = vega_bundle(tmp_path / "cache")
    assert "window.vegaEmbed" in first
    assert "</script" not in first
    monkeypatch.setattr(vl_convert, "javascript_bundle", None)
    assert vega_bundle(tmp_path / "cache") == first
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.fixture
def _quickly_built(monkeypatch):
    """Building the real one takes a second."""
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda snippet: f"vega; {snippet}")


@pytest.mark.usefixtures("_quickly_built")
def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path):
    (tmp_path / "file").write_text("")
    assert "window.vegaEmbed" in vega_bundle(tmp_path / "file" / "cache")


@pytest.mark.usefixtures("_quickly_built")
def test_cache_follows_xdg(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    vega_bundle()
    assert list((tmp_path / "inferometer").glob("vega-*.js"))


def test_the_page_carries_a_notice_of_every_library_of_its_bundle():
    """The bundler holds each library under its name on npm: none may be left out when it brings another."""
    library = Path(vl_convert.__file__).with_name("vl_convert.abi3.so")
    if not library.is_file():
        pytest.skip("vl-convert's library has another name on this platform")
    bundled = {
        name.decode()
        for name in re.findall(rb"/npm/((?:@[a-z]+/)?[a-z0-9.-]+)@[0-9]", library.read_bytes())
    }
    assert {"vega", "vega-lite", "vega-embed", "d3-array", "delaunator"} <= bundled
    script = page_script().text
    notices = script[: script.index("*/")]
    named = set(re.findall(r"[a-z0-9.-]+", notices))
    assert bundled <= named, bundled - named
    for licence in (
        "BSD 3-Clause License\nRedistribution",
        "ISC License\nPermission",
        "MIT License\nPermission",
    ):
        assert licence in notices

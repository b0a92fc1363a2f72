import pytest
import vl_convert

from inferometer.report.bundle import vega_bundle


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

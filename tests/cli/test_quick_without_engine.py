"""Does ``inferometer quick`` report a missing engine before it measures anything?"""

from command_line import check_refused, run

from inferometer.measure.environments import LIBRARIES


def test_a_missing_engine_is_reported_first(monkeypatch, tmp_path):
    monkeypatch.setitem(LIBRARIES, "openvino", ("no_such_library",))
    monkeypatch.setenv("INFEROMETER_ENGINES_DIR", str(tmp_path / "engines"))
    monkeypatch.delenv("INFEROMETER_OPENVINO_PYTHON", raising=False)
    outcome = run("quick", "smollm2-135m", "--engine", "openvino", folder=tmp_path)
    check_refused(
        outcome,
        2,
        "the engine openvino is not installed",
        "inferometer engines --install openvino",
        "pip install 'inferometer[openvino]'",
    )
    assert outcome.stderr.startswith("inferometer: the engine")
    assert not (tmp_path / "runs").exists()

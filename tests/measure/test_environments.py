import os
import re
import subprocess
import sys
from importlib.resources import files

import pytest

from inferometer.errors import EngineError, MissingEngineError, SpecError
from inferometer.measure.environments import (
    LIBRARIES,
    find_environment,
    install_environment,
    managed_folder,
    python_variable,
)

LOCKS = files("inferometer.measure") / "locks"
HASHED = ("docs", "core", "dev", "transformers", "vllm", "openvino", "smollm2", "ray", "otel")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)


def pins(name):
    return {
        found[0].lower().replace("_", "-"): found[1]
        for found in PIN.findall((LOCKS / f"{name}.lock").read_text())
    }


@pytest.fixture
def no_engines(monkeypatch, tmp_path):
    for engine in LIBRARIES:
        monkeypatch.delenv(python_variable(engine), raising=False)
    monkeypatch.setenv("INFEROMETER_ENGINES_DIR", str(tmp_path / "engines"))
    return tmp_path / "engines"


@pytest.mark.parametrize("name", HASHED)
def test_every_pin_has_a_hash(name):
    requirements = (LOCKS / f"{name}.lock").read_text().replace("\\\n", " ").strip().splitlines()
    assert requirements
    for requirement in requirements:
        assert "==" in requirement, requirement
        assert "--hash=sha256:" in requirement, requirement


@pytest.mark.parametrize("name", [*HASHED, "torch"])
def test_locks_name_no_place(name):
    assert not re.search(
        r"https?:|file:|--(?:extra-)?index|--find-links|/", (LOCKS / f"{name}.lock").read_text()
    )


@pytest.mark.parametrize(
    "names", [("core", "dev", "otel", "torch", "transformers"), ("core", "ray")]
)
def test_what_is_installed_together_agrees(names):
    seen = {}
    for name in names:
        for package, version in pins(name).items():
            assert seen.setdefault(package, (version, name))[0] == version, (
                f"{package}: {seen[package]} against {name}"
            )


def test_torch_comes_from_its_own_lock_only():
    assert pins("torch")["torch"] == "2.13.0"
    for name in HASHED:
        assert not {"torch", "torchvision", "torchaudio", "torchcodec", "triton"} & set(
            pins(name)
        ), name
        assert not [package for package in pins(name) if package.startswith("nvidia-c")], name


def test_an_engine_needs_what_the_worker_imports():
    for name in ("transformers", "vllm", "openvino"):
        assert {"msgspec", "numpy"} <= set(pins(name))


def test_a_variable_names_the_interpreter(no_engines, monkeypatch):
    monkeypatch.setenv("INFEROMETER_VLLM_PYTHON", sys.executable)
    found = find_environment("vllm")
    assert (str(found.python), found.where) == (sys.executable, "variable")


@pytest.mark.parametrize("value", ["/nowhere/python", os.curdir])
def test_a_variable_that_names_none_is_a_bad_question(no_engines, monkeypatch, value):
    monkeypatch.setenv("INFEROMETER_VLLM_PYTHON", value)
    with pytest.raises(SpecError, match="no program") as caught:
        find_environment("vllm")
    assert caught.value.where == "INFEROMETER_VLLM_PYTHON"


def test_this_interpreter_is_taken_where_it_has_the_library(no_engines, monkeypatch):
    monkeypatch.setitem(LIBRARIES, "openvino", ("msgspec",))
    assert find_environment("openvino").where == "here"


def test_without_an_engine_the_error_says_how_to_get_it(no_engines, monkeypatch):
    monkeypatch.setitem(LIBRARIES, "openvino", ("no_such_library",))
    with pytest.raises(MissingEngineError, match="openvino is not installed") as caught:
        find_environment("openvino")
    assert caught.value.try_ is not None
    assert "inferometer engines --install openvino" in caught.value.try_
    assert "pip install 'inferometer[openvino]'" in caught.value.try_
    assert caught.value.exit_code == 2
    assert "INFEROMETER_OPENVINO_PYTHON" in str(caught.value)


def test_an_interrupted_installation_is_none(no_engines, monkeypatch):
    monkeypatch.setitem(LIBRARIES, "openvino", ("no_such_library",))
    python = managed_folder("openvino") / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    with pytest.raises(MissingEngineError, match="not installed"):
        find_environment("openvino")


def test_the_cache_folder_is_the_default(monkeypatch, tmp_path):
    monkeypatch.delenv("INFEROMETER_ENGINES_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert managed_folder("vllm") == tmp_path / "inferometer" / "engines" / ".venv-vllm"


def test_a_folder_that_cannot_be_made_is_an_engine_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INFEROMETER_ENGINES_DIR", str(tmp_path / "file"))
    with pytest.raises(EngineError, match="cannot be made"):
        install_environment("openvino")


@pytest.mark.slow
def test_pip_s_own_words_reach_the_user(no_engines, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(EngineError, match="No matching distribution") as caught:
        install_environment("openvino")
    assert "goes on where it stopped" in (caught.value.try_ or "")
    monkeypatch.setitem(LIBRARIES, "openvino", ("no_such_library",))
    with pytest.raises(MissingEngineError, match="not installed"):
        find_environment("openvino")


@pytest.mark.slow
def test_an_environment_is_made_from_the_locks_and_found(no_engines, monkeypatch):
    monkeypatch.setitem(LIBRARIES, "openvino", ("no_such_library",))
    said = []
    made = install_environment("openvino", say=said.append)
    assert len(said) == 2
    assert find_environment("openvino") == made
    code = (
        "import importlib.metadata as m, msgspec, numpy, openvino_genai;"
        " print(m.version('openvino-genai'))"
    )
    answer = subprocess.run(
        [str(made.python), "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == pins("openvino")["openvino-genai"]
    install_environment("openvino", say=said.append)
    assert len(said) == 2, "what is complete is left alone"

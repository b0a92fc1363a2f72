"""The real transformers on a tiny random llama, in this process."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from inferometer.errors import EngineError, SpecError
from inferometer.inputs.types import EngineSpec, SweepPoint
from inferometer.measure.engines import transformers_engine
from inferometer.measure.engines.protocol import (
    ModelReference,
    OutOfMemory,
    is_memory,
    random_prompts,
)
from inferometer.measure.engines.transformers_engine import open_engine
from inferometer.measure.engines.transformers_loading import (
    configuration_of,
    replicated_parts,
    sharding,
)

POINT = SweepPoint(prompt_tokens=9, batch_size=3, gen_tokens=6)


def prompts(repetition: int = 0):
    return random_prompts(POINT, vocab_size=1000, seed=3, repetition=repetition)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny):
    """The tiny model as a Hugging Face folder: weights on disk."""
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("tiny")
    AutoModelForCausalLM.from_config(configuration_of(tiny.spec)).save_pretrained(path)
    return ModelReference(kind="folder", location=str(path), spec=tiny.spec)


@pytest.fixture(scope="module")
def eager(folder):
    return open_engine(EngineSpec(mode="eager"), folder)


@pytest.mark.slow
def test_facts_tell_what_is_loaded(eager, tiny):
    facts = eager.facts()
    assert (
        facts.n_parameters
        == 1000 * 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64) + 64
    )
    assert facts.weight_bytes == 4 * facts.n_parameters
    assert facts.weights_origin == "file"
    assert facts.weights_sha256 is not None
    assert facts.compile_s is None
    assert dict(facts.libraries)["torch"] == torch.__version__


def test_another_mode_and_other_threads_run_on_the_same_weights(folder):
    plain = EngineSpec(mode="eager", n_threads=2)
    engine = open_engine(plain, folder)
    first = engine.run(prompts(), POINT.gen_tokens).output_ids
    static = EngineSpec(mode="static", n_threads=1)
    n_before = torch.get_num_threads()
    try:
        engine.retune(static)
        assert torch.get_num_threads() == 1
        assert engine.run(prompts(), POINT.gen_tokens).output_ids == first
        held = engine._decoder.cache_bytes()
        engine.retune(plain)
        assert torch.get_num_threads() == 2
        assert engine.run(prompts(), POINT.gen_tokens).output_ids == first
        engine.retune(static)
        assert engine._decoder.cache_bytes() == held > 0  # nothing is allocated anew
    finally:
        torch.set_num_threads(n_before)


def test_batch_and_lengths_are_honoured(eager):
    repetition = eager.run(prompts(), POINT.gen_tokens)
    assert [len(ids) for ids in repetition.output_ids] == [6, 6, 6]
    assert len(repetition.decode_step_ns) == 5
    assert repetition.prefill_ns > 0
    assert all(step_ns > 0 for step_ns in repetition.decode_step_ns)


def test_one_token_has_no_decode(eager):
    assert eager.run(prompts(), 1).decode_step_ns == ()


def test_tokens_are_those_of_generate(eager, folder):
    model = AutoModelForCausalLM.from_pretrained(folder.location, dtype=torch.float32).eval()
    ids = torch.from_numpy(prompts())
    expected = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=6,
        min_new_tokens=6,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )[:, 9:]
    assert eager.run(prompts(), 6).output_ids == tuple(tuple(row) for row in expected.tolist())


@pytest.mark.slow
def test_static_cache_gives_the_same_tokens_again_and_again(eager, folder):
    static = open_engine(EngineSpec(mode="static"), folder)
    for repetition in (0, 1, 0):
        assert (
            static.run(prompts(repetition), 6).output_ids
            == eager.run(prompts(repetition), 6).output_ids
        )


@pytest.mark.slow
def test_random_weights_are_built_in_their_dtype(tiny):
    engine = open_engine(EngineSpec(dtype="bfloat16", load_format="dummy"), tiny)
    facts = engine.facts()
    assert facts.weight_bytes == 2 * facts.n_parameters
    assert facts.weights_origin == "random"
    first, again = (engine.run(prompts(), 6).output_ids for _ in range(2))
    assert first == again
    assert len({token for ids in first for token in ids}) > 1, (
        "all the same token: the weights are not random"
    )


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"device": "cuda"}, "cuda"),
        ({"dtype": "int4"}, "int4"),
        ({"dtype": "float8"}, "float8"),
        ({"quantization": "float8"}, "quantization"),
        ({"quantization": "int8", "tensor_parallel_size": 2}, "quantization"),
        ({"kv_cache_dtype": "float8"}, "KV cache"),
    ],
)
def test_what_it_cannot_do_is_a_bad_question(tiny, changes, word):
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(SpecError, match=word) as error:
        open_engine(EngineSpec(load_format="dummy", **changes), tiny)
    assert error.value.allowed


def test_an_unknown_model_is_a_bad_question():
    with pytest.raises(SpecError, match="no-such-model"):
        open_engine(
            EngineSpec(), ModelReference(kind="hub", location="nobody/no-such-model", spec=None)
        )


def test_an_encoder_decoder_is_a_bad_question(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}')
    with pytest.raises(SpecError, match="encoder-decoder"):
        open_engine(EngineSpec(), ModelReference(kind="folder", location=str(tmp_path), spec=None))


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("origin", ["auto", "dummy"])
def test_the_attention_kernel_is_the_one_asked_for(folder, eager, attention, origin):
    engine = open_engine(EngineSpec(attention=attention, load_format=origin), folder)
    assert engine.facts().attention_implementation == attention
    if origin == "auto":
        same = eager.run(prompts(), POINT.gen_tokens).output_ids
        assert engine.run(prompts(), POINT.gen_tokens).output_ids == same


def test_an_attention_kernel_that_is_not_installed_is_said(tiny):
    with pytest.raises((EngineError, SpecError), match=r"[Ff]lash"):
        open_engine(EngineSpec(attention="flash_attention_2", load_format="dummy"), tiny)


def test_a_folder_without_weights_fails_in_words(tmp_path, tiny):
    configuration_of(tiny.spec).save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="could not load"):
        open_engine(EngineSpec(), ModelReference(kind="folder", location=str(tmp_path), spec=None))


def test_a_batch_larger_than_memory_is_refused_and_the_engine_lives(eager):
    huge = np.zeros((1_000_000, 1), dtype=np.int64)
    with pytest.raises(OutOfMemory, match="KV cache"):
        eager.run(np.broadcast_to(huge, (1_000_000, 400)), 100)
    assert len(eager.run(prompts(), 6).output_ids) == 3


def test_weights_larger_than_memory_are_refused(tiny, monkeypatch):
    monkeypatch.setattr(transformers_engine, "available_bytes", lambda: 256 * 2**20 + 1000)
    with pytest.raises(OutOfMemory, match="weights"):
        open_engine(EngineSpec(load_format="dummy"), tiny)


@pytest.mark.parametrize(
    "words",
    [
        "DefaultCPUAllocator: can't allocate memory: you tried",
        "CUDA out of memory. Tried to",
        "std::bad_alloc",
    ],
)
def test_want_of_memory_is_recognised(words):
    assert is_memory(RuntimeError(words))
    assert not is_memory(RuntimeError("shape '[1]' is invalid"))


def test_attention_is_sharded_only_where_heads_divide(tiny):
    config = configuration_of(tiny.spec)
    assert sharding(config, EngineSpec(tensor_parallel_size=2)).tp_plan == "auto"
    plan = sharding(config, EngineSpec(tensor_parallel_size=4)).tp_plan
    assert set(plan.values()) == {"replicate"}
    assert all("self_attn" in name for name in plan)
    assert replicated_parts(config, EngineSpec(tensor_parallel_size=2)) == ()
    assert replicated_parts(config, EngineSpec(tensor_parallel_size=4)) == ("attention",)

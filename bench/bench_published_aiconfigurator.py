"""How far is AIConfigurator from the published loads that ``bench_published_devices.py`` foretells from others, row by row?

Its release is installed into an environment of its own (databases of kernels included, 115 MB), and
asked for closed loops in its aggregated mode: same model, device, engine, precision, lengths,
tensor parallelism and users; its own defaults besides, and its newest database of the engine. It
was fitted to no row, nor does it know from which version of an engine a row comes. Many of the rows
lie in its own package (``silicon_sample.csv``): its makers hold it against them. Each answer takes
a second or more, so of each group some rows are asked. Ours beside it: ``--errors`` is what
``bench_published_devices.py --keep`` wrote, on rows that both foretell.
"""

import argparse
import hashlib
import json
import os
import pickle
import subprocess
import venv
from pathlib import Path

import numpy as np
from bench_published_devices import DATA, groups_of, half, tables
from results_log import log_row

from inferometer.fit.published.loads import published_loads

RELEASE = "aiconfigurator==0.12.0"
TABLES = ("inferencemax-official-2025-11", "inferencex-silicon")
MODELS = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B-FP8",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "deepseek-r1": "deepseek-ai/DeepSeek-R1",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
}
FORMATS = {"fp8": "fp8", "fp4": "nvfp4", "bf16": "bfloat16", "": "bfloat16"}
OWN_FORMAT = {
    "gpt-oss-120b": ("fp4", "fp8"),
    "deepseek-r1": ("fp8",),
    "deepseek-v3": ("fp8",),
    "qwen3-235b-a22b": ("fp8",),
}
"""Precisions in which the checkpoint comes: it finds these out for itself."""


def question(one):
    asked = {
        "model_path": MODELS[one.model.model_id],
        "system_name": one.hardware.hardware_id,
        "backend_name": one.framework,
        "isl": one.load.prompt_tokens,
        "osl": one.load.output_tokens,
        "batch_size": one.load.concurrency,
        "tp_size": one.engine.tensor_parallel_size,
    }
    if one.model.moe is not None:
        asked |= {"moe_tp_size": one.engine.tensor_parallel_size, "moe_ep_size": 1}
    if one.precision not in OWN_FORMAT.get(one.model.model_id, ()):
        asked["gemm_quant_mode"] = FORMATS[one.precision]
        if one.model.moe is not None:
            asked["moe_quant_mode"] = FORMATS[one.precision]
    return asked


def answers_of(loads, environment, scratch, limit_s):
    scratch.mkdir(parents=True, exist_ok=True)
    asked, told = scratch / "questions.jsonl", scratch / "answers.jsonl"
    asked.write_text("".join(json.dumps(question(one)) + "\n" for one in loads))
    driver = Path(__file__).with_name("aiconfigurator_driver.py")
    try:
        subprocess.run(
            [environment / "bin" / "python", driver, asked, told], check=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        print(f"stopped after {limit_s:g} s: what it had answered is compared")
    return [json.loads(line) for line in told.read_text().splitlines()]


def installed(environment):
    if not (environment / "ready").exists():
        print(f"installing {RELEASE} into {environment}", flush=True)
        venv.create(environment, with_pip=True)
        subprocess.run(
            [environment / "bin" / "python", "-m", "pip", "install", "--quiet", RELEASE], check=True
        )
        (environment / "ready").touch()
    return environment


def ours_of(path):
    """(question, label) -> our errors of TPOT and TTFT."""
    rows = pickle.loads(path.read_bytes())  # noqa: S301 -- written by the other benchmark
    return {
        (row[0], row[2], label): errors
        for row in rows
        for label, errors in zip(row[8], row[5][:2].T, strict=True)
    }


def words(errors):
    return f"{np.median(errors):.1%} (90th {np.percentile(errors, 90):.1%})"


def compared(name, keys, errors, ours):
    """One row for each question: of the rows that both foretell."""
    for asked in dict.fromkeys(key[0] for key in ours):
        both = [
            (errors[k], ours[asked, *key])
            for k, key in enumerate(keys)
            if (asked, *key) in ours and np.all(np.isfinite(errors[k]))
        ]
        if not both:
            continue
        theirs, mine = (np.array(part) for part in zip(*both, strict=True))
        told = ", ".join(
            f"{metric} {words(theirs[:, k])} against our {words(mine[:, k])}"
            for k, metric in enumerate(("tpot", "ttft"))
        )
        log_row(
            f"published devices: {RELEASE} beside ours, {asked}, {name}",
            told,
            f"{len(both)} rows that both foretell",
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("INFEROMETER_PUBLISHED_DATA", DATA)
    )
    parser.add_argument(
        "--folder", type=Path, required=True, help="Of its environment and its answers."
    )
    parser.add_argument(
        "--most",
        type=int,
        default=8,
        help="Rows of a group, by hash of what they ask: each takes it a second or more.",
    )
    parser.add_argument("--limit-s", type=float, help="Then what it has answered is compared.")
    parser.add_argument("--errors", type=Path, help="Ours, as the other benchmark kept them.")
    arguments = parser.parse_args()
    environment = installed(arguments.folder / "environment")
    loads, groups = [], []
    for name in TABLES:
        for key, rows in sorted(
            groups_of(published_loads(tables(Path(arguments.data), name)).loads, name).items()
        ):
            if rows[0].hardware.vendor == "nvidia":
                chosen = sorted(
                    rows, key=lambda one: hashlib.sha256(repr(one.key).encode()).hexdigest()
                )[: arguments.most]
                loads += chosen
                groups += [key] * len(chosen)
    order = sorted(
        range(len(loads)), key=lambda k: (loads[k].hardware.hardware_id, loads[k].framework)
    )
    loads, groups = [loads[k] for k in order], [groups[k] for k in order]
    told = answers_of(loads, environment, arguments.folder, arguments.limit_s)
    loads, groups = loads[: len(told)], groups[: len(told)]
    found = (
        np.array([(one.get("tpot_ms", np.nan), one.get("ttft_ms", np.nan)) for one in told]) / 1e3
    )
    errors = np.abs(found / np.array([(one.tpot_s, one.ttft_s) for one in loads]) - 1)
    why = {}
    for one, group in zip(told, groups, strict=True):
        why.setdefault(one.get("why_not", "")[:120], set()).add(" ".join(group[1:]))
    for reason, where in why.items():
        if reason:
            print(f"not told: {reason}: {sorted(where)}")
    for group in dict.fromkeys(groups):
        mine = np.array([errors[k] for k in range(len(loads)) if groups[k] == group])
        mine = mine[np.all(np.isfinite(mine), axis=1)]
        if len(mine):
            print(
                f"  {' '.join(group):65} {len(mine):4} rows  tpot {words(mine[:, 0])}  ttft"
                f" {words(mine[:, 1])}"
            )
    ours = ours_of(arguments.errors) if arguments.errors else {}
    for side in ("reported", "learned"):
        mine = np.array([half(group[2:]) == (side == "reported") for group in groups]) & np.all(
            np.isfinite(errors), axis=1
        )
        told_ = ", ".join(
            f"{metric} {words(errors[mine, k])}" for k, metric in enumerate(("tpot", "ttft"))
        )
        devices = ", ".join(
            sorted({group[1] for group, is_mine in zip(groups, mine, strict=True) if is_mine})
        )
        log_row(
            f"published devices: {RELEASE}, {side} half",
            told_,
            f"{mine.sum()} closed loops on {devices}, none fitted",
        )
        keys = [
            (group[0], one.label)
            for group, one, is_mine in zip(groups, loads, mine, strict=True)
            if is_mine
        ]
        compared(f"{side} half", keys, errors[mine], ours)


if __name__ == "__main__":
    main()

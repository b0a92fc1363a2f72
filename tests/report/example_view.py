"""A view with realistic numbers: the published sweep of Qwen2.5-3B on a laptop GPU, and a second run beside it."""

from dataclasses import replace

from inferometer.inputs.types import Caution
from inferometer.report.views import (
    CeilingMoment,
    Curve,
    CurvePoint,
    Explained,
    FactGroup,
    FiveLines,
    HeldOutRow,
    ParameterRow,
    PointRow,
    PredictedPoint,
    RoofCeiling,
    RooflinePoint,
    RooflineView,
    Statement,
    SweepReportView,
    TimePart,
)
from inferometer.stats.estimate import Estimate

EAGER = "fp16 eager"
GRAPHS = "fp16 graphs"
WEIGHT_BYTES = 6.17e9
KV_BYTES = 36_864
N_PARAMETERS = 3.086e9
# (prompt, batch, prefill ms, reserved MB, decode ms per generated token), published; 512 and 1024
# of the batch-1 axis lie between.
PUBLISHED = (
    (128, 1, 34.79, 5974, 26.119),
    (512, 1, 97.41, 6212, 26.433),
    (2048, 1, 602.25, 7412, 29.386),
    (4096, 1, 1756.57, 12116, 36.124),
    (128, 4, 84.44, 6216, 28.164),
    (128, 16, 361.28, 7154, 31.288),
    (128, 64, 1547.56, 10716, 64.221),
)


def estimate(value, spread=0.02, n=7):
    if n < 6:
        return Estimate(
            value=value,
            low=None,
            high=None,
            confidence_fraction=0.95,
            n_samples=n,
            method=f"{n} samples carry no 95 % interval",
        )
    low, high = value * (1 - spread), value * (1 + 1.3 * spread)
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence_fraction=0.95,
        n_samples=n,
        method="order statistics of the median",
    )


def point(label, prompt, batch, prefill_ms, reserved_mb, step_ms, *, n=7, flags=()):
    prefill_s, step_s = prefill_ms / 1e3, step_ms / 1e3
    read_bytes = WEIGHT_BYTES + batch * (prompt + 16) * KV_BYTES
    flop = 2 * N_PARAMETERS * prompt * batch
    return PointRow(
        run_label=label,
        prompt_tokens=prompt,
        batch_size=batch,
        gen_tokens=32,
        status="ok",
        n_reps=n,
        ttft_s=estimate(prefill_s, 0.03, n),
        tpot_s=estimate(step_s, 0.015, n),
        decode_step_s=estimate(step_s, 0.015, n),
        prefill_tokens_per_s=estimate(prompt * batch / prefill_s, 0.03, n),
        decode_tokens_per_s=estimate(batch / step_s, 0.015, n),
        output_tokens_per_s=estimate(batch * 32 / (prefill_s + 32 * step_s), 0.02, n),
        total_tokens_per_s=estimate(batch * (prompt + 32) / (prefill_s + 32 * step_s), 0.02, n),
        reserved_bytes=estimate(reserved_mb * 1e6, 0.0, n),
        allocated_bytes=estimate(reserved_mb * 0.94e6, 0.0, n),
        device_fraction=estimate(0.61, 0.05, n),
        cpu_fraction=None,
        energy_joule=estimate(2.6, 0.05, n),
        power_watt=estimate(2.6 / (prefill_s + 32 * step_s), 0.05, n),
        minor_faults=estimate(900.0, 0.1, n),
        major_faults=estimate(0.0, 0.0, n),
        unused_reserved_fraction=estimate(0.12, 0.02, n),
        energy_joule_per_token=estimate(2.6 / batch / 32, 0.05, n),
        mbu_fraction=estimate(read_bytes / step_s / 580e9, 0.02, n),
        mfu_fraction=estimate(flop / prefill_s / 88e12, 0.03, n),
        mbu_datasheet_fraction=estimate(read_bytes / step_s / 672e9, 0.02, n),
        mfu_datasheet_fraction=estimate(flop / prefill_s / 119e12, 0.03, n),
        predicted_decode_step_s=estimate(step_s * 0.97, 0.05, n),
        predicted_ttft_s=estimate(prefill_s * 1.04, 0.08, n),
        decode_limited_by="host launch" if batch < 16 else "weights",
        prefill_limited_by="matmul",
        flags=flags,
    )


def out_of_memory(label, prompt, batch):
    names = [
        "ttft_s", "tpot_s", "decode_step_s", "prefill_tokens_per_s", "decode_tokens_per_s", "total_tokens_per_s",
        "reserved_bytes", "allocated_bytes", "device_fraction", "cpu_fraction", "energy_joule", "mbu_fraction", "mfu_fraction",
        "minor_faults", "major_faults", "unused_reserved_fraction", "power_watt", "energy_joule_per_token", "output_tokens_per_s",
        "mbu_datasheet_fraction", "mfu_datasheet_fraction", "predicted_decode_step_s", "predicted_ttft_s", "decode_limited_by",
        "prefill_limited_by",
    ]  # fmt: skip
    row = point(label, prompt, batch, 1.0, 1.0, 1.0)
    return replace(
        row, status="out_of_memory", n_reps=1, flags=("OUT_OF_MEMORY",), **dict.fromkeys(names)
    )


def curves(label, batch_one, prompt_short):
    """Interpolated through the points in log-log, with a band: a stand-in for what the fitted model says."""
    prefill = tuple(
        CurvePoint(
            prompt_tokens=p,
            batch_size=1,
            duration_s=estimate(0.012 + 2.0e-4 * p + 5.4e-8 * p * p, 0.07),
            is_inside_box=p <= 4096,
        )
        for p in (64, 128, 256, 512, 1024, 2048, 3072, 4096, 6144)
    )
    decode = tuple(
        CurvePoint(
            prompt_tokens=128,
            batch_size=b,
            duration_s=estimate(max(batch_one, 0.019 + 0.0007 * b), 0.06),
            is_inside_box=b <= 64,
        )
        for b in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96)
    )
    return (
        Curve(run_label=label, phase="prefill", points=prefill),
        Curve(
            run_label=label,
            phase="decode",
            points=tuple(replace(c, prompt_tokens=prompt_short) for c in decode),
        ),
    )


def explained(row):
    step_s = row.decode_step_s.value
    weights_s = WEIGHT_BYTES / 580e9
    kv_s = row.batch_size * (row.prompt_tokens + 16) * KV_BYTES / 580e9
    launch_s = max(0.0, min(0.0145, step_s - weights_s - kv_s))
    per_sequence_s = 0.00008 * row.batch_size
    logits_s = 0.0004
    rest_s = step_s - weights_s - kv_s - launch_s - per_sequence_s - logits_s
    parts = {
        "launch": launch_s, "weights": weights_s, "kv": kv_s, "per_sequence": per_sequence_s, "logits": logits_s, "unexplained": rest_s,
    }  # fmt: skip
    return Explained(
        run_label=row.run_label,
        phase="decode",
        prompt_tokens=row.prompt_tokens,
        batch_size=row.batch_size,
        measured_s=row.decode_step_s,
        parts=tuple(TimePart(name=name, duration_s=value) for name, value in parts.items()),
        limited_by="weights",
    )


def roofline(points):
    rows = []
    for row in points:
        if row.status != "ok":
            continue
        read = WEIGHT_BYTES + row.batch_size * (row.prompt_tokens + 16) * KV_BYTES
        flop = 2 * N_PARAMETERS * row.batch_size
        rows.append(
            RooflinePoint(
                run_label=row.run_label, phase="decode", prompt_tokens=row.prompt_tokens, batch_size=row.batch_size,
                intensity_flop_per_byte=flop / read, achieved_flop_per_s=row.decode_step_s.inverted(flop),
            )
        )  # fmt: skip
        flop *= row.prompt_tokens
        rows.append(
            RooflinePoint(
                run_label=row.run_label, phase="prefill", prompt_tokens=row.prompt_tokens, batch_size=row.batch_size,
                intensity_flop_per_byte=flop / read, achieved_flop_per_s=row.ttft_s.inverted(flop),
            )
        )  # fmt: skip
    ceilings = (
        RoofCeiling(
            label="measured: 580 GB/s, 88 TFLOP/s",
            kind="measured",
            read_bytes_per_s=580e9,
            peak_flop_per_s=88e12,
        ),
        RoofCeiling(
            label="data sheet: 672 GB/s, 119 TFLOP/s",
            kind="datasheet",
            read_bytes_per_s=672e9,
            peak_flop_per_s=119e12,
        ),
    )
    return RooflineView(ceilings=ceilings, points=tuple(rows))


def predictions(points):
    found = []
    for index, row in enumerate(row for row in points if row.status == "ok"):
        where = {
            "run_label": row.run_label,
            "prompt_tokens": row.prompt_tokens,
            "batch_size": row.batch_size,
            "is_held_out": index % 2 == 0,
        }
        found.append(
            PredictedPoint(
                phase="prefill", measured_s=row.ttft_s, predicted_s=row.predicted_ttft_s, **where
            )
        )
        found.append(
            PredictedPoint(
                phase="decode",
                measured_s=row.decode_step_s,
                predicted_s=row.predicted_decode_step_s,
                **where,
            )
        )
    return tuple(found)


def ceilings(label):
    return tuple(
        CeilingMoment(
            run_label=label,
            elapsed_s=4.0 * i,
            kind=kind,
            value_per_s=peak * (1 - 0.001 * i + 0.01 * ((i * step) % 5 - 2)),
        )
        for i in range(40)
        for kind, peak, step in (("read", 580e9, 7), ("copy", 540e9, 9), ("matmul", 88e12, 11))
    )


def example_view():
    """Everything that a report can show: two runs, flags, an out-of-memory point, points without an interval."""
    eager = [point(EAGER, *row) for row in PUBLISHED]
    eager[3] = replace(eager[3], flags=("COLLAPSE_PREFILL(x3.4)",))
    graphs = [
        point(
            GRAPHS,
            p,
            b,
            ms * 0.93,
            mb * 1.05,
            max(12.4 + (step - 26.1), step * 0.6),
            n=7 if b < 16 else 3,
        )
        for p, b, ms, mb, step in PUBLISHED
    ]
    points = (*eager, out_of_memory(EAGER, 128, 128), *graphs, out_of_memory(GRAPHS, 128, 128))
    return SweepReportView(
        title="Qwen2.5-3B-Instruct",
        subtitle="2 runs · NVIDIA GeForce RTX 5070 Ti Laptop GPU · 36 points · 2026-11-21",
        five_lines=FiveLines(
            answer=(
                "At batch 16 (prompt 128) one step takes 31.3 ms [30.8, 31.9]: 511 output tok/s;"
                " the knee is at batch 29 [25, 33]."
            ),
            limit=(
                "Up to batch 16 the host's kernel launches (56 % of a step); from 29 on, the"
                " matmuls."
            ),
            next="Replay decode steps as CUDA graphs: 31.3 → 18.8 ms predicted at batch 16.",
            trust=(
                "Held-out error 3.1 % median, 7.9 % p95 on 7 points; ceilings drifted 1.2 %;"
                " nothing flagged but prompt 4096."
            ),
            report="runs/qwen-3b-eager/report.html",
        ),
        points=points,
        curves=(*curves(EAGER, 0.0265, 128), *curves(GRAPHS, 0.0135, 128)),
        roofline=roofline(points),
        predictions=predictions(points),
        explained=tuple(explained(row) for row in points if row.status == "ok"),
        ceilings=(*ceilings(EAGER), *ceilings(GRAPHS)),
        statements=(
            Statement(
                sentence=(
                    "Throughput grows 26.5 times from batch 1 to 64 while a step takes 2.4 times as"
                    " long."
                ),
                support="supported",
            ),
            Statement(
                sentence=(
                    "Prefill per token is not constant: it rises 1.58 times from 128 to 4096"
                    " tokens."
                ),
                support="supported",
            ),
            Statement(
                sentence="The two runs may differ in prefill; 7 repetitions do not tell.",
                support="undecided",
            ),
        ),
        cautions=(
            Caution(
                code="MEMORY_SPILL",
                text="Prompt 4096 reserved 12.1 GB of 12.0 GB.",
                remedy="Lower --seq to 3072 or use a smaller KV dtype.",
            ),
            Caution(
                code="POWER_CAP",
                text="The GPU was power-capped at 95 W in 34 % of samples.",
                remedy="nvidia-smi -pl, or plug in the charger.",
            ),
        ),
        parameters=(
            ParameterRow(
                name="host launch overhead",
                value="14.5 ms",
                interval="14.1–14.9 ms",
                informed_by="batches 1–4",
            ),
            ParameterRow(
                name="effective read bandwidth",
                value="541 GB/s",
                interval="520–563 GB/s",
                informed_by="batches 16–64",
            ),
        ),
        held_out=(
            HeldOutRow(
                run_label="example",
                phase="decode",
                n_points=7,
                median_fraction=0.031,
                p95_fraction=0.079,
                coverage_fraction=0.93,
            ),
            HeldOutRow(
                run_label="example",
                phase="prefill",
                n_points=7,
                median_fraction=0.042,
                p95_fraction=0.11,
                coverage_fraction=0.86,
            ),
        ),
        fact_groups=(
            FactGroup(
                title="Model",
                facts=(
                    ("name", "Qwen2.5-3B-Instruct"),
                    ("parameters", "3.09 B"),
                    ("KV bytes/token", "36,864 B"),
                ),
            ),
            FactGroup(
                title="Machine",
                facts=(
                    ("accelerator", "NVIDIA GeForce RTX 5070 Ti Laptop GPU"),
                    ("power limit", "95 W"),
                ),
            ),
        ),
        files=(
            ("record", "runs/qwen-3b-eager/run.parquet"),
            ("table", "runs/qwen-3b-eager/points.csv"),
        ),
        rerun_command=(
            "inferometer sweep --model Qwen/Qwen2.5-3B-Instruct --dtype fp16 --seq"
            " 128,512,2048,4096 --batch-sizes 1,4,16,64"
        ),
        tool_version="0.1.0",
    )


def one_run_view():
    """One run with a small sweep: no legend of runs, no predictions."""
    view = example_view()
    points = tuple(row for row in view.points if row.run_label == EAGER)
    return replace(
        view,
        points=points,
        curves=(),
        predictions=(),
        explained=(),
        ceilings=(),
        roofline=None,
        held_out=(),
        parameters=(),
    )


def bare_view():
    """A run that measured nothing."""
    lines = FiveLines(
        answer="Nothing was measured.",
        limit="Unknown.",
        next="Run a sweep.",
        trust="None.",
        report="–",
    )
    return SweepReportView(title="Nothing", subtitle="no points", five_lines=lines, points=())

"""The page ``docs/accuracy.md``, its curves and the README's sentence, from ``bench/results`` alone.

The text is ``bench/results/accuracy.md``; each ``{name}`` in it is a table or a number below.
"""

import json
import math
from pathlib import Path

from bench_published_elsewhere import FILE, read_rows, summary_table

from inferometer.api.ledger import BEGIN, END
from inferometer.api.verify_view import ledger_markdown
from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.records.reading import read_run
from inferometer.report.charts.curves import CurvePoint, NamedCurve, curve_chart
from inferometer.report.charts.plot import Axis
from inferometer.report.charts.svg import svg_file
from inferometer.verify.ledger import read_ledger, score_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
RECORD, TEXT = RESULTS / "accuracy.json", RESULTS / "accuracy.md"
PAGE, IMAGES = ROOT / "docs" / "accuracy.md", ROOT / "docs" / "images"
README = ROOT / "README.md"
IN_README = (
    "<!-- published rows: made by `python bench/accuracy.py --page` -->\n",
    "<!-- the end of published rows -->\n",
)
WAYS = {
    "concurrency": "other concurrencies of the same group (*in-device*)",
    "degree": "another number of devices (*TP*)",
    "lengths": "other prompt and output lengths",
    "batches": "larger batches than any seen (up to 16 users seen)",
    "few rows": "few rows: three along each axis",
    "topology": "a topology without any row of its own",
    "device": "another device: rows of other devices alone",
    "model": "another model on the device: pooled efficiencies",
    "model, clients": "the same with the time of the tables' clients, by their other rows",
    "datasheet": "a device without rows: pooled efficiencies and its datasheet",
    "datasheet, clients": "the same with the time of the tables' clients",
}
WITH_INTERVALS = tuple(way for way in WAYS if not way.endswith("clients"))
"""Ways whose widths are set; the others have those of what the package predicts."""
IN_SHORT = {
    "concurrency": "rows of the same server at other numbers of users",
    "lengths": "rows of the same model and device at other lengths",
    "device": "rows of the same model on other devices",
    "model": "rows of other models on this device",
    "datasheet": "rows of other devices, and this one's datasheet",
}
OTHERS = {"beside": "the comparison with AISimulate", "runs": "the published runs of requests"}
METRICS = {"tpot": "TPOT", "ttft": "TTFT"}
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
TOOLS = {
    "inferometer": "Inferometer",
    "aisimulate": "AISimulate 0.13",
    "aiconfigurator": "AIConfigurator",
    "roofline": "the roofline",
}


def percent(value):
    """``3.1 %``; ``–`` where it is not known, as where more than this share has no prediction."""
    if value is None:
        return "–"
    digits = 1 if value < 0.0995 else 0
    return f"{100 * value:,.{digits}f} %"


def whole(value):
    return "–" if value is None else f"{100 * value:.0f} %"


def table(header, rows):
    """A table of Markdown whose first column is text and whose others are numbers."""
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def way_table(found, metric):
    """All engines, on the reported half; the last column is the learned half's coverage."""
    rows = []
    for way, words in WAYS.items():
        told, learned = (found.get((way, side, "all"), {}) for side in ("reported", "learned"))
        if metric not in told:
            continue
        one = told[metric]
        rows.append(
            [
                words,
                f"{told['n_rows']:,}",
                f"{told['n_failed']:,}",
                percent(one["median"]),
                percent(one["p90"]),
                whole(one["inside"]),
                f"×/÷ {math.exp(one['half_median']):.2f}",
                f"{one['width_over_need']:.2f}",
                percent(one["roofline"]),
                whole(learned.get(metric, {}).get("inside")),
            ]
        )
    header = [METRICS[metric], "rows", "not predicted", "median error", "90th percentile"]
    header += ["inside", "interval", "over need", "roofline", "inside, learned half"]
    return table(header, rows)


def summary_rows(found):
    """The reported half in short: what is known, TPOT, TTFT, and how many rows are inside."""
    for way, words in IN_SHORT.items():
        facts = [found[way, "reported", "all"][metric] for metric in METRICS]
        errors = [f"{percent(one['median'])}, {percent(one['p90'])}" for one in facts]
        inside = " / ".join(whole(one["inside"]) for one in facts)
        yield f"| {words} | {' | '.join(errors)} | {inside} |"


def engine_table(found, metric):
    rows = []
    for way, words in WAYS.items():
        cells = []
        for engine in ENGINES:
            one = found.get((way, "reported", engine), {}).get(metric)
            n_rows = found.get((way, "reported", engine), {}).get("n_rows", 0)
            cells.append(
                f"{percent(one['median'])} ({percent(one['p90'])}), {whole(one['inside'])}, n ="
                f" {n_rows:,}"
                if one
                else "–"
            )
        rows.append([words, *cells])
    return table([METRICS[metric], *ENGINES.values()], rows)


def beside_table(beside):
    rows = []
    for facts in beside["engines"]:
        tools = [" / ".join(percent(value) for value in facts["medians"][tool]) for tool in TOOLS]
        nearer = " / ".join(whole(value) for value in facts["nearer"]["aisimulate"])
        name = ENGINES.get(facts["engine"], "all")
        counts = [facts["n_topologies"], facts["n_failed"]]
        rows.append([name, *counts, *tools, nearer])
    header = ["engine", "topologies", "not predicted", *TOOLS.values(), "nearer than AISimulate"]
    return table(header, rows)


def cohort_table(cohort):
    rows = []
    for name, facts in cohort.items():
        left_out = facts["left_out"]
        n_rows = facts["n_loops"] + sum(left_out.values())
        rows.append([f"**{name}**", f"{n_rows:,}", "all"])
        rows += [[why, f"{n:,}", "left out"] for why, n in left_out.items()]
        rows.append(["closed loops", f"{facts['n_loops']:,}", "the cohort"])
        rows.append(
            [
                "of these, more than the engine has room for by its settings",
                f"{facts['n_without_room']:,}",
                "not predicted",
            ]
        )
    return table(["rows", "number", "here"], rows)


def run_table(runs):
    rows = [
        [
            one["run"],
            one["n_fitted"],
            " / ".join(f"{100 * value:+.1f} %" for value in one["held_out"]),
            f"{100 * one['worst']:+.1f} % ({one['worst_of']})",
            " / ".join(f"{100 * value:+.1f} %" for value in one["whole"]),
            " / ".join(f"{100 * value:+.1f} %" for value in one["theirs"]),
            f"{one['n_nearer']} of 12",
        ]
        for one in runs
    ]
    header = ["run", "requests fitted", "means of the second half: TTFT / TPOT / E2E"]
    header += ["worst of 12", "whole run", "the authors' simulator", "as near or nearer"]
    return table(header, rows)


def sweep_table():
    rows = [
        [
            folder.name,
            error.phase,
            error.n_points,
            f"{100 * error.median_fraction:.1f} %",
            f"{100 * error.p95_fraction:.1f} %",
            f"{100 * error.coverage_fraction:.0f} %",
        ]
        for folder in sorted((ROOT / "tests" / "fit" / "data").iterdir(), key=_size_of)
        for error in fit_step_time([read_run(folder)]).held_out
    ]
    header = ["sweep", "phase", "points", "median error", "95th percentile"]
    return table([*header, "inside the 90 % interval"], rows)


def _size_of(folder):
    return (not folder.name.startswith("smollm2"), not folder.name.endswith("float32"))


def error_curve(found, metric, quantiles):
    """Share of rows nearer than an error, of each way."""
    curves = []
    for way in WITH_INTERVALS:
        one = found.get((way, "reported", "all"), {}).get(metric)
        if one:
            points = [
                CurvePoint(100 * value, 100 * q, None, None, way)
                for q, value in zip(quantiles, one["quantiles"], strict=True)
                if value is not None
            ]
            curves.append(NamedCurve(way, tuple(points)))
    title = f"{METRICS[metric]}: share of rows within an error, by way of predicting"
    return curve_chart(
        f"accuracy-{metric}",
        title,
        title,
        curves,
        x=Axis(title="error (%)", scale="log", low=0.5, high=200.0),
        y=Axis(title="rows within it (%)", low=0.0, high=100.0),
    )


def coverage_curve(found, metric, levels):
    """Share of rows inside intervals of other widths, of each way."""
    ends = (100 * levels[0], 100 * levels[-1])
    curves = [
        NamedCurve(
            way,
            tuple(
                CurvePoint(100 * level, 100 * value, None, None, way)
                for level, value in zip(levels, one["levels"], strict=True)
            ),
        )
        for way in WITH_INTERVALS
        if (one := found.get((way, "reported", "all"), {}).get(metric))
    ]
    curves.append(NamedCurve("calibrated", tuple(CurvePoint(e, e, None, None, "") for e in ends)))
    title = f"{METRICS[metric]}: claimed against observed coverage, reported half"
    return curve_chart(
        f"accuracy-coverage-{metric}",
        title,
        title,
        curves,
        x=Axis(title="claimed (%)", low=ends[0], high=ends[1]),
        y=Axis(title="observed (%)", low=40.0, high=100.0),
    )


def uncalibrated(record):
    """Ways and engines whose interval holds too few or too many rows, or is too wide."""
    low, high, widest = 0.85, 0.95, 1.3
    rows = [
        [
            WAYS[one["way"]],
            ENGINES.get(one["engine"], "all"),
            METRICS[metric],
            whole(one[metric]["inside"]),
            f"{one[metric]['width_over_need']:.2f}",
        ]
        for one in record["ways"]
        if one["way"] in WITH_INTERVALS
        for metric in METRICS
        if one["side"] == "reported"
        and not (
            low - 5e-3 <= one[metric]["inside"] <= high + 5e-3
            and one[metric]["width_over_need"] <= widest
        )
    ]
    return table(["predicted", "engine", "of", "inside", "over need"], rows)


def again_text(again):
    """Which parts of the record are of a later commit."""
    return "".join(
        f"\nMeasured again on {one['date']} at commit {one['commit']}: "
        + "; ".join((WAYS | OTHERS)[part] for part in one["parts"])
        + ". The other tables are of before."
        for one in again
    )


SEALED = ("unseen", *(f"unseen_{k}" for k in range(2, 9)))


def facts_by_way(record):
    return {(one["way"], one["side"], one["engine"]): one for one in record["ways"]}


def page_of(record, text, sweeps):
    """The page, from the record, the text around its tables, and the sweeps' table."""
    found, beside, elsewhere = facts_by_way(record), record["beside"], read_rows()
    sealed = {name: read_rows(FILE.with_name(f"published_{name}.csv")) for name in SEALED}
    ledger, gpu_ledger, vllm_ledger = (
        ledger_markdown(score_of(read_ledger(folder / "ledger.jsonl")))
        for folder in (ROOT / "ledger", RESULTS / "h200_transformers", RESULTS / "h100_vllm")
    )
    parts = {
        "summary": "\n".join(summary_rows(found)),
        "commit": record["commit"],
        "date": record["date"],
        "again": again_text(record.get("again", ())),
        "cpu": f"{record['fit']['n_rows']} rows in {record['fit']['cpu_s']:.1f} CPU seconds",
        "n_predictions": f"{sum(o['n_rows'] for o in record['ways'] if o['engine'] == 'all'):,}",
        "n_theirs": beside["n_theirs"],
        "n_theirs_here": beside["n_theirs_here"],
        "n_rows_here": f"{beside['n_rows_here']:,}",
        "n_all_rows_here": f"{beside['n_all_rows_here']:,}",
        "n_with_their_rows": beside["n_with_their_rows"],
        "nearer_all_rows": " / ".join(
            whole(value) for value in beside["all_rows"][0]["nearer"]["aisimulate"]
        ),
        "ledger": f"{BEGIN}\n{ledger}\n{END}",
        "gpu_ledger": gpu_ledger,
        "vllm_ledger": vllm_ledger.replace(", foretold |", ", package alone |").replace(
            ", fitted |", ", sweep in process |"
        ),
        "sweeps": sweeps,
        "cohort": cohort_table(record["cohort"]),
        "beside": beside_table(beside),
        "runs": run_table(record["runs"]),
        "uncalibrated": uncalibrated(record),
        "elsewhere": summary_table(elsewhere),
        "n_elsewhere": len(elsewhere),
        "n_sources": len({row["source"] for row in elsewhere}),
    }
    for name, rows in sealed.items():
        parts[name] = summary_table(rows)
        parts[f"n_{name}"] = len(rows)
        parts[f"n_{name}_sources"] = len({row["source"] for row in rows})
    for metric in METRICS:
        parts[f"ways_{metric}"] = way_table(found, metric)
        parts[f"engines_{metric}"] = engine_table(found, metric)
    return text.format_map(parts)


def in_short(record):
    """The README's sentence: the nearest way of predicting that needs rows, and the one without."""
    n_loops = sum(one["n_loops"] for one in record["cohort"].values())
    found = facts_by_way(record)
    (near_tpot, near_ttft), (far_tpot, far_ttft) = (
        [percent(found[way, "reported", "all"][metric]["median"]) for metric in METRICS]
        for way in ("concurrency", "datasheet")
    )
    return (
        f"On {n_loops:,} published closed loops of data-centre GPUs, one half of the families shown,"
        f" the median error is {near_tpot} (other concurrencies of the same server)\n"
        f"to {far_tpot} (a device without rows) in TPOT, and {near_ttft} to {far_ttft} in TTFT.\n"
    )


def readme_of(record, readme):
    """The README with the sentence of this record."""
    before, begin, rest = readme.partition(IN_README[0])
    _, end, after = rest.partition(IN_README[1])
    if not end:
        raise SystemExit(f"{README} lacks {IN_README[0].strip()} … {IN_README[1].strip()}")
    return f"{before}{begin}{in_short(record)}{end}{after}"


def charts_of(record):
    """File name -> SVG."""
    found = facts_by_way(record)
    charts = [
        chart(found, metric, numbers)
        for metric in METRICS
        for chart, numbers in (
            (error_curve, record["quantiles"]),
            (coverage_curve, record["levels"]),
        )
    ]
    return {f"{chart.chart_id}.svg": svg_file(chart) for chart in charts}


def write_page():
    record = json.loads(RECORD.read_text())
    PAGE.write_text(page_of(record, TEXT.read_text(), sweep_table()))
    README.write_text(readme_of(record, README.read_text()))
    for name, text in charts_of(record).items():
        (IMAGES / name).write_text(text)
    print(f"{PAGE}, its curves and {README} are those of {RECORD}")

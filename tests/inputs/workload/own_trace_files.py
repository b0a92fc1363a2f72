"""Lossless files of a plan's requests, in the format that ``own_trace`` reads."""

import csv

import msgspec

from inferometer.inputs.foreign_parquet import connection
from inferometer.inputs.workload.own_trace import COLUMNS, METADATA_KEY, NULLABLE, VERSION, Head
from inferometer.inputs.workload.plan import NONE
from inferometer.inputs.workload.trace_formats import OWN_FORMAT


def write_own_trace(workload, path):
    """Write the requests to ``path``, in the format of its suffix."""
    head = Head(
        format=OWN_FORMAT,
        version=VERSION,
        name=workload.name,
        class_names=workload.class_names,
        class_slos=workload.class_slos,
        tenant_names=workload.tenant_names,
        cautions=workload.cautions,
    )
    write = {".jsonl": _write_jsonl, ".csv": _write_csv, ".parquet": _write_parquet}[path.suffix]
    write(workload.plan, msgspec.json.encode(head).decode(), path)


def _write_jsonl(plan, head, path):
    rows = (
        msgspec.json.encode(dict(zip(COLUMNS, row, strict=True))).decode() for row in _rows(plan)
    )
    path.write_text("\n".join([head, *rows]) + "\n")


def _write_csv(plan, head, path):
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {head}\n")
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *_rows(plan)])


def _write_parquet(plan, head, path):
    expressions = ", ".join(
        f"nullif({name}, {NONE}) AS {name}" if name in NULLABLE else name for name in COLUMNS
    )
    metadata = head.replace("'", "''")
    with connection() as database:
        database.register("columns_of_plan", plan._asdict())
        options = f"FORMAT parquet, COMPRESSION zstd, KV_METADATA {{{METADATA_KEY}: '{metadata}'}}"
        database.execute(
            f"COPY (SELECT {expressions} FROM columns_of_plan) TO ? ({options})",  # noqa: S608
            [str(path)],
        )


def _rows(plan):
    return zip(
        *(
            [None if name in NULLABLE and value == NONE else value for value in column.tolist()]
            for name, column in plan._asdict().items()
        ),
        strict=True,
    )

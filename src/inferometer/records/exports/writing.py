"""How does a run of requests look in each format of other tools?"""

import json

import msgspec

from inferometer.records.exports.formats import ExportFormat
from inferometer.records.exports.llmd_report import llmd_report
from inferometer.records.exports.request_csv import request_csv
from inferometer.records.exports.scheduler_log import scheduler_log
from inferometer.records.exports.vllm_bench_json import vllm_bench_json
from inferometer.records.slo_verdicts import Judgement
from inferometer.records.types import Run


def exported_text(run: Run, format_: ExportFormat, *, judgement: Judgement | None = None) -> str:
    """The file's text.

    ``judgement`` of an objective gives the goodput, for which a table has no place.

    Raises
    ------
    RecordError
        The run has no requests.
    """
    if format_ == "scheduler-log":
        return scheduler_log(run)
    if format_ == "csv":
        return request_csv(run)
    if format_ == "vllm-bench":
        return json.dumps(vllm_bench_json(run, judgement=judgement)) + "\n"
    return (
        msgspec.json.format(
            msgspec.json.encode(llmd_report(run, judgement=judgement)), indent=2
        ).decode()
        + "\n"
    )

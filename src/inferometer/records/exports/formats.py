"""In which formats can a run of requests be written, and how is the file of each called?

Apart from what writes them: a load test names the formats before its first request, and must not
wait for what they import.
"""

from typing import Final, Literal, TypeAlias

RequestFormat: TypeAlias = Literal["llm-d", "vllm-bench", "csv"]
ExportFormat: TypeAlias = Literal[RequestFormat, "scheduler-log"]
"""The log is of steps, which a load test does not see."""

FILE_NAMES: Final[dict[ExportFormat, str]] = {
    "llm-d": "llm-d-report.json",
    "vllm-bench": "vllm-bench.json",
    "csv": "requests.csv",
    "scheduler-log": "scheduler-log.csv",
}
"""Inside the run's folder, where nobody names it."""

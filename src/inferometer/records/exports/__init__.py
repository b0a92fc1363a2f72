"""How does a run go out to other tools?"""

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

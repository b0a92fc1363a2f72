"""In which formats can a run of requests be written, and how is the file of each called?"""

from typing import Final, Literal, TypeAlias

ExportFormat: TypeAlias = Literal["llm-d", "vllm-bench", "csv"]

FILE_NAMES: Final[dict[ExportFormat, str]] = {
    "llm-d": "llm-d-report.json",
    "vllm-bench": "vllm-bench.json",
    "csv": "requests.csv",
}
"""Inside the run's folder, where nobody names it."""

"""What can be learned with the explorer: five chapters, each with one thing to try."""

from typing import Final

from inferometer.api.explore import DEFAULT_MODEL, DEFAULTS, query_of
from inferometer.report.explore_html import Chapter


def _state(**changes: str) -> str:
    """The start of the page with some fields changed; '' leaves a field out."""
    state = {"model": DEFAULT_MODEL, **DEFAULTS, **changes}
    return query_of({name: value for name, value in state.items() if value})


CHAPTERS: Final = (
    Chapter(
        title="1 · Prefill and decode",
        text=(
            "A prompt is computed in one go (prefill, C in the slot timeline): that takes arithmetic,"
            " and its time is the time to the first token. Then each step gives one token for every"
            " request of the batch (decode, g): that takes memory bandwidth, since all weights are"
            " read for each step, whether for one request or for fifty."
        ),
        try_=(
            "drag the prompt's length and watch TTFT; drag the output's length and watch E2E alone"
            " move."
        ),
        query=_state(workload="prompt=2048,output=128", rate="2"),
    ),
    Chapter(
        title="2 · The KV cache",
        text=(
            "Every token of every running request keeps its keys and values in memory. When the"
            " blocks run out, requests wait, or are preempted and computed again. Long contexts fill"
            " the cache; formats of fewer bits and more devices enlarge it."
        ),
        try_=(
            "look at KV blocks over time, then set the KV cache to 8 bits, or give the engine less"
            " memory."
        ),
        query=_state(
            workload="prompt=4096..16384,output=256..1024", rate="2", gpu_memory_utilization="0.5"
        ),
    ),
    Chapter(
        title="3 · Batching",
        text=(
            "Static batches start together and wait for the longest answer: slots stand idle (·)."
            " Continuous batching fills a slot in the step after it is free. The timelines below"
            " show both for the same requests."
        ),
        try_="step through both timelines, then change max_num_seqs and count the idle slots.",
        query=_state(workload="prompt=128..1024,output=16..256", rate="20", max_num_seqs="8"),
    ),
    Chapter(
        title="4 · Head-of-line blocking",
        text=(
            "A long prompt that is computed in one step makes every running request wait for that"
            " step: tokens come in jerks. Chunked prefill splits it over steps of at most the step"
            " budget."
        ),
        try_=(
            "make the step budget larger and smaller: TPOT p95 and TTFT p95 move against one"
            " another."
        ),
        query=_state(
            workload="prompt=256..16384,output=128", rate="6", max_num_batched_tokens="2048"
        ),
    ),
    Chapter(
        title="5 · The knee",
        text=(
            "Up to some load latency hardly changes; beyond it the queue grows without end and"
            " latency depends on how long one waits to look. The highest load within the SLO lies"
            " before the knee, and a closed loop, whose users wait, never shows it."
        ),
        try_=(
            "drag the rate past the knee, then switch to a closed loop with as many users: it looks"
            " fine."
        ),
        query=_state(rate="30"),
    ),
)

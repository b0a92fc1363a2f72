"""Recorded traces of the real scheduler: workloads, and every state after every call, packed into few bytes."""

import gzip
import json
from pathlib import Path

import msgspec
from cases import Case
from stepping import State

GOLDEN = Path(__file__).parent / "vllm_0_32_0_traces.json.gz"
GOLDEN_PIPED = Path(__file__).parent / "vllm_0_32_0_piped_traces.json.gz"
GOLDEN_SPECULATING = Path(__file__).parent / "vllm_0_32_0_speculating_traces.json.gz"
GOLDEN_WINDOWED = Path(__file__).parent / "vllm_0_32_0_windowed_traces.json.gz"


def encode(traces: list[tuple[Case, list[State]]]) -> bytes:
    """Of each state what did not change since the call before is null."""
    plain = []
    for case, states in traces:
        rows, before = [], (None,) * len(State._fields)
        for state in states:
            rows.append(
                [None if value == old else value for value, old in zip(state, before, strict=True)]
            )
            before = state
        plain.append({"case": msgspec.to_builtins(case, order="deterministic"), "states": rows})
    text = json.dumps(
        {"engine": "vLLM 0.32.0", "fields": State._fields, "traces": plain}, separators=(",", ":")
    )
    return gzip.compress(text.encode(), mtime=0)


def decode(content: bytes) -> list[tuple[Case, list[State]]]:
    traces = []
    for trace in json.loads(gzip.decompress(content))["traces"]:
        states, before = [], (None,) * len(State._fields)
        for row in trace["states"]:
            before = State(
                *(
                    old if value is None else frozen(value)
                    for value, old in zip(row, before, strict=True)
                )
            )
            states.append(before)
        traces.append((msgspec.convert(trace["case"], Case), states))
    return traces


def frozen(value):
    return tuple(map(frozen, value)) if isinstance(value, list) else value

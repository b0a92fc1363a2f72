"""inferometer diagnose --probe: which limits does a small load identify that metrics leave open?

Three parts, one after the other. Lone short requests: the TTFT of a server at ease, where nothing
else is served. Prompts beside one answer that streams: it gets a token in each step, so the tokens
that arrive while a prompt is computed count the steps into which the step budget cuts it. A burst
of short requests: while some wait, the server runs as many as max_num_seqs lets it.
"""

import json
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from inferometer.api import load_run
from inferometer.api.load_request import Load, request_of
from inferometer.api.progress import talk
from inferometer.api.workload import Workload
from inferometer.decide.diagnosis.limit_draws import BUDGETS
from inferometer.decide.diagnosis.window import ServerWindow
from inferometer.fit.loads.server import Limit
from inferometer.inputs.workload.replay import draw_workload
from inferometer.measure.scrape import scraping
from inferometer.records.server_series import gauge_series, server_record
from inferometer.records.types import ABSENT, Run, ServerSampleTable
from inferometer.units import NS_PER_S

_N_LONE: Final = 3
_LONE_EVERY_S: Final = 1.0
_SHORT: Final = (64, 8)
_STREAM: Final = (64, 512)
_N_PROMPTS: Final = 3
"""Short ones, which take a step each, and then as many long ones."""
_PROMPTS_FROM_S: Final = 0.3
_PROMPTS_EVERY_S: Final = 0.3
_BESIDE_TOKENS: Final = 16
_FEWEST_STEPS: Final = 4
"""Fewest steps of a prompt: at its ends one step more or less may be counted."""
_LEAST_PROMPT, _MOST_PROMPT = 128, 4096
_BURST: Final = (32, 64)
_LEAST_BURST, _MOST_BURST = 32, 256
_ROOM_FRACTION: Final = 0.9
"""Requests may wait for a KV cache that is fuller than this."""
_EVERY_S: Final = 0.1
_OFTEN: Final = 3
"""Fewest scrapes with the same number running while others wait: fewer may be chance."""
_TIMEOUT_S: Final = 60.0


class _Sent(NamedTuple):
    """A request of the probe."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a probe sent and identified; None: not identified."""

    n_requests: int
    most_tokens: int
    """Prompts and answers together, at most."""
    idle_ttft_s: float | None
    """Median of lone requests, where nothing else was served."""
    max_num_seqs: int | None
    least_budget_tokens: int | None
    """Between these lies the step budget."""
    most_budget_tokens: int | None

    @property
    def limits(self) -> dict[Limit, int]:
        """Identified limits; the step budget only where one usual value is in its range."""
        found: dict[Limit, int] = {}
        if self.max_num_seqs is not None:
            found["max_num_seqs"] = self.max_num_seqs
        low, high = self.least_budget_tokens, self.most_budget_tokens
        if low is not None and high is not None:
            usual = [one for one in BUDGETS if low <= one <= high]
            if len(usual) == 1 and usual[0] >= (self.max_num_seqs or 0):
                found["max_num_batched_tokens"] = usual[0]
        return found


def probe(url: str, window: ServerWindow) -> Probe:
    """Send the three parts of the probe to the observed server.

    What will be sent is printed before it is.

    Raises
    ------
    MeasureError
        The server does not answer.
    """
    lone = [_Sent(_LONE_EVERY_S * k, *_SHORT) for k in range(_N_LONE)]
    prompt = round(min(max(window.prompt_lengths.most_tokens, _LEAST_PROMPT), _MOST_PROMPT))
    cut = [_Sent(0.0, *_STREAM)]
    beside = [_BESIDE_TOKENS] * _N_PROMPTS + [prompt] * _N_PROMPTS
    cut += [
        _Sent(_PROMPTS_FROM_S + _PROMPTS_EVERY_S * k, tokens, 1) for k, tokens in enumerate(beside)
    ]
    n_burst = min(max(2 * round(float(window.running.max())), _LEAST_BURST), _MOST_BURST)
    burst = [_Sent(0.0, *_BURST)] * n_burst
    parts = (lone, cut, burst)
    n_requests = sum(len(part) for part in parts)
    most_tokens = sum(one.prompt_tokens + one.output_tokens for part in parts for one in part)
    talk(
        f"the probe sends {n_requests:,} requests to {url}, {most_tokens:,} tokens together:"
        f" {_N_LONE} lone ones, {_N_PROMPTS} short prompts and {_N_PROMPTS} of {prompt:,} tokens"
        " beside an answer, and"
        f" {n_burst:,} at once"
    )
    is_idle = float((window.running + window.waiting).mean()) < 1
    with tempfile.TemporaryDirectory() as folder:
        runs = [_sent(url, part, Path(folder) / str(k)) for k, part in enumerate(parts)]
    budget = _budget(runs[1].run)
    return Probe(
        n_requests=n_requests,
        most_tokens=most_tokens,
        idle_ttft_s=_idle_ttft_s(runs[0].run) if is_idle else None,
        max_num_seqs=_most_running(runs[2].samples),
        least_budget_tokens=None if budget is None else budget[0],
        most_budget_tokens=None if budget is None else budget[1],
    )


class _Part(NamedTuple):
    run: Run
    samples: ServerSampleTable


def _sent(url: str, requests: list[_Sent], folder: Path) -> _Part:
    folder.mkdir()
    trace = folder / "probe.jsonl"
    rows = (
        {"timestamp": 1e3 * at_s, "input_length": prompt, "output_length": output}
        for at_s, prompt, output in requests
    )
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = Load(workload=Workload(workload=str(trace)), timeout=_TIMEOUT_S, preflight=False)
    request = request_of(url, options)
    drawn = draw_workload(request.load.workload)
    with scraping(url, started_ns=time.monotonic_ns(), every_s=_EVERY_S) as scraper:
        loaded = load_run.run_load(request, drawn, folder / "run", ())
    return _Part(loaded.run, scraper.table())


def _idle_ttft_s(run: Run) -> float | None:
    table = run.requests
    if table is None:
        return None
    answered = table.first_token_ns != ABSENT
    if not answered.any():
        return None
    ttft_ns = (table.first_token_ns - table.sent_ns)[answered]
    return float(np.median(ttft_ns)) / NS_PER_S


def _budget(run: Run) -> tuple[int, int] | None:
    """Between which step budgets the prompts were cut; None: they were not, or it cannot be seen.

    A prompt of P tokens beside one answer takes ceil(P / (budget - 1)) steps, and the
    answer gets a token in each. Those that arrive between a prompt's sending and its first token are these
    and what its way takes; short prompts, of one step, tell how many that is.
    """
    table, chunks = run.requests, run.chunks
    if table is None or chunks is None:
        return None
    stream = int(np.argmax(table.output_tokens))
    arrived_ns = np.sort(chunks.arrived_ns[chunks.request_index == table.request_index[stream]])
    seen = list[tuple[float, int]]()
    for row in np.flatnonzero(table.first_token_ns != ABSENT).tolist():
        began, ended = int(table.sent_ns[row]), int(table.first_token_ns[row])
        later_ns = table.sent_ns[table.sent_ns > began]
        is_alone = not len(later_ns) or ended < later_ns.min()
        if row != stream and len(arrived_ns) and ended < arrived_ns[-1] and is_alone:
            n_tokens = int(((arrived_ns > began) & (arrived_ns <= ended)).sum())
            seen.append((float(table.prompt_tokens[row]), n_tokens))
    shortest = min((tokens for tokens, _ in seen), default=0.0)
    on_the_way = [n for tokens, n in seen if tokens < 2 * shortest]
    cut = [(n - min(on_the_way) + 1, tokens) for tokens, n in seen if tokens >= 2 * shortest]
    n_steps, tokens = min(cut, default=(0, 0.0))  # what delays a prompt only adds to its steps
    if n_steps < _FEWEST_STEPS:
        return None
    return math.floor(tokens / (n_steps + 1)) + 1, math.ceil(tokens / (n_steps - 2)) + 1


def _most_running(samples: ServerSampleTable) -> int | None:
    """Requests that ran while others waited with free KV cache; None: none waited."""
    record = server_record(samples)
    running, waiting, usage = (
        gauge_series(record, name) for name in ("running", "waiting", "kv_usage")
    )
    if running is None or waiting is None:
        return None
    held_back = waiting.value >= 1
    if usage is not None:
        held_back &= usage.value < _ROOM_FRACTION
    if int(held_back.sum()) < _OFTEN:
        return None
    most = float(np.nanmax(running.value))
    is_full = running.value[held_back] == most
    return int(most) if int(is_full.sum()) >= _OFTEN else None

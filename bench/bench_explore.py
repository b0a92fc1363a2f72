"""How fast does the explorer's page follow a slider, in a real headless browser?

Page load to the first answer, a move to its first redraw (p50, p95), to the refined answer, and ten
tabs at once. ``python bench/bench_explore.py`` prints rows for RESULTS.md.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from inferometer.api.explore import DEFAULT_MODEL, DEFAULTS, Explore, query_of, state_of
from inferometer.api.explored import coarse, refined
from inferometer.api.question import question_of
from inferometer.measure.executors.local import Inline
from inferometer.serve.explore_server import answer_parts, serving

sys.path[:0] = [
    str(Path(__file__).parents[1] / "tests"),
    str(Path(__file__).parents[1] / "tests" / "serve"),
]
from explorer import answer  # noqa: E402

from webdriver import browser  # noqa: E402

DONE = "return document.getElementById('state').dataset.state === 'done'"
MOVE = """const slider = document.querySelector(`[data-of="${arguments[0]}"]`);
slider.value = arguments[1];
window.seen = {};
const began = performance.now();
window.onceDrawn = event => requestAnimationFrame(() => setTimeout(() => {
  window.seen[event.detail.stage] = window.seen[event.detail.stage] || performance.now() - began; }));
window.addEventListener('answered', window.onceDrawn);
slider.dispatchEvent(new Event('input', {bubbles: true}));"""
SEEN = "return window.seen.refined ? window.seen : null"
END = "window.removeEventListener('answered', window.onceDrawn)"


def move(window, name, place):
    """Milliseconds from a move to its drawings; in the browser, painting included."""
    window.run(MOVE, name, place)
    seen = window.until(SEEN)
    window.run(END)
    return seen


def moves(window, name, n):
    rng = np.random.default_rng(0)
    return [move(window, name, int(place)) for place in rng.integers(300, 800, n)]


def spread(values):
    low, middle, high = np.quantile(values, (0.0, 0.5, 0.95))
    return f"p50 {middle:.0f} ms, p95 {high:.0f} ms, least {low:.0f} ms (n = {len(values)})"


def load_of(window, url):
    began_s = time.perf_counter()
    window.go(url)
    ready_s = time.perf_counter()
    window.until("return document.getElementById('answer-title').textContent.includes('TTFT')")
    return ready_s - began_s, time.perf_counter() - began_s


def tabs(port, query, n):
    def tab(rank):
        began_s = time.perf_counter()
        answer(port, query=f"{query}&burstiness={1 + rank / 10}", stage="coarse", tab=str(rank))
        return time.perf_counter() - began_s

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(tab, range(n)))


def cpu_ms_of(question, n):
    """CPU milliseconds of a coarse and of a refined answer, with what is drawn, each of a new rate."""
    executor, spent = Inline(lambda _done, _all: None), {coarse: [], refined: []}
    for stage, found in spent.items():
        for rank in range(n + 1):
            load = replace(question.workload, rate=10.0 + rank / 8)
            began_s = time.process_time()
            explored = stage(replace(question, workload=load), executor)
            answer_parts("refined", explored, ())
            found.append(1e3 * (time.process_time() - began_s))
    return [values[1:] for values in spent.values()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=40)
    asked = parser.parse_args()
    question = question_of(Explore, {"model": DEFAULT_MODEL, **DEFAULTS})
    for name, values in zip(("coarse", "refined"), cpu_ms_of(question, 12), strict=True):
        print(f"CPU of a {name} answer: {spread(values)}")
    with (
        serving(question) as server,
        tempfile.TemporaryDirectory() as folder,
        browser(Path(folder)) as window,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        url = f"http://127.0.0.1:{port}/"
        window.size(1280, 900)
        load_of(window, url)
        window.until(DONE)
        window.go("about:blank")
        page_s, first_s = load_of(window, url)
        window.until(DONE)
        print(f"page load: {page_s:.2f} s, with its first answer {first_s:.2f} s")
        for name in ("rate", "max_num_seqs"):
            seen = moves(window, name, asked.moves)
            print(f"{name}, to the first redraw: {spread([one['coarse'] for one in seen])}")
            print(f"{name}, to the refined answer: {spread([one['refined'] for one in seen])}")
        waits_s = tabs(port, query_of(state_of(question)), 10)
        print(
            f"ten tabs at once, coarse answer: {json.dumps([round(one, 2) for one in sorted(waits_s)])} s"
        )
        server.shutdown()


if __name__ == "__main__":
    main()

"""What does it cost the load client to have the server's metrics scraped beside it?

CPU per page, and how late its event loop becomes.

A recorded page of vLLM is served by a process of its own. Loops with and without the scraper take
turns.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from results_log import log_row

from inferometer.measure.scrape import scraping

PAGE = Path(__file__).parents[1] / "tests" / "records" / "expositions" / "vllm-0.32-after.txt"
PORT, ROUND_S, N_ROUNDS, EVERY_S = 18_990, 4.0, 7, 0.05


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        page = PAGE.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_):
        pass


async def lags_s():
    """How late is a timer of 1 ms, again and again?"""
    lags, end_s = [], time.perf_counter() + ROUND_S
    while (begin_s := time.perf_counter()) < end_s:
        await asyncio.sleep(0.001)
        lags.append(time.perf_counter() - begin_s - 0.001)
    return sorted(lags)


def measured(every_s):
    """CPU seconds of a round, the loop's p99 lag, pages, and CPU seconds to read them."""
    begin_s = time.process_time()
    if every_s is None:
        lags = asyncio.run(lags_s())
        return time.process_time() - begin_s, lags[int(len(lags) * 0.99)], 0, 0.0
    with scraping(
        f"http://127.0.0.1:{PORT}", started_ns=time.monotonic_ns(), every_s=every_s
    ) as scraper:
        lags = asyncio.run(lags_s())
    taken_s, begin_s = time.process_time() - begin_s, time.process_time()
    n_pages = int((scraper.table().name == "up").sum())
    return taken_s, lags[int(len(lags) * 0.99)], n_pages, time.process_time() - begin_s


def main():
    server = subprocess.Popen([sys.executable, __file__, "serve"])
    try:
        time.sleep(1.0)
        rounds = [(measured(None), measured(EVERY_S)) for _ in range(N_ROUNDS)]
    finally:
        server.kill()
        server.wait()
    cost_ms = sorted((with_it[0] - without[0]) / with_it[2] * 1e3 for without, with_it in rounds)
    read_ms = statistics.median(with_it[3] / with_it[2] * 1e3 for _, with_it in rounds)
    lag_ms = [statistics.median(one[side][1] for one in rounds) * 1e3 for side in (0, 1)]
    log_row(
        "scrape: a page of vLLM, 425 samples",
        f"{statistics.median(cost_ms):.2f} [{cost_ms[0]:.2f}, {cost_ms[-1]:.2f}] (n = {N_ROUNDS})"
        " CPU ms a page while the load runs",
        f"a page every {EVERY_S * 1e3:.0f} ms, twenty times the usual: event loop p99 lag"
        f" {lag_ms[1]:.2f} ms, without {lag_ms[0]:.2f} ms; reading it afterwards {read_ms:.2f} CPU"
        " ms; least and greatest, not an interval",
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        HTTPServer(("127.0.0.1", PORT), _Handler).serve_forever()
    main()

"""Which cause do ``diagnose`` and three rule-based doctors name first, of the same servers?

vllm-doctor, inference-doctor and inferpilot (PyPI) compare metrics with fixed thresholds. They get
what ``bench_diagnose`` gives to ours: a minute of vLLM's pages of servers whose truth is their own
simulation, from a real Prometheus (the first two) or as the pages of its ends (inferpilot). Each of
their findings is counted as right for every cause that its text offers; where inference-doctor asks
for an SLO of TTFT it gets three times what the same requests take one by one.

``--peers`` is an environment that has the three: python -m venv PEERS; PEERS/bin/pip install
vllm-doctor inference-doctor inferpilot.
"""

import argparse
import json
import socket
import subprocess
import tempfile
import time
import urllib.request
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import bench_diagnose
import numpy as np
from bench_diagnose import FOR_S, KINDS, START_S, p95_ttft_s, right_names, truth
from results_log import log_row
from served_pages import text_pages

SCRAPED_EVERY_S = 5.0
LONE_RATIO = 3.0
OFFERS = {
    "vllm-doctor": {
        "kv_cache_pressure": {"kv_cache"},
        "preemption_pressure": {"kv_cache"},
        "queue_pressure": {"max_num_seqs", "overload", "long_prompts"},
        "queue_latency": {"max_num_seqs", "overload", "long_prompts", "kv_cache"},
        "ttft_bottleneck": {"long_prompts", "small_step_budget", "overload"},
        "tpot_bottleneck": {"large_step_budget"},
    },
    "inference-doctor": {
        "KV_CACHE_PRESSURE": {"kv_cache"},
        "QUEUE_PRESSURE": {"max_num_seqs", "overload"},
        "PREFILL_PRESSURE": {"long_prompts", "small_step_budget"},
        "DECODE_PRESSURE": {"large_step_budget"},
    },
    "inferpilot": {
        "kv_capacity_bound_preempting": {"kv_cache"},
        "near_capacity": {"kv_cache"},
        "not_kv_bound": {"max_num_seqs", "overload", "long_prompts", "small_step_budget"},
        "healthy_or_underutilized": {"healthy"},
    },
}
"""What each finding may mean; no finding is ``healthy``. What vllm-doctor says of low throughput and
of a prefix cache without hits is no complaint of latency, and left out."""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def prometheus(pages, folder):
    """One that has scraped these pages, the last of them just now."""
    began_s = datetime.now(UTC).timestamp() - 5 - pages[-1][0] / 1e9
    lines = [
        f"{line} {began_s + at_ns / 1e9:.3f}"
        for at_ns, page in pages
        for line in page.decode().splitlines()
        if line and not line.startswith("#")
    ]
    (folder / "pages.om").write_text("\n".join([*sorted(lines), "# EOF", ""]))
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    blocks = ("promtool", "tsdb", "create-blocks-from", "openmetrics")
    subprocess.run([*blocks, folder / "pages.om", folder / "data"], check=True, capture_output=True)
    url = f"http://127.0.0.1:{free_port()}"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={url.removeprefix('http://')}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        _wait_until_ready(url)
        yield url
    finally:
        server.terminate()
        server.wait(20)


def _wait_until_ready(url):
    for _ in range(120):
        with suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=2):  # noqa: S310
            return
        time.sleep(0.25)
    raise SystemExit("Prometheus does not start")


def said(words):
    """A doctor's JSON."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"{words[0]}: {done.stdout[:400]} {done.stderr[:400]}") from None


def findings(peers, url, slo_s, ends):
    """The first finding of each; '' where it has none."""
    checks = said([peers / "vllm-doctor", "diagnose", url, "--since", "1m", "--output", "json"])[
        "checks"
    ]
    of_vllm = [one for one in checks if one["finding"] and one["id"] in OFFERS["vllm-doctor"]]
    of_inference = said(
        [
            *(peers / "inference-doctor", "diagnose", "--prometheus", url, "--window", "1m"),
            *("--ttft-slo-ms", str(slo_s * 1e3), "--json"),
        ]
    )["findings"]
    pilot = said([peers / "inferpilot", "inspect", *ends, "--json"])["verdict"]
    return {
        "vllm-doctor": of_vllm[0]["id"] if of_vllm else "",
        "inference-doctor": of_inference[0]["id"] if of_inference else "",
        "inferpilot": pilot,
    }


def lone_slo_s(config, steps, plan):
    """Three times the p95 of TTFT where the requests come one by one."""
    apart_ns = np.arange(plan.n_requests) * 10**11
    alone = plan._replace(arrival_ns=apart_ns)
    done = bench_diagnose.run.run(
        bench_diagnose.lone_replica(config, steps), alone, record_steps=False
    ).requests
    ttft_s = (done.first_token_ns - done.intended_send_ns) / 1e9
    return LONE_RATIO * float(np.quantile(ttft_s, 0.95))


def judged(kind, seed, peers):
    """Is the first cause right, of ours and of each doctor? None: it gave no answer."""
    config, steps, plan, _ = truth(kind, seed)
    right = right_names(config, steps, plan)
    pages = text_pages(config, steps, plan, start_s=START_S, for_s=FOR_S, every_s=SCRAPED_EVERY_S)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ends = (folder / "before.prom", folder / "after.prom")
        for path, (_, page) in zip(ends, (pages[0], pages[-1]), strict=True):
            path.write_bytes(page)
        with prometheus(pages, folder) as url:
            found = findings(peers, url, lone_slo_s(config, steps, plan), ends)
    print(
        f"{'':18s} truth {sorted(right)}, p95 TTFT {p95_ttft_s(config, steps, plan):.3f} s: {found}"
    )
    ours, *_ = bench_diagnose.judged(kind, seed, "vllm")
    return {"inferometer": bool(ours)} | {
        name: bool(OFFERS[name].get(one, {"healthy"} if not one else set()) & right)
        for name, one in found.items()
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=Path, required=True, help="an environment with the three")
    parser.add_argument("--n", type=int, default=5, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    seeds = range(asked.seed, asked.seed + asked.n)
    rows = [
        (kind, judged(kind, seed, asked.peers.resolve() / "bin"))
        for kind in KINDS
        for seed in seeds
    ]
    names = list(rows[0][1])
    for kind in KINDS:
        mine = [row for one, row in rows if one == kind]
        print(
            f"{kind:18s}",
            *(f"{name} {sum(row[name] for row in mine)}/{len(mine)}" for name in names),
        )
    total = {name: sum(row[name] for _, row in rows) for name in names}
    log_row(
        f"bench_diagnose_peers, seeds {seeds[0]} to {seeds[-1]}",
        ", ".join(f"{name} {n}/{len(rows)}" for name, n in total.items()),
        "the first cause named is right, of the same vLLM servers; theirs count for every cause"
        " that their text offers",
    )


if __name__ == "__main__":
    main()

"""Which metrics would a simulated server have shown, scrape by scrape?

The pages are written by the emulated server's own code, from every token of a simulation: the truth
behind them is known to the nanosecond, and a minute of traffic takes a second. The scheduler is
vLLM's; the page may be SGLang's, which counts other things at other times.
"""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
from llamacpp_pages import LlamaCppAccounts
from sglang_pages import SglangAccounts
from trtllm_pages import TrtllmAccounts

from inferometer.inputs.workload.plan import NONE, request_plan
from inferometer.records.server_series import sample_table
from inferometer.records.types import ABSENT
from inferometer.serve.emulator_metrics import Accounts, Now, metrics_of
from inferometer.simulate import run
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.live import Delivery
from inferometer.simulate.outcome import Status


def served_pages(config, steps, plan, *, start_s, for_s, every_s=0.5, names="vllm"):
    """The samples of a window, under the names of vLLM or SGLang, and the simulation behind them."""
    done = run.run(lone_replica(config, steps), plan, record_parts=True)
    window = {"start_s": start_s, "for_s": for_s, "every_s": every_s}
    return sample_table(_pages(config, done, plan, **window, names=names)), done


def clients_of(done, *, start_s):
    """Its requests as the clients of a load test saw them, since the window's begin."""
    table = done.requests
    moved = {
        name: np.where(
            getattr(table, name) == ABSENT, ABSENT, getattr(table, name) - round(start_s * 1e9)
        )
        for name in ("intended_send_ns", "sent_ns", "first_token_ns", "finished_ns")
    }
    return table._replace(**moved)


def text_pages(config, steps, plan, **window):
    """The same as pages of vLLM, each with its nanosecond of the window."""
    done = run.run(lone_replica(config, steps), plan, record_parts=True)
    return _pages(config, done, plan, **window, names="vllm")


def _pages(config, done, plan, *, start_s, for_s, every_s, names):
    requests = _requests(plan, done.requests)
    events = [*_comings(requests), *_steps(done)]
    n_scrapes = round(for_s / every_s) + 1
    events += [(round((start_s + k * every_s) * 1e9), 3, None) for k in range(n_scrapes)]
    events.sort(key=lambda event: event[:2])
    server = _Server(config, requests, done.steps, _PAGES[names](config))
    if names == "sglang-no-lengths":
        server.accounts.hides_lengths()
    pages = []
    for at_ns, kind, what in events:
        if kind == 3:
            pages.append((at_ns - round(start_s * 1e9), server.page()))
        else:
            server.hear(at_ns, kind, what)
    return pages


def poisson(rate_per_s, n, seed, *, prompt=(500, 0.8), output=(150, 0.6), users=None):
    """Requests with lognormal lengths (median, spread); of ``users`` clients in a closed loop."""
    rng = np.random.default_rng(seed)
    came_s = np.cumsum(rng.exponential(1 / rate_per_s, n))
    prompts, outputs = (
        np.clip(np.rint(rng.lognormal(np.log(median), spread, n)), 4, 16_000)
        for median, spread in (prompt, output)
    )
    follows = np.full(n, NONE)
    if users is not None:
        follows[users:] = np.arange(n - users)
        came_s[:users] = np.linspace(0, 0.5, users)
    return request_plan(
        "bench",
        arrival_ns=np.where(follows == NONE, (came_s * 1e9).astype(np.int64), NONE),
        prompt_tokens=prompts.astype(np.int32),
        output_tokens=outputs.astype(np.int32),
        follows=follows,
        think_ns=np.where(follows == NONE, NONE, 0),
    )


class _VllmAccounts(Accounts):
    def __init__(self, config):
        self._config, self._page, self._now = config, metrics_of("m", config), Now(0, 0, 0.0)
        super().__init__((self._page,), has_prefix_cache=config.enable_prefix_caching)

    def refresh(self, now, *, has_prefill, prefill_tokens):
        del has_prefill, prefill_tokens
        self._now = now

    def page(self):
        return self._page.text(self._now)


_PAGES = {
    "vllm": _VllmAccounts,
    "sglang": SglangAccounts,
    "sglang-no-lengths": SglangAccounts,
    "tensorrt-llm": TrtllmAccounts,
    "llama.cpp": LlamaCppAccounts,
}


class _Server:
    def __init__(self, config, requests, steps, accounts):
        self._config, self._requests = config, requests
        self._steps = steps._make(
            column.tolist() if isinstance(column, np.ndarray) else column for column in steps
        )
        self.accounts = accounts
        self._ends = defaultdict(list)
        for row, request in requests.items():
            self._ends[request.finished_ns].append(row)
        self._inside, self._running, self._blocks = set(), set(), 0

    def hear(self, at_ns, kind, what):
        if kind == 0:
            self.accounts.arrived(self._requests[what])
            self._inside.add(what)
        elif kind == 1:
            self._running.add(what)
            self.accounts.scheduled([self._requests[what]], 0)
        else:
            step, deliveries = what
            self._blocks = self._steps.kv_blocks_used[step]
            self.accounts.scheduled([], self._steps.n_preempted_requests[step])
            told = [Delivery(self._requests[row], n_tokens) for row, n_tokens in deliveries]
            for row in self._ends.get(at_ns, ()):
                self._requests[row].status = Status.LENGTH
                self._inside.discard(row)
                self._running.discard(row)
            self.accounts.count_step(told, at_ns)
            self.accounts.refresh(
                self._now(),
                has_prefill=bool(self._steps.n_prefill_requests[step]),
                prefill_tokens=self._steps.prefill_tokens[step],
            )

    def page(self):
        if isinstance(self.accounts, _VllmAccounts):  # its gauges are read when it is scraped
            self.accounts.refresh(self._now(), has_prefill=False, prefill_tokens=0)
        return self.accounts.page()

    def _now(self):
        used = self._blocks / self._config.num_blocks
        n_running = len(self._running)
        return Now(n_running, len(self._inside) - n_running, used)


def _requests(plan, table):
    return {
        int(row): SimpleNamespace(
            index=int(row),
            replica=0,
            num_prompt_tokens=int(plan.prompt_tokens[row]),
            num_cached_tokens=max(int(table.cached_tokens[at]), 0),
            num_output_tokens=int(plan.output_tokens[row]),
            max_tokens=int(plan.max_tokens[row]),
            num_preemptions=int(table.n_preemptions[at]),
            arrival_ns=int(table.intended_send_ns[at]),
            admitted_ns=int(table.admitted_ns[at]),
            finished_ns=int(table.finished_ns[at]),
            status=Status.RUNNING,
        )
        for at, row in enumerate(table.request_index.tolist())
    }


def _comings(requests):
    for row, request in requests.items():
        yield request.arrival_ns, 0, row
        if request.admitted_ns != ABSENT:
            yield request.admitted_ns, 1, row


def _steps(done):
    parts, ends_ns = done.parts, done.steps.start_ns + done.steps.duration_ns
    order = np.argsort(parts.step_index, kind="stable")
    order = order[parts.n_delivered_tokens[order] > 0]
    bounds = np.searchsorted(parts.step_index[order], np.arange(len(ends_ns) + 1)).tolist()
    pairs = list(
        zip(
            parts.request_index[order].tolist(),
            parts.n_delivered_tokens[order].tolist(),
            strict=True,
        )
    )
    for step, end_ns in enumerate(ends_ns.tolist()):
        yield end_ns, 2, (step, pairs[bounds[step] : bounds[step + 1]])

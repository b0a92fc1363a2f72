"""Which replica gets a request? In plain Python; ``cluster_config`` says whose rules these are."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inferometer.simulate.demand import Demand
from inferometer.simulate.fleet import ClusterConfig, replicas_of_classes
from inferometer.simulate.kernel.routing import router_draws
from reference.request import Request


class Report(NamedTuple):
    """What does a replica say of itself as a step of it begins?"""

    n_waiting: int = 0
    n_running: int = 0
    n_kv_blocks_used: int = 0


class RouterRule:
    """A router: what it knows of its replicas is the requests in flight, and what it sent where.

    Sometimes what they report.
    """

    def __init__(self, requests: Demand, config: ClusterConfig) -> None:
        self._config = config
        self._draws = router_draws(config.seed, requests.n_requests, config.n_replicas).tolist()
        self._class_of = requests.class_index.tolist()
        self._replicas_of = (
            replicas_of_classes(config, max(self._class_of) + 1)
            if config.router == "class-aware"
            else ()
        )
        self._last = config.n_replicas - 1
        self._known: list[set[int]] = [set() for _ in range(config.n_replicas)]
        """The contents of the prompts that each replica was sent."""
        self._told = [Report()] * config.n_replicas
        """What each replica has reported last."""
        self._heard = [Report()] * config.n_replicas
        """What has come through of it, and those that were sent since as waiting."""
        self._next_report_ns = 0
        self._n_sent = 0

    def hear(self, now_ns: int) -> None:
        """Reports come through, if it is time."""
        if now_ns >= self._next_report_ns:
            self._heard = list(self._told)
            self._next_report_ns = now_ns + self._config.report_interval_ns

    def report(self, place: int, report: Report) -> None:
        """A replica reports."""
        self._told[place] = report

    def choose(self, request: Request, loads: Sequence[int]) -> int:
        """Where does this request go, if so many are in flight on each replica?

        The router remembers it.
        """
        self._last = self._chosen(request, loads)
        if self._config.router == "prefix-affine":
            self._known[self._last].update(self._prompt_blocks(request))
        return self._last

    def _chosen(self, request: Request, loads: Sequence[int]) -> int:
        first, second = self._draws[request.index]
        match self._config.router:
            case "random":
                return int(first)
            case "power-of-two":
                return int(second if loads[second] < loads[first] else first)
            case "round-robin":
                return (self._last + 1) % len(loads)
            case "class-aware":
                return self._least_loaded(loads, self._replicas_of[self._class_of[request.index]])
            case "vllm" | "vllm-0.19":
                return self._least_by_report(loads)
            case _:
                is_known = self._config.router == "prefix-affine" and not self._is_uneven(loads)
                return (
                    self._with_prefix(request, loads)
                    if is_known
                    else self._least_loaded(loads, range(len(loads)))
                )

    def _least_loaded(self, loads: Sequence[int], replicas: Iterable[int]) -> int:
        """Of equals the next behind the last one chosen."""
        return min(
            replicas, key=lambda replica: (loads[replica], (replica - self._last - 1) % len(loads))
        )

    def _least_by_report(self, loads: Sequence[int]) -> int:
        """The first of those with the least score; it is counted as one that waits there."""
        first = self._n_sent % len(loads) if self._config.router == "vllm" else 0
        chosen = min(
            range(len(loads)),
            key=lambda replica: (
                self._score(replica, loads[replica]),
                (replica - first) % len(loads),
            ),
        )
        self._heard[chosen] = self._heard[chosen]._replace(
            n_waiting=self._heard[chosen].n_waiting + 1
        )
        self._n_sent += 1
        return chosen

    def _score(self, replica: int, load: int) -> float:
        heard = self._heard[replica]
        if self._config.router == "vllm-0.19":
            return float(4 * heard.n_waiting + heard.n_running)
        used_fraction = heard.n_kv_blocks_used / self._config.engine.n_kv_blocks
        return max(load, heard.n_waiting + heard.n_running) + heard.n_waiting * 6.0 * max(
            0.0, used_fraction - 0.5
        )

    def _is_uneven(self, loads: Sequence[int]) -> bool:
        most, least = max(loads), min(loads)
        return (
            most - least > self._config.balance_abs_threshold
            and most > self._config.balance_rel_threshold_ratio * least
        )

    def _with_prefix(self, request: Request, loads: Sequence[int]) -> int:
        """Where most of the prompt is known, if that is enough; else where the least is known at all."""
        n_blocks = [self._n_known_blocks(request, known) for known in self._known]
        best = min(
            range(len(loads)), key=lambda replica: (-n_blocks[replica], loads[replica], replica)
        )
        n_tokens = n_blocks[best] * self._config.engine.block_size
        if n_tokens > self._config.cache_threshold_fraction * request.num_prompt_tokens:
            return best
        return min(range(len(loads)), key=lambda replica: (len(self._known[replica]), replica))

    def _n_known_blocks(self, request: Request, known: set[int]) -> int:
        blocks = self._prompt_blocks(request)
        return next(
            (i_block for i_block, content in enumerate(blocks) if content not in known), len(blocks)
        )

    def _prompt_blocks(self, request: Request) -> Sequence[int]:
        return request.contents[: request.num_prompt_tokens // self._config.engine.block_size]

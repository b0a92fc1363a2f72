"""Which replica gets a request? In plain Python; ``cluster_config`` says whose rules these are."""

from collections.abc import Iterable, Sequence

from inferometer.simulate.cluster_config import ClusterConfig, replicas_of_classes
from inferometer.simulate.demand import Demand
from inferometer.simulate.reference.request import Request
from inferometer.simulate.router_draws import router_draws


class RouterRule:
    """A router: what it knows of its replicas is the requests in flight, and what it sent where."""

    def __init__(self, requests: Demand, config: ClusterConfig) -> None:
        self._config = config
        self._draws = router_draws(config.seed, requests.n_requests, config.n_replicas).tolist()
        self._class_of = requests.class_index.tolist()
        self._replicas_of = replicas_of_classes(config, max(self._class_of) + 1) if config.router == "class-aware" else ()
        self._last = config.n_replicas - 1
        self._known: list[set[int]] = [set() for _ in range(config.n_replicas)]
        """The contents of the prompts that each replica was sent."""

    def choose(self, request: Request, loads: Sequence[int]) -> int:
        """Where does this request go, if so many are in flight on each replica? The router remembers it."""
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
            case "prefix-affine" if not self._is_uneven(loads):
                return self._with_prefix(request, loads)
            case _:
                return self._least_loaded(loads, range(len(loads)))

    def _least_loaded(self, loads: Sequence[int], replicas: Iterable[int]) -> int:
        """Of equals the next behind the last one chosen."""
        return min(replicas, key=lambda replica: (loads[replica], (replica - self._last - 1) % len(loads)))

    def _is_uneven(self, loads: Sequence[int]) -> bool:
        most, least = max(loads), min(loads)
        return most - least > self._config.balance_abs_threshold and most > self._config.balance_rel_threshold_ratio * least

    def _with_prefix(self, request: Request, loads: Sequence[int]) -> int:
        """Where most of the prompt is known, if that is enough; else where the least is known at all."""
        n_blocks = [self._n_known_blocks(request, known) for known in self._known]
        best = min(range(len(loads)), key=lambda replica: (-n_blocks[replica], loads[replica], replica))
        n_tokens = n_blocks[best] * self._config.engine.block_size
        if n_tokens > self._config.cache_threshold_fraction * request.num_prompt_tokens:
            return best
        return min(range(len(loads)), key=lambda replica: (len(self._known[replica]), replica))

    def _n_known_blocks(self, request: Request, known: set[int]) -> int:
        blocks = self._prompt_blocks(request)
        return next((i_block for i_block, content in enumerate(blocks) if content not in known), len(blocks))

    def _prompt_blocks(self, request: Request) -> Sequence[int]:
        return request.contents[: request.num_prompt_tokens // self._config.engine.block_size]


__all__ = ["RouterRule"]

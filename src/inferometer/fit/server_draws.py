"""Which servers may as well have answered these load tests: limits, switches, step times and front end drawn together?

Limits come from their intervals, and stay where the load tests, all limits at once, leave them;
step times give way to them and scatter as far as their own doubt goes. A limit without an upper end
is drawn far beyond what is assumed of it.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from inferometer.fit.black_box import Explained
from inferometer.fit.effective_steps import FRONT_END
from inferometer.fit.inverse import draw
from inferometer.fit.knob_fit import KnobFit
from inferometer.fit.knob_profiles import Profiles
from inferometer.fit.server_fit import ServerDraw
from inferometer.fit.server_knobs import ServerKnobs
from inferometer.records.columns import F64

N_DRAWS: Final = 19
"""The true server is as likely as any of them: it lies below or above all of them one time in
ten."""
_MOST_TRIES: Final = 4 * N_DRAWS
_OPEN_RATIO: Final = 4
"""A limit of which no upper end is known is drawn up to so much more than a simulation takes."""
_BESIDE_STEPS: Final = ("blend_ratio", FRONT_END)
_SEED: Final = 20261122


def draw_servers(
    profiles: Profiles, explained: Explained, knobs: Sequence[KnobFit]
) -> tuple[ServerDraw, ...]:
    """Servers that are equally likely.

    Where hardly any limits go together with the load tests, those that do come again.

    None where no other server does: 19 times the likely one would be an interval of no width, and
    both ends of its step times say more. All steps of a draw are slower or faster by as much as is
    left between the load tests and their simulation.
    """
    solution, unknowns = explained.solution, explained.box.unknowns
    inexactness_ratio = explained.box.residual(explained.place).tpot_ratio
    is_of_steps = np.array([name not in _BESIDE_STEPS for name in unknowns.names])
    rng = np.random.default_rng(_SEED)
    moves = draw(solution, unknowns, _MOST_TRIES) - solution.x
    kept = list[ServerDraw]()
    for off in moves:
        values: dict[str, Any] = {knob.name: _drawn(knob, rng) for knob in knobs}
        drawn = ServerKnobs(**values)
        x = profiles.unknowns_at(drawn, off, rng.exponential(size=profiles.n_groups))
        if x is not None:
            kept.append(
                _told(
                    drawn,
                    unknowns.possible(x + inexactness_ratio * rng.standard_normal() * is_of_steps),
                    knobs,
                )
            )
        if len(kept) == N_DRAWS:
            break
    return tuple(kept[i % len(kept)] for i in range(N_DRAWS)) if kept else ()


def _told(drawn: ServerKnobs, x: F64, knobs: Sequence[KnobFit]) -> ServerDraw:
    return ServerDraw(
        knobs={knob.name: getattr(drawn, knob.name) for knob in knobs},
        parameters=tuple(np.exp(x).tolist()),
    )


def _drawn(knob: KnobFit, rng: np.random.Generator) -> int | bool:
    """A value of this limit or switch that the load tests leave open."""
    if isinstance(knob.value, bool):
        return knob.value if knob.told_by != "assumed" else bool(rng.random() < 0.5)
    if knob.low is None:
        return knob.value
    high = _OPEN_RATIO * max(knob.value, knob.low) if knob.high is None else knob.high
    return round(float(np.exp(rng.uniform(np.log(knob.low), np.log(high)))))

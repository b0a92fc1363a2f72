"""Which settings of vLLM's scheduler are speculation by a named method?

The method is one of ``perfmodel.whatif``; its cost follows from the model and the device.
"""

from collections.abc import Mapping
from typing import Final

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.types import EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel.scenario import LIKELY, Scenario
from inferometer.perfmodel.whatif import Draft, MethodName, draft_cost_ratio, find_method
from inferometer.simulate.scheduler_config import DraftMethod

_METHODS: Final[Mapping[MethodName, DraftMethod]] = {
    "ngram": "ngram",
    "medusa": "ngram",
    "draft_model": "draft_model",
    "eagle": "eagle",
    "mtp": "eagle",
}
"""How vLLM 0.32.0 reserves slots (``SpeculativeConfig.use_eagle``): Medusa's heads reserve none."""
_PROMPT_TOKENS: Final = 1024
_OUTPUT_TOKENS: Final = 256


def draft_settings(
    draft: Draft, model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec | None, policy: str
) -> dict[str, str]:
    """Settings of vLLM's scheduler that draft by this method.

    The acceptance is the published one of the method where ``draft`` has none; the cost of a draft
    is that beside one sequence of usual length.

    Raises
    ------
    SpecError
        Another engine's scheduler, a method that vLLM does not have, no number of drafts, or a
        device that is not known.
    """
    name = draft.method if draft.model is None else draft.model.model_id
    if policy != "vllm" or draft.method not in _METHODS:
        raise SpecError(
            f"{name} drafts in the scheduler of {policy}",
            where="--speculative",
            allowed=f"vLLM's scheduler, with {', '.join(_METHODS)}; others' drafts are not simulated",
            try_="the same command without --speculative; `inferometer predict` has a static batch",
        )
    if draft.n_tokens is None:
        raise SpecError(
            f"{name} without a number of draft tokens",
            where="--speculative",
            allowed="METHOD:N, as vLLM's num_speculative_tokens",
            try_=f"{suggestions.flags('--speculative', f'{name}:3')}; the best number:"
            f" {suggestions.command('predict', 'MODEL', '--speculative', name)}",
        )
    if hardware is None:
        raise SpecError(
            f"the time that {name} takes is unknown without a device",
            where="--speculative, --hardware",
            allowed="a device of the catalogue, or the settings themselves",
            try_="--set num_speculative_tokens=3 --set acceptance_fraction=0.7 --set"
            " draft_method=eagle --set draft_cost_ratio=0.07",
        )
    alone = Scenario(
        model=model,
        engine=engine,
        hardware=hardware,
        batch_size=1,
        prompt_tokens=_PROMPT_TOKENS,
        output_tokens=_OUTPUT_TOKENS,
    )
    acceptance = draft.acceptance_fraction
    if acceptance is None:
        acceptance = find_method(draft.method).acceptance.likely_fraction
    return {
        "num_speculative_tokens": str(draft.n_tokens),
        "draft_method": _METHODS[draft.method],
        "acceptance_fraction": f"{acceptance:g}",
        "draft_cost_ratio": f"{draft_cost_ratio(alone, draft, LIKELY):.3g}",
    }

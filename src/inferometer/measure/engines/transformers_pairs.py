"""Parts of a decode step (launches, weights, sequences), by paired steps of two widths.

Two widths of the same step at three batch sizes, in turns: the loaded model, and one with the same
layers and operations whose matrices are narrow. Both launch the same operations; the narrow one has
next to no weights to read. ``records.step_shares`` takes the steps apart.
"""

import copy
import time
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from inferometer.measure.engines.protocol import Ceiling
from inferometer.measure.engines.transformers_loading import HfConfig, HfModel, distinct_parameters
from inferometer.records.types import SEQUENCES_OF_STEP, ProbeKind

CONTEXT_TOKENS: Final = 64
ROUNDS_OF_A_BOUT: Final = 20
_FEWEST_ROUNDS: Final = 5
_ENOUGH_S: Final = 5.0
_WIDTH_PER_HEAD: Final = 8
_NARROW_VOCAB: Final = 256


class PairedSteps:
    """Both widths at all batch sizes, ready to step."""

    def __init__(self, model: HfModel) -> None:
        self._steppers: list[_Stepper] | None = None
        self._model = model

    def bout(self) -> tuple[Ceiling, ...]:
        """Some rounds of steps; nothing where this architecture cannot be built narrow."""
        with torch.inference_mode():
            if self._steppers is None:
                self._steppers = _steppers(self._model)
            return _in_turns(self._steppers) if self._steppers else ()


def _steppers(model: HfModel) -> "list[_Stepper]":
    try:
        narrow = _narrow(model)
        return [
            _Stepper(one, kind, n_sequences)
            for kind, n_sequences in SEQUENCES_OF_STEP.items()
            for one in (model, narrow)
        ]
    except (ValueError, TypeError, RuntimeError, AttributeError):
        return []


def _narrow(model: HfModel) -> HfModel:
    """The same layers with narrow matrices, and heads as they are: attention is the same."""
    config: HfConfig = copy.deepcopy(model.config)
    n_heads = config.num_attention_heads
    config.head_dim = getattr(config, "head_dim", None) or config.hidden_size // n_heads
    config.hidden_size = config.intermediate_size = _WIDTH_PER_HEAD * n_heads
    config.vocab_size = min(_NARROW_VOCAB, config.vocab_size)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, name, None)
    parameter = next(iter(model.parameters()))
    attention = model.config._attn_implementation  # noqa: SLF001 -- nothing public has it
    kernel: dict[str, Any] = {"attn_implementation": attention}
    with torch.device(parameter.device):
        return AutoModelForCausalLM.from_config(config, dtype=parameter.dtype, **kernel).eval()


class _Stepper:
    """Decode steps of one width and batch size, one at a time."""

    def __init__(self, model: HfModel, kind: ProbeKind, n_sequences: int) -> None:
        self._model = model
        self._kind = kind
        self._device = next(iter(model.parameters())).device
        self._weight_bytes = sum(
            one.numel() * one.element_size() for one in distinct_parameters(model)
        )
        self._cache = DynamicCache(config=model.config)
        self._tokens = torch.ones(
            (n_sequences, CONTEXT_TOKENS), dtype=torch.long, device=self._device
        )
        self.step()
        self.step()

    def step(self) -> Ceiling:
        """Run one step, and return its time."""
        self._settle()
        started_ns = time.perf_counter_ns()
        logits = self._model(
            input_ids=self._tokens, past_key_values=self._cache, use_cache=True, logits_to_keep=1
        ).logits
        self._tokens = logits[:, -1:].argmax(-1)
        self._settle()
        return Ceiling(
            kind=self._kind,
            started_ns=started_ns,
            dtype="",
            footprint_bytes=self._weight_bytes,
            value_per_s=1e9 / (time.perf_counter_ns() - started_ns),
        )

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def _in_turns(steppers: list[_Stepper]) -> tuple[Ceiling, ...]:
    """Rounds of one step of each, begun by another one each time."""
    found: list[Ceiling] = []
    begin_s = time.perf_counter()
    for i_round in range(ROUNDS_OF_A_BOUT):
        if i_round >= _FEWEST_ROUNDS and time.perf_counter() - begin_s > _ENOUGH_S:
            break
        order = [(i_round + i) % len(steppers) for i in range(len(steppers))]
        steps = {i: steppers[i].step() for i in order}
        found += [steps[i] for i in range(len(steppers))]
    return tuple(found)

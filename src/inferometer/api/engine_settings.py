"""Settings of a server's engine: refused where an option gives them, and speculation by its method."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from inferometer import suggestions
from inferometer.api.question import Field
from inferometer.errors import SpecError
from inferometer.inputs import resolve
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.synonyms import our_flag, speculation_method
from inferometer.perfmodel.whatif import METHODS, Draft, MethodName
from inferometer.simulate import engine_config

_DRAFTS_DOOR: Final = Door(
    noun="speculation",
    allowed='METHOD:N, or {"method": ..., "num_speculative_tokens": N}',
    try_="--speculative eagle:3",
)
_DRAFT: Final = re.compile(r"(?P<name>[^,]+?)(?::(?P<n>\d{1,3}))?(?:,(?P<acceptance>[^,]*))?")


def refuse_options(policy: str, own: Mapping[str, str], fields: Sequence[Field]) -> None:
    """Refuse settings in ``own`` that the engine's scheduler does not have and an option gives.

    Raises
    ------
    SpecError
        There is one, under the name of any engine; the error has the flag.
    """
    flags = {flag.partition("/")[0]: one for one in fields for flag in one.flags}
    for name, value in own.items():
        flag = our_flag(f"--{name.replace('_', '-')}", flags)
        is_own = engine_config.own_name(policy, name) == name
        if flag not in flags or (is_own and engine_config.has_knob(policy, name)):
            continue
        setting, is_switch = f"{name}={value}", flags[flag].kind is bool
        is_off = is_switch and value.lower() in {"false", "0", "no"}
        raise SpecError(
            f"{name} is no setting of the scheduler of {policy}",
            where=f"--set {setting}",
            allowed=f"the scheduler's own settings; {name} is an option: {flag}",
            try_=f"the same command without {suggestions.flags('--set', setting)}"
            if is_off
            else suggestions.flags(flag, *(() if is_switch else (value,))),
        )


def named_draft(text: str) -> Draft:
    """The speculation of ``eagle:3,0.7`` (method, draft tokens, acceptance), or of vLLM's JSON.

    Raises
    ------
    SpecError
        The text is no speculation by a named method.

    Example
    -------
    >>> named_draft("EAGLE-3:4").method, named_draft("mtp,0.8").acceptance_fraction
    ('eagle', 0.8)
    >>> named_draft('{"method": "ngram", "num_speculative_tokens": 5}').n_tokens
    5
    """
    found = _DRAFT.fullmatch(_draft_of_vllm(text) if text.startswith("{") else text.strip())
    if found is None:
        raise no_speculation(text)
    n_tokens = None if found["n"] is None else int(found["n"])
    try:
        acceptance = None if found["acceptance"] is None else float(found["acceptance"])
    except ValueError:
        raise no_speculation(text) from None
    if n_tokens == 0 or (acceptance is not None and not 0 <= acceptance <= 1):
        raise no_speculation(text)
    name = found["name"].strip()
    known = speculation_method(name)
    method: MethodName | None = next((one for one in METHODS if one == known), None)
    if method is not None:
        return Draft(method, None, acceptance, n_tokens)
    try:
        model = resolve.resolve_model(name, load_format="dummy").spec
    except SpecError as error:
        raise no_speculation(text) from error
    return Draft("draft_model", model, acceptance, n_tokens)


def _draft_of_vllm(text: str) -> str:
    """VLLM's ``--speculative-config`` as METHOD:N; without a method by its model's name."""
    config = _DRAFTS_DOOR.loose_json(text, where="--speculative")
    if not isinstance(config, dict):
        raise no_speculation(text)
    method, model = str(config.get("method") or ""), str(config.get("model") or "")
    words = re.split(r"[^a-z0-9]+", model.lower())
    of_name = next((one for one in ("eagle", "eagle3", "medusa", "mtp") if one in words), "")
    name = (method if method != "draft_model" else "") or of_name or model
    n_tokens = config.get("num_speculative_tokens")
    return name if n_tokens is None else f"{name}:{n_tokens}"


def no_speculation(text: str) -> SpecError:
    """The error for text that is no speculation."""
    return SpecError(
        f"{text!r} is no speculation",
        where="--speculative",
        allowed=(
            "ngram, eagle, medusa, redrafter, mtp or a draft model, with its number of draft tokens"
            " and its acceptance from 0 to 1 (eagle:3,0.7); `predict` also takes N,ACCEPTANCE,COST"
        ),
        try_="--speculative eagle:3",
    )

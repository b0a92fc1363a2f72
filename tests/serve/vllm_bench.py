"""``vllm bench serve``, by its functions.

A vLLM built for CPUs has a name of its own, which vLLM's command does not know.
"""

import argparse
import sys


def bench(words):
    from vllm.benchmarks.serve import add_cli_args, main

    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args(words))


if __name__ == "__main__":
    bench(sys.argv[1:])

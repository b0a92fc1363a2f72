"""``vllm bench serve``, loaded once and run as often as a line with arguments comes in.

Its import takes longer than a short run.

For an interpreter that has vLLM. A line in is a JSON list of arguments, a line out ``done``.
"""

import json
import sys

from vllm.benchmarks.serve import add_cli_args, main as bench
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main():
    answers, sys.stdout = sys.stdout, sys.stderr
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        bench(parser.parse_args(json.loads(line)))
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main()

"""What does vLLM's own parser make of each command line?

Argument: JSON, a list of lists of words; prints what was understood.
"""

import json
import sys

NAMES = (
    "model_tag", "served_model_name", "host", "port", "dtype", "quantization", "kv_cache_dtype", "tensor_parallel_size", "max_model_len",
    "max_num_seqs", "max_num_batched_tokens", "max_num_active_seqs", "block_size", "gpu_memory_utilization", "scheduling_policy",
    "enable_prefix_caching", "enable_chunked_prefill", "scheduler_reserve_full_isl", "async_scheduling", "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive", "watermark", "speculative_config", "pipeline_parallel_size", "nnodes", "node_rank",
    "master_addr", "headless",
)  # fmt: skip


def understood(lines):
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    for words in lines:
        flags = parser.parse_args(words)
        validate_parsed_serve_args(flags)
        yield {name: getattr(flags, name) for name in NAMES}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(list(understood(json.loads(sys.argv[1])))) + "\n")

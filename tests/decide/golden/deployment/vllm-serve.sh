#!/bin/sh
# One replica of meta-llama/Llama-3.1-8B-Instruct for vLLM 0.32.0: 2 x NVIDIA H100 SXM5 80GB.
set -eu
exec vllm serve meta-llama/Llama-3.1-8B-Instruct \
  --served-model-name meta-llama/Llama-3.1-8B-Instruct \
  --host 0.0.0.0 \
  --port 8000 \
  --dtype bfloat16 \
  --kv-cache-dtype auto \
  --tensor-parallel-size 2 \
  --max-model-len 8192 \
  --max-num-seqs 64 \
  --max-num-batched-tokens 2048 \
  --block-size 16 \
  --gpu-memory-utilization 0.9 \
  --scheduling-policy fcfs \
  --enable-prefix-caching \
  --enable-chunked-prefill \
  --scheduler-reserve-full-isl \
  --async-scheduling \
  --kv-cache-metrics \
  --kv-cache-metrics-sample 0.01 \
  "$@"

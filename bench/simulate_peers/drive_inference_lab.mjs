// Run inference-lab 0.2.1 (Rust as WASM) over a workload of the same means. It draws arrivals and lengths itself: no trace goes in.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [workloadPath, folder] = process.argv.slice(2);
const { settings, rate_per_s, log_prompt, log_output, prompt_tokens } = JSON.parse(readFileSync(workloadPath, "utf8"));
const lab = await import(pathToFileURL(join(folder, "inference_lab.js")).href);
lab.initSync({ module: readFileSync(join(folder, "inference_lab_bg.wasm")) });

// Its step takes the longer of computing and reading, ours the sum: weights are read in our launch, a full step takes as long as ours.
const nParameters = 1e9, bytesPerParameter = 2, nLayers = 8, hidden = 3072, nHeads = 12;
const kvBytesPerToken = 2 * (hidden / nHeads) * bytesPerParameter * nLayers;
const fullRowS = settings.per_row_s + settings.launch_s / settings.max_num_batched_tokens;
const config = (nRequests) => JSON.stringify({
  hardware: {
    name: "as ours",
    compute_flops: (2 * nParameters) / fullRowS,
    memory_bandwidth: (nParameters * bytesPerParameter) / settings.launch_s,
    memory_capacity: 1e12,
    kv_cache_capacity: settings.num_blocks * settings.block_size * kvBytesPerToken,
    bytes_per_param: bytesPerParameter,
  },
  model: {
    name: "as ours", num_parameters: nParameters, num_layers: nLayers, hidden_dim: hidden, num_heads: nHeads, num_kv_heads: 1,
    max_seq_len: settings.max_model_len,
  },
  scheduler: {
    max_num_batched_tokens: settings.max_num_batched_tokens, max_num_seqs: settings.max_num_seqs, policy: "fcfs",
    enable_chunked_prefill: true, max_num_partial_prefills: settings.max_num_seqs,
    long_prefill_token_threshold: settings.max_num_batched_tokens, block_size: settings.block_size,
  },
  workload: {
    arrival_pattern: "poisson", arrival_rate: rate_per_s, num_requests: nRequests, seed: 2026,
    input_len_dist: { type: "lognormal", mean: log_prompt[0], std_dev: log_prompt[1] },
    output_len_dist: { type: "lognormal", mean: log_output[0], std_dev: log_output[1] },
  },
  simulation: { log_interval: 1000000 },
});

lab.run_simulation(config(100)); // compiles
const start = process.cpuUsage();
const result = lab.run_simulation(config(prompt_tokens.length));
const spent = process.cpuUsage(start);
console.log(JSON.stringify({
  cpu_s: (spent.user + spent.system) / 1e6, n_done: result.metrics.completed_requests, n_steps: null, ended_s: result.metrics.total_time,
}));

"""Which verbs are there, what do they answer, and how do their help and examples read?

A plain verb asks one question and prints its answer: its row here is all of it. The module in
``api`` has the function that answers, under the verb's name; its one parameter is the question.
Where its start must be fast, that function does the first half, and a second one the rest. Other
verbs have a module of their own.
"""

from typing import Final, NamedTuple


class Verb(NamedTuple):
    """A verb of the command line: where it lives, and what it answers."""

    module: str
    """Module of the answering function; of other verbs the one with ``command`` and ``ANSWER``."""
    answers: str
    help: str | None = None
    """Help of a plain verb, in paragraphs; the first is its short help."""
    examples: str = ""
    is_whole: bool = False
    """Is the whole answer printed, not its first screen?"""
    has_page: bool = True
    """Else the answer is lines: no ``--csv``, ``--report`` and ``--verbose``."""
    takes_grid: bool = False
    """Options may have several values, which make a grid."""
    function: str = ""
    """Function of a plain verb, where its name is not the verb's."""
    of_servers: "Verb | None" = None
    """The plain verb for the same question about servers, with its own flags."""
    servers_by: tuple[str, ...] = ()
    """Beginnings of a word that asks of servers."""
    second_half: str | None = None
    """``module:function`` that answers with what the first function returns, unless that is None.

    It is imported then: what comes first must not wait for it."""
    shows_first_half: bool = False
    """Is the first half's progress shown, so that its renderer is imported first?"""


VERBS: Final[dict[str, Verb]] = {
    "quick": Verb(
        "inferometer.api.model_options",
        "How fast is this model here, and what limits it? (2 minutes)",
        function="with_engine",
        second_half="inferometer.api.sweep:quick",
        help="""How fast is MODEL on this machine, what limits it, and what to expect at points that were not measured?

MODEL is a Hugging Face folder or id here, a GGUF file, or a catalogue id with --load-format
dummy.""",
        examples="""\b
Example:
  inferometer quick smollm2-135m --load-format dummy --budget 30s
""",
    ),
    "sweep": Verb(
        "inferometer.api.sweep",
        "Measure prefill and decode over prompt lengths and batch sizes.",
        help="""How fast are prefill and decode over prompt lengths and batch sizes?

Prefill and decode are timed separately, after a warm-up, with repetitions, in shuffled order.
A point that does not fit into memory is recorded as such. Each point is stored when it is
done: after Ctrl-C or a crash, the same command resumes. docs/sweep.md defines each number.""",
        examples="""\b
Example:
  inferometer sweep --model smollm2-135m --load-format dummy --seq 16,64 --batch-sizes 1,2 --out runs/example
""",
    ),
    "predict": Verb(
        "inferometer.api.predict",
        "What would a model do on a device: memory, bounds, latency, cost?",
        help="""\
What would MODEL do on a device: parameters, memory, largest batch, bounds, TTFT, TPOT, throughput, cost, energy?

Each answer has an interval and names its source: *published* rows of this kind of device,
*datasheet*, *measured ceilings* (--hardware this) or *fitted* (--fit). Exit 6: the model does
not fit into memory; the smallest --tp that fits is named.""",
        examples="""\b
Examples:
  inferometer predict llama-3.1-8b --hardware h100_sxm --batch 32 --prompt 1024 --output 256
  inferometer predict smollm2-135m --hardware this --batch 4 --dtype float32
  inferometer predict llama-2-70b --hardware a100_80gb_sxm --tp 4 --quantization int8 --what-if

\b
With --fit, the device, the number formats and the number of devices are those of the fit; others are refused:
  predict qwen2.5-0.5b --fit runs/example --batch 8
Another device: --transfer carries step times over, as far as published tables say that devices are alike.
""",
        takes_grid=True,
    ),
    "simulate": Verb(
        "inferometer.api.simulate",
        "What would happen if this server got this traffic?",
        help="""What would happen if MODEL on this server got this traffic.

Throughput, TTFT, TPOT, E2E, and is the objective met?

The engine's scheduler is simulated step by step. Step times come from a fit (--fit), else from
published rows of this kind of device (--hardware), else from the datasheet. The same requests
are simulated on 19 plausible servers (draws of the uncertain step times); with a datasheet, at
the fast and the slow end.""",
        examples="""\b
Examples:
  inferometer simulate llama-3.1-8b --hardware h100_sxm --workload chat --rate 5
  inferometer simulate 'vllm serve Qwen/Qwen3-8B -tp 2 --max-num-seqs 64' --hardware h100 --rate 5
  inferometer simulate llama-3.1-8b --hardware h100_sxm --concurrency 64 --requests 500 --max-num-seqs 32
  inferometer simulate qwen3-8b --hardware h100 --rate 5 --set num_speculative_tokens=3 --set acceptance_fraction=0.7
  inferometer simulate llama-3.1-8b --hardware h100_sxm --rate 40 --replicas 4 --router prefix-affine
  inferometer simulate qwen3-30b-a3b --hardware h100_sxm --rate 40 --data-parallel-size 2
  inferometer simulate llama-3.1-8b --hardware h100_sxm --rate 40 --prefill-replicas 2 --replicas 2 --kv-link 50GB/s
  inferometer simulate llama-3.1-8b --hardware h100_sxm --rate 40 --order shortest-remaining
  inferometer simulate llama-3.1-70b --hardware h100_sxm --tp 4 --rate 0.5 --slo 'ttft:p95<20s, tpot:p95<500ms'
""",
        takes_grid=True,
    ),
    "explore": Verb(
        "inferometer.cli.explore", "What if? A local page: every move of a slider simulates again."
    ),
    "study": Verb(
        "inferometer.cli.study",
        "How does it change with length, batch, TP, device, precision, load or policy?",
    ),
    "emulate": Verb(
        "inferometer.cli.emulate",
        "Serve OpenAI's interface at a simulated server's pace: no GPU needed.",
    ),
    "load": Verb(
        "inferometer.api.load_sending",
        "Load a server with requests: how does it do under this traffic?",
        function="send",
        second_half="inferometer.api.load:answer_of_test",
        shows_first_half=True,
        help="""How does the server at URL do under this traffic: throughput, TTFT, TPOT, E2E, and is the objective met?

Each request is sent at the instant that the workload intends (as in `inferometer simulate`),
whether or not earlier ones have finished; latencies count from that instant. Where the client
itself was the bottleneck, the run is INVALID (exit 3). Requests are stored within a second of
their end: after Ctrl-C or a crash, the same command resumes.""",
        examples="""\b
Examples (a server must listen there):
  inferometer load http://127.0.0.1:8000 --model NAME --workload chat --rate 5 --for 60s --slo 'ttft:p95<500ms'
  inferometer load http://127.0.0.1:8000 --model NAME --concurrency 32 --for 2min --processes 2
  inferometer load https://host/prefix --model NAME --workload trace.jsonl --speed-up 2 --endpoint completions

\b
The bearer token is taken from INFEROMETER_API_KEY, else OPENAI_API_KEY; it is neither printed nor stored.
""",
    ),
    "capacity": Verb(
        "inferometer.api.capacity",
        "What is the highest load that still meets the SLO?",
        help="""\
How many requests per second, or users (with --concurrency), do replicas of MODEL carry together within the SLO?

MODEL is simulated; with a URL in its place, that server is measured: `inferometer capacity
http://HOST --help`.

The search begins at --rate or --concurrency. Exit 0 located, 10 no load meets the SLO, 11 not
located.""",
        examples="""\b
Examples:
  inferometer capacity llama-3.1-8b --hardware h100_sxm --workload chat --slo 'ttft:p95<1s, tpot:p95<100ms'
  inferometer capacity llama-3.1-8b --hardware h100_sxm --concurrency 16 --slo 'tpot:p95<30ms' --resolution 0.1
  inferometer capacity llama-3.1-8b --hardware l40s --replicas 4 --slo 'ttft:p95<1s' --probe-requests 200
""",
        takes_grid=True,
        servers_by=("http://", "https://"),
        of_servers=Verb(
            "inferometer.api.capacity_measured",
            "",
            function="capacity_of_server",
            help="""What load (requests/s, or users with --concurrency) does the server carry within the SLO?

The search begins at --rate or --concurrency. If a probe is INVALID or the server dies, it ends
with the bracket found by then. Exit 0 resolved, 11 unresolved.""",
            examples="""\b
Examples (a server must listen there):
  inferometer capacity http://127.0.0.1:8000 --model NAME --rate 2 --slo 'ttft:p95<500ms' --out runs/capacity
  inferometer capacity http://127.0.0.1:8000 --model NAME --concurrency 8 --slo 'tpot:p95<50ms' --out runs/users
""",
        ),
    ),
    "size": Verb(
        "inferometer.api.size",
        "How many GPUs of which kind meet the SLO under this traffic, and at what cost?",
        help="""How many replicas of which kind meet the SLO for MODEL under this traffic, and what do they cost?

Exit 0: the SLO is met at fast, likely and slow step times, 11 undecided, 10 no device in --gpus
meets it, 6 no device in --gpus holds the model.""",
        examples="""\b
Examples:
  inferometer size llama-3.1-8b --rate 20 --workload chat --slo 'ttft:p95<1s' --gpus h100_sxm,l40s --tp 1,2
  inferometer size llama-3.1-8b --rate 2 --slo 'ttft:p95<2s' --gpus a100_80gb_sxm --tp 1 --quantization int4
  inferometer size llama-3.1-8b --rate 10,20,40 --slo 'ttft:p95<1s' --gpus h100_sxm
  inferometer size llama-3.1-8b --total-gpus 2 --slo 'ttft:p95<1s, tpot:p95<50ms' --gpus h100_sxm

With --groups FILE (docs/sizing.md): how many replicas of each group of different kinds.
A trace (--workload FILE) is sized for its busiest window; then replicas come and go with it.
""",
        takes_grid=True,
    ),
    "deploy": Verb(
        "inferometer.api.deploy",
        "Write what runs, watches and checks a sizing: vLLM, Kubernetes, Prometheus, Grafana.",
        help="""\
Write the files that run, watch and check PLAN, the plan.json of `inferometer size --out DIR`.

vllm serve command, Kubernetes objects, router, Prometheus rules and alerts, Grafana dashboard,
load test, and the assumptions in words.""",
        examples="""\b
Examples:
  inferometer deploy plan/plan.json --out files --namespace llm --spare 1
  inferometer deploy plan/plan.json --out files --force --backend 10.0.0.1:8000 --backend 10.0.0.2:8000
""",
        has_page=False,
    ),
    "verify": Verb(
        "inferometer.api.verify",
        "Do predictions come true? Seal them first, then measure.",
        help="""Do predictions of a simulation, a fit or a datasheet for the loads or points of PLAN come true?

The predictions are sealed (hashed, dated, with the code's version) in the ledger before the
first byte is sent; then the same requests are sent, and each measured value is compared with
its predicted interval. The first valid measurement of a prediction counts. The same command
resumes.""",
        examples="""\b
Examples (docs/verify.md has the plans):
  inferometer verify plan.toml --seal-only --out runs/proof
  inferometer verify plan.toml --url http://127.0.0.1:8000 --out runs/proof
  inferometer verify points.toml --check runs/held-out --out runs/points

\b
Exit codes: 0 all predictions held and the SLO was met; 10 one was wrong or the SLO was missed; 11 undecided;
3 a measurement was INVALID and proves nothing; 4 a seal, a ledger or a run cannot be trusted.
""",
    ),
    "ledger": Verb(
        "inferometer.api.ledger",
        "How often were sealed predictions right?",
        help="""How often did predictions that were sealed before the measurement come true?

Misses and predictions that were never measured are listed too.

The hash chain is checked: a line that was changed, removed, inserted or dated in the future is
named (exit 4). The owner of the file could rewrite the whole chain; --anchor and --expect show
that, if the anchor is stored where the owner cannot change it.""",
        examples="""\b
Examples:
  inferometer ledger
  inferometer ledger --markdown
  inferometer ledger --anchor
""",
        has_page=False,
    ),
    "timeline": Verb(
        "inferometer.api.timeline",
        "What does each request of the batch do in each step?",
        help="""\
What does each slot of the batch do in each step: context, generation, end of sequence, idle?

RUN is a folder that `inferometer simulate --parts --out RUN` wrote. For runs without --parts,
and sweeps with recorded steps, --perfetto still shows requests, router, queues and KV cache of
each replica. Without RUN, the tick model runs: a prefill costs --prefill-ticks, a token costs 1
(docs/ticks.md).""",
        examples="""\b
Examples:
  inferometer timeline --batching static --slots 4 --load batch:12 --deviation 3
  inferometer timeline --batching one-prefill --chunks 2 --load rate:460 --ticks 1000 --compare
""",
        has_page=False,
    ),
    "diagnose": Verb(
        "inferometer.api.diagnose",
        "What limits this running server, and which change would help?",
        help="""What limits this running server, how much of its latency is that, and which change would help?

Its metrics are read for --for; nothing is sent to it. Its requests and step times are rebuilt
from the metrics, and the rebuilt server is simulated with each limit lifted in turn: the fall
in latency is that limit's share. A cause is named only if its share is above 0 on every
plausible server, that is, every simulated one with the same metrics.""",
        examples="""\b
Examples:
  inferometer diagnose http://127.0.0.1:8000 --slo 'ttft:p95<500ms, tpot:p95<50ms'
  inferometer diagnose http://127.0.0.1:8000 --for 5min --known max_num_batched_tokens=2048
  inferometer diagnose http://127.0.0.1:8000 --fpm tcp://127.0.0.1:20380
  inferometer diagnose vllm.log
""",
    ),
    "watch": Verb(
        "inferometer.api.watch",
        "In which regime are these servers now, and what changed?",
        help="""In which regime are these servers now, how long will the SLO be met, and what changed?

Their metrics are read once a second; nothing is sent to them. On a terminal the state is
redrawn continuously; elsewhere one line is printed for each change of regime: idle,
overloaded, KV cache or batch full, preempting, restarted, unreachable, slower or faster than
it was at this load, prefix cache hits lost, fewer drafted tokens accepted.""",
        examples="""\b
Examples (a server must listen there):
  inferometer watch http://127.0.0.1:8000 --slo 'ttft:p95<500ms, tpot:p95<50ms' --for 5s
  inferometer watch http://127.0.0.1:8000 --once --window 3s --json
""",
    ),
    "tune": Verb(
        "inferometer.api.tune",
        "Which changes of a server's settings help under its traffic, and by how much?",
        help="""Which changes of the settings help MODEL's server under this traffic, and by how much?

The flags describe the server as it is. The changes of a playbook are simulated in turn on 19
plausible machines, with the same requests before and after each change. A change that helps on
all of them is adopted; one that may change answers is proposed with the command that checks
its quality. The total gain is measured on other requests than the search used.

With --start, MODEL is the URL of a server that is started here: each change that the simulation
proposes is measured on pairs of servers, started, loaded and stopped in turn, and confirmed on
other pairs at the end. After Ctrl-C or a crash, the same command resumes.

With --engine, MODEL runs here in that engine: each option is measured in pairs of both
variants, loaded side by side; the adopted ones are confirmed with newly loaded models.

Exit 0: the SLO is met afterwards, 10 missed, 11 undecided.""",
        examples="""\b
Examples:
  inferometer tune llama-3.1-8b --hardware h100_sxm --rate 12 --slo 'ttft:p95<500ms, tpot:p95<30ms'
  inferometer tune qwen3-8b --hardware l40s --policy sglang --concurrency 16 --slo 'tpot:p95<80ms'
  inferometer tune llama-3.1-8b --hardware h100_sxm --preset interactive
  inferometer tune http://127.0.0.1:8000 --start 'vllm serve MODEL' --rate 4 --slo 'ttft:p95<1s' --dry-run
  inferometer tune llama-3.1-70b --hardware h100_sxm --tp 8 --goal cost --rate 5 --slo 'ttft:p95<1s' --dry-run
""",
    ),
    "fit": Verb(
        "inferometer.api.fit",
        "Fit a step-time model to runs, with intervals and the range in which it is valid.",
        help="""Fit a step-time model to runs of one model on one engine.

Each parameter has an interval; the model has its held-out error and the valid box (the shapes
in which it was checked).

With --load the runs are load tests of a server that may be a black box; --model and
--hardware narrow the result. Step times, max_num_seqs, step budget, KV cache, switches and
front end are estimated by simulating the requests until the latencies match. What the load
tests do not show is reported, with the load test that would. State what you know with
--server-log, --known and --workload. If no server explains the latencies, the answer is
UNDECIDED (exit 11) and nothing is written.""",
        examples="""\b
Example:
  inferometer fit runs/example

\b
Load tests of a server at several rates, one of them beyond its capacity, are fitted with --load:
  fit --load runs/slow runs/busy runs/beyond --out server.json
  fit --load runs/busy --server-log vllm.log --known num_gpu_blocks=2588,max_num_seqs=256 --out server.json
Use the result with `inferometer simulate NAME --fit server.json`; capacity, emulate, predict and size take it too.

A table of a sweep (CSV with prompt or seq, batch, prefill ms, decode ms/tok) is fitted the same way, with
--model, --dtype and --hardware to say what was measured. So are published tables of closed loops
(InferenceX's agg_*.json, AIConfigurator's silicon_sample.csv), whose rows --model gpt-oss-120b --hardware
h200_sxm --framework vllm --tp 4 select; a device without rows is based on the others'.

\b
Kernel timings (AIConfigurator's folder of a device) give step times without any measured step:
  fit KERNELS/h100_sxm --model llama-3.1-8b --hardware h100_sxm --tp 2 --out step_time.json
With them, the first half of a published serving run of vLLM is fitted; the second half gives the error:
  fit rtxpro6000_llama-3.1-8b_tp1 --kernels KERNELS/rtx_pro_6000_server --hardware rtx_pro_6000_server
A rate sweep's statistics (inference-perf's stages) and the server's limits are enough; one rate is held out:
  fit stages.csv --series vllm --model llama-3.1-8b --hardware h100_sxm --known max_num_seqs=128
""",
    ),
    "explain": Verb(
        "inferometer.api.explain",
        "Where does the time of each measured point go?",
        help="""\
Where does the time of each measured point go: weights, KV cache, matmul, attention, launches, unexplained?

A profiler's trace shows: which kernels, and why does the device stand idle between them?
OpenTelemetry spans (JSON lines): schedule delay, network, router, queue, prefill or decode?
Device counters (dcgm-exporter, dcgmi dmon, nvidia-smi dmon): is memory busy, arithmetic, a link?""",
        examples="""\b
Examples:
  inferometer explain runs/example
  inferometer explain trace.json.gz
  inferometer explain spans.jsonl
  inferometer explain dcgm.prom
""",
    ),
    "show": Verb(
        "inferometer.api.show",
        "What does a run say? (in the terminal)",
        help="""What does a run say?

Several sweeps are shown side by side, runs of requests one after the other. --csv: a row for each
point, or for each run of requests and each of its classes; for each request: `inferometer export`.""",
        examples="""\b
Example:
  inferometer show runs/example
""",
    ),
    "report": Verb(
        "inferometer.api.report",
        "What do runs say? (one offline HTML page)",
        help="""What do runs say, as one offline HTML page?

Several sweeps of one model stand side by side, several runs of requests by rate.""",
        examples="""\b
Examples:
  inferometer report runs/example
  inferometer report runs/example --export runs/example/charts
""",
    ),
    "compare": Verb(
        "inferometer.api.compare",
        "Are these runs faster than those, or is the difference noise?",
        help="""Is B better than A, worse, equivalent, or is that undecided?

A and B are runs, or folders of runs of one configuration each; with --ab they are servers,
which are loaded in turns: `inferometer compare --ab --help`. The run is the unit of
replication: 4 of each side, made in turns, give a 95 % interval. For two single sweeps, their
repetitions are compared. INVALID load tests are refused (exit 3). Exit 0 decided, 11
undecided.""",
        examples="""\b
Examples:
  inferometer compare runs/a runs/b
  inferometer compare runs/before runs/after --metric ttft_p95_s --margin 0.05
""",
        servers_by=("--ab",),
        of_servers=Verb(
            "inferometer.api.ab_pairs",
            "",
            function="compare_servers",
            help="""Is the server at B better than that at URL, worse, equivalent, or is that undecided?

Without B, the same URL under other settings.

Load tests are made in pairs, one of each side, with the same arrivals and lengths. The order
within a pair is random; each side is first in half of the pairs. Both sides get the same texts
if the URLs differ, else other texts (the first would warm the prefix cache for the second).
The number of pairs is fixed in advance: stopping at a pleasing result causes false alarms. A
95 % interval needs 6 pairs. After Ctrl-C or a crash, the same command resumes; a pair with
an incomplete half is measured again. Exit 0 decided, 11 undecided.""",
            examples="""\b
Examples (servers must listen there):
  inferometer compare --ab http://127.0.0.1:8000 http://127.0.0.1:8001 --model NAME --rate 5 --for 60s --repeats 8
  inferometer compare --ab http://127.0.0.1:8000 --model NAME --b-model OTHER --rate 5 --metric tpot_p50_s
  inferometer compare --ab http://127.0.0.1:8000 --model NAME --b-body 'top_k=1' --concurrency 8 --for 30s
""",
        ),
    ),
    "quality": Verb(
        "inferometer.api.quality",
        "What do fewer bits or 2:4 sparsity cost in quality?",
        help="""What does a lossy option cost in quality: perplexity, top-1 and greedy agreement against the reference?

Both process the same text. A change is *not worse* if the whole 95 % interval of its rise in
perplexity lies below --margin, chosen in advance. Exit 0 not worse, 10 worse, 11 undecided.""",
        examples="""\b
Examples:
  inferometer quality ./model --quantization int8 --quantization int4 --kv-dtype fp8
  inferometer quality ./model ./model-awq --text prompts.txt --margin 0.02 --hardware h100_sxm
""",
    ),
    "import": Verb(
        "inferometer.api.import_results",
        "What do other tools' result files say? (vLLM bench, AIPerf, GuideLLM, ...)",
        help="""\
What do results of vLLM's and SGLang's bench, AIPerf, GuideLLM, llm-d and others say?

A file with single requests becomes a run, which show, report, compare and export take. A file
with statistics only is printed, with the tool's definitions. The format is detected from the
content.""",
        examples="""\b
Examples:
  inferometer import bench-result.json
  inferometer import profile_export.jsonl --out runs/aiperf
""",
        function="imported",
        has_page=False,
    ),
    "export": Verb(
        "inferometer.api.export_run",
        "Write a run for other tools: llm-d report, vLLM bench JSON, CSV.",
        help="""\
Write a run as llm-d's Benchmark Report 0.2.1, as vLLM bench's result file, or as a table.

A scheduler-log has a line for each step and for each request turned away.

docs/sweep.md defines the columns of a sweep. Latencies of requests count from the send, as
other tools' do. Intervals, latencies from the intended send and validity go into the report
under results.profiling.inferometer.""",
        examples="""\b
Examples:
  inferometer export runs/example --format llm-d --out report.json
  inferometer export runs/example --format csv --out requests.csv
""",
        function="exported",
        has_page=False,
    ),
    "doctor": Verb(
        "inferometer.api.machine",
        "What would make numbers bad on this machine?",
        help="""What would make numbers bad on this machine, and what can be done about it?

Watches it for half a second.""",
        examples="""\b
Example:
  inferometer doctor
""",
        is_whole=True,
    ),
    "engines": Verb(
        "inferometer.api.machine",
        "Which engines can be measured here, and how are others installed?",
        help="""Which engines can be measured here, and how are others installed?""",
        examples="""\b
Examples:
  inferometer engines
  inferometer engines --install openvino
""",
        is_whole=True,
    ),
    "catalog": Verb(
        "inferometer.api.catalog",
        "Which models, devices and workloads are known, and from which sources?",
        help="""Which models, devices, SLOs and workloads are known, and from which sources?""",
        examples="""\b
Examples:
  inferometer catalog models
  inferometer catalog models qwen2.5-3b
  inferometer catalog hardware h100_sxm
  inferometer catalog slos
  inferometer catalog workloads
  inferometer catalog workloads chat
""",
        is_whole=True,
    ),
    "schema": Verb("inferometer.cli.schema", "What does a verb's --json look like?"),
}

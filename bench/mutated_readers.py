"""Which readers take foreign bytes, and what is a sound example for each?

``bench_mutated_inputs`` changes the examples.
"""

import contextlib
import gzip
import json
import shutil
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "tests"),
    str(ROOT / "tests" / "decide"),
    str(ROOT / "tests" / "verify"),
]

from fleets import fleet
from sealed_examples import seal
from tests.cli.server_files import write_server
from tests.inputs.workload.own_trace_files import write_own_trace
from tests.perfmodel.test_steptime import model_of
from tests.records.load_frames import SESSION, delta, request_frame, sse, usage

from inferometer.api import compute
from inferometer.api.published import are_published
from inferometer.api.request_view import request_view
from inferometer.decide.artefacts.folder import plan_text, read_plan as read_fleet
from inferometer.errors import SpecError
from inferometer.fit.loads.reported import reported_by_server
from inferometer.fit.loads.server_fit import is_server_fit, load_server_fit
from inferometer.inputs import gate, gguf, model_config, objectives, plans, prices, spans
from inferometer.inputs.workload import plan, reading, replay, traces
from inferometer.inputs.workload.types import TraceSource
from inferometer.perfmodel.kv_cache import kv_bytes_per_token
from inferometer.perfmodel.steptime import load_step_time_model
from inferometer.records import device_time, raw_log, request_spans
from inferometer.records.answers import answer_of
from inferometer.records.imports.detection import read_results
from inferometer.records.imports.kernel_tables import read_kernel_tables
from inferometer.records.imports.llmservingsim import read_llmservingsim
from inferometer.records.load_decoding import decode_load, words_of_error
from inferometer.records.reading import read_run
from inferometer.records.request_summaries import summarise_requests
from inferometer.records.server_series import page_kind, sample_table
from inferometer.records.step_logs import read_step_log
from inferometer.records.sweep_csv import TableFacts, read_sweep_csv
from inferometer.serve import emulator_requests
from inferometer.serve.emission_log import read_emission_log
from inferometer.simulate.engine_config import ENGINE_NAMES, engine_config
from inferometer.units import parse_bytes, parse_bytes_per_s, parse_duration_s
from inferometer.verify import ledger, seals

RESULTS = ROOT / "tests" / "records" / "imports" / "results"
EXAMPLES = Path(__file__).with_name("mutated_examples")
FIXTURES = ROOT / "tests" / "records" / "fixtures"


class Reader(NamedTuple):
    """``read`` gets a file of this name, in a folder that has the ``beside`` files.

    ``contents`` are sound examples of it.
    """

    name: str
    file: str
    contents: tuple[bytes, ...]
    read: Callable[[Path], object]
    beside: Mapping[str, bytes] = MappingProxyType({})
    weight: float = 1.0
    is_text: bool = True
    repaired: Callable[[bytes], bytes] = bytes
    """Makes sums true again that a change would break."""


CONFIGS = tuple(
    json.dumps(one[0] | {"model_type": name})
    for name, one in json.loads(
        (ROOT / "tests" / "inputs" / "small_configs.json").read_text()
    ).items()
)


def example(name: str) -> bytes:
    return (EXAMPLES / name).read_bytes()


WORKLOADS = tuple(example(f"workload-{kind}.toml") for kind in ("open", "closed", "gamma"))
SWEEPS = tuple(
    path.read_bytes()
    for path in (
        EXAMPLES / "sweep.csv",
        EXAMPLES / "llama_bench.md",
        EXAMPLES / "llama_bench.jsonl",
        EXAMPLES / "one_batch.jsonl",
        FIXTURES / "t1_prompt_axis.csv",
        FIXTURES / "t1_batch_axis.md",
    )
)


def packed_text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_content() -> bytes:
    numbers = {
        "block_count": 2,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "feed_forward_length": 96,
        "context_length": 512,
    }
    content = packed_text("general.architecture") + struct.pack("<I", 8) + packed_text("llama")
    content += b"".join(
        packed_text(f"llama.{name}") + struct.pack("<II", 4, value)
        for name, value in numbers.items()
    )
    content += (
        packed_text("llama.list")
        + struct.pack("<IIQ", 9, 9, 2)
        + struct.pack("<IQ3I", 4, 3, 1, 2, 3) * 2
    )
    tensors = (("token_embd.weight", (64, 1000), 1), ("blk.0.attn_q.weight", (64, 64), 12))
    for name, shape, code in tensors:
        content += (
            packed_text(name)
            + struct.pack("<I", len(shape))
            + struct.pack(f"<{len(shape)}Q", *shape)
            + struct.pack("<IQ", code, 0)
        )
    return b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(numbers) + 2) + content


def raw_content() -> bytes:
    reads = [*sse(delta("Hel"), delta("lo", finish="length", usage=2)), *sse(usage(2), b"[DONE]")]
    frames = [SESSION, *(request_frame(reads, request_index=index) for index in range(4))]
    frames += [
        raw_log.LagFrame(process_index=0, due_ns=bytes(16), lag_ns=bytes(16), n_in_flight=bytes(8))
    ]
    frames += [
        raw_log.EndFrame(
            process_index=0, ended_ns=10**9, is_interrupted=False, n_unsent=0, cpu_s=0.1
        )
    ]
    return raw_log.MAGIC + b"".join(map(raw_log.encode_frame, frames))


def with_true_sums(content: bytes) -> bytes:
    """A raw log whose frames have sums that fit, so that a change reaches the decoder."""
    start, made = len(raw_log.MAGIC), [content[: len(raw_log.MAGIC)]]
    while start + 8 <= len(content):
        length = min(int.from_bytes(content[start : start + 4], "little"), len(content) - start - 8)
        payload = content[start + 8 : start + 8 + length]
        made.append(struct.pack("<II", len(payload), zlib.crc32(payload)) + payload)
        start += 8 + length
    return b"".join(made)


LOAD_PLAN = plan.request_plan(
    "here", arrival_ns=np.arange(8), prompt_tokens=np.full(8, 7), output_tokens=np.full(8, 12)
)


def spans_explained(path: Path) -> None:
    request_spans.span_times(spans.read_spans(path))


def trace(path: Path) -> None:
    spec = reading.resolve_workload(str(path))
    if isinstance(spec.replay, TraceSource):
        found = traces.read_trace(spec.replay)
        with contextlib.suppress(SpecError):
            traces.read_texts(spec.replay)
        spec = (
            spec
            if found.has_instants
            else reading.with_changes(spec, {"arrivals": {"kind": "open"}}, where="--rate")
        )
    compute.check_before_drawing(spec)
    expected = compute.expected_requests(spec)
    if expected is None or expected <= 10_000:  # more is a long answer, not a slow refusal
        drawn = replay.draw_workload(spec)
        drawn.plan.prompt_tokens.sum()


def shown(path: Path) -> None:
    run = read_run(path.parent)
    if run.requests is not None:
        summarise_requests(run)
        if zlib.crc32(path.read_bytes()) % 16 == 0:
            request_view(run)


def imported(path: Path) -> None:
    found = read_results(path)
    for run in found.runs:
        summarise_requests(run)
        if zlib.crc32(path.read_bytes()) % 16 == 0:
            request_view(run)
    are_published([path])


def sweep(path: Path) -> None:
    read_sweep_csv(path, TableFacts(prompt_tokens=128))


def server_log(path: Path) -> None:
    reported_by_server([], path.read_text(errors="replace"))


def knobs(path: Path) -> None:
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    own = dict(line.partition("=")[::2] for line in lines[1:] if "=" in line)
    engine = lines[0] if lines[0] in ENGINE_NAMES else "vllm"
    engine_config(engine, {"num_blocks": 1000, "max_model_len": 4096}, own, where="--set")


def quantities(path: Path) -> None:
    for line in path.read_bytes().decode("utf-8", "replace").split("\n"):
        for parse in (
            parse_duration_s,
            parse_bytes,
            parse_bytes_per_s,
            objectives.parse_objective,
        ):
            with contextlib.suppress(SpecError):
                parse(line)


def bodies(path: Path) -> None:
    with contextlib.suppress(emulator_requests.Refusal):
        emulator_requests.decoded_body(path.read_bytes(), dict[str, object])


def answers(path: Path) -> None:
    content = path.read_bytes()
    for kind in ("text/event-stream", "application/json"):
        frame = request_frame([content], content_type=kind)
        answer = answer_of(frame)
        assert answer.output_tokens <= max(len(content), 12), (
            f"{answer.output_tokens} tokens of {len(content)} bytes"
        )
        words_of_error(frame, answer.error)


def config(path: Path) -> None:
    model = model_config.read_model_config(path)
    kv_bytes_per_token(model, "bfloat16")
    assert len(repr(model)) < 100_000


def texts(*contents: str) -> tuple[bytes, ...]:
    return tuple(content.encode() for content in contents)


def made_files(folder: Path) -> dict[str, bytes]:
    """Examples that our own code writes."""
    model_of().save(folder / "step_time.json")
    write_server(folder)
    drawn = replay.draw_workload(
        msgspec.structs.replace(reading.resolve_workload("chat"), n_requests=20)
    )
    for suffix in ("jsonl", "csv", "parquet"):
        write_own_trace(drawn, folder / f"own.{suffix}")
    seals.write_seal(folder / "seal", seal())
    ledger.append(folder / "ledger.jsonl", at_utc="2026-11-21T12:00:00Z", add=lambda _: seal())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def run_folder(version: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (FIXTURES / version).iterdir()}


def run_readers() -> list[Reader]:
    found = []
    for version in ("version_1", "version_3"):
        files = run_folder(version)
        beside = {name: content for name, content in files.items() if name != "SHA256SUMS"}
        for name, content in files.items():
            is_table = name.endswith(".parquet")
            rest = {
                key: value
                for key, value in (files if not is_table else beside).items()
                if key != name
            }
            found.append(
                Reader(
                    f"{version}/{name}",
                    name,
                    (content,),
                    shown,
                    rest,
                    weight=0.3,
                    is_text=not is_table,
                )
            )
    return found


def kernel_files() -> dict[str, bytes]:
    names = (
        "gemm_perf",
        "generation_attention_perf",
        "context_attention_perf",
        "moe_perf",
        "nccl_perf",
    )
    return {f"{name}.v.csv.gz": gzip.compress(example(f"{name}.csv"), mtime=0) for name in names}


CONCURRENCY_TABLE = """\
model,gpu,engine,dtype,tp,isl,osl,concurrency,p50 ttft ms,p50 tpot ms
llama-3.1-8b,2xH100,vLLM,fp8,2,1024,128,1,25,7.1
llama-3.1-8b,H100,vLLM,bf16,1,1024,128,32,180,11
"""


OWN_REQUESTS = """\
request_index,status,class_index,intended_send_s,sent_s,admitted_s,first_token_s,finished_s,\
prompt_tokens,cached_tokens,output_tokens,n_preemptions,ttft_s,ttft_uncorrected_s,tpot_s,e2e_s
0,length,0,0.118049063,0.118722228,,0.134526049,0.346535244,128,0,32,,0.016476986,0.015803821,0.006839006,0.228486181
1,unfinished,0,0.223746651,0.224346199,,,,128,0,0,,,,,
"""


def import_readers() -> list[Reader]:
    found = [
        Reader(f"import {path.name}", path.name, (path.read_bytes(),), imported)
        for path in sorted(RESULTS.iterdir())
        if path.suffix in {".json", ".jsonl"}
    ]
    found.append(
        Reader("import agg.json", "agg_m_1k1k.json", (example("agg_m_1k1k.json"),), imported)
    )
    found.append(Reader("import mine.csv", "mine.csv", (CONCURRENCY_TABLE.encode(),), imported))
    found.append(Reader("import own.csv", "own.csv", (OWN_REQUESTS.encode(),), imported))
    found.append(Reader("import stages.csv", "stages.csv", (example("stages.csv"),), imported))
    found += [
        Reader(f"import {name}", name, (example(name),), imported)
        for name in ("serving_block.txt", "sglang.jsonl")
    ]
    simulated = {
        "meta.json": example("meta.json"),
        "requests.csv": example("requests.csv"),
        "llmservingsim_prediction_summary.txt": b"TTFT Mean 1 2\n",
        "w.jsonl": example("serving-workload.jsonl"),
    }

    def serving(path: Path) -> object:
        return read_llmservingsim(path.parent, path.parent / "w.jsonl")

    found += [
        Reader(f"llmservingsim {name}", name, (simulated[name],), serving, simulated)
        for name in ("meta.json", "requests.csv", "w.jsonl")
    ]
    kernels = kernel_files()
    found += [
        Reader(
            f"kernels {name}",
            name,
            (content,),
            lambda path: read_kernel_tables(path.parent),
            kernels,
            is_text=False,
        )
        for name, content in list(kernels.items())[:2]
    ]
    return found


def trace_readers(own: dict[str, bytes]) -> list[Reader]:
    names = (
        "azure.csv",
        "mooncake.jsonl",
        "serving.jsonl",
        "sharegpt.json",
        "batch.jsonl",
        "answers.jsonl",
        "prompts.jsonl",
        "multi_turn.jsonl",
        "sessions.jsonl",
        "otel.jsonl",
    )
    found = [Reader(f"trace {name}", name, (example(name),), trace) for name in names]
    found += [
        Reader(
            f"trace {name}.gz",
            f"{name}.gz",
            (gzip.compress(example(name), mtime=0),),
            trace,
            is_text=False,
            weight=0.5,
        )
        for name in names
    ]
    found.append(
        Reader("counters", "dcgm.prom", (example("dcgm.prom"),), device_time.read_counters)
    )
    found.append(Reader("spans", "spans.jsonl", (example("otel.jsonl"),), spans_explained))
    found += [
        Reader(
            f"trace {name}", name, (own[name],), trace, weight=0.5, is_text=name != "own.parquet"
        )
        for name in ("own.jsonl", "own.csv", "own.parquet")
    ]
    found.append(
        Reader(
            "servegen rates",
            "a_client_rates.csv",
            (example("client_rates.csv"),),
            trace,
            {"a_length_pdfs.jsonl": example("length_pdfs.jsonl")},
        )
    )
    found.append(
        Reader(
            "servegen lengths",
            "a_length_pdfs.jsonl",
            (example("length_pdfs.jsonl"),),
            lambda path: trace(path.with_name("a_client_rates.csv")),
            {"a_client_rates.csv": example("client_rates.csv")},
        )
    )
    return found


def readers(folder: Path) -> tuple[Reader, ...]:
    """All readers; ``folder`` is for examples that are written first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    own = made_files(folder)
    fits = {name: own[name] for name in ("step_time.json", "server.json")}
    return (
        Reader("config.json", "config.json", texts(*CONFIGS), config, weight=2),
        Reader("gguf", "a.gguf", (gguf_content(),), gguf.read_gguf_model, is_text=False, weight=2),
        Reader("workload.toml", "w.toml", WORKLOADS, trace),
        Reader("gate.toml", "g.toml", (example("gate.toml"),), gate.read_gate),
        Reader("plan.toml", "p.toml", (example("verify.toml"),), plans.read_plan),
        Reader("prices.yaml", "p.yaml", (example("prices.yaml"),), prices.read_prices, weight=0.3),
        Reader("sweep table", "s.csv", SWEEPS, sweep),
        Reader(
            "raw log",
            "raw/session-000-process-00.raw",
            (raw_content(),),
            lambda path: decode_load(path.parents[1], LOAD_PLAN),
            is_text=False,
            repaired=with_true_sums,
        ),
        Reader(
            "hosts' clocks",
            "raw/session-000-clocks.json",
            (example("clocks.json"),),
            lambda path: decode_load(path.parents[1], LOAD_PLAN),
            {"raw/session-000-process-00.raw": raw_content()},
        ),
        Reader(
            "answer",
            "body",
            (
                b"".join([*sse(delta("Hel"), delta("lo", usage=2)), *sse(usage(2), b"[DONE]")]),
                (
                    b'{"choices":[{"message":{"content":"a'
                    b' b"},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}'
                ),
            ),
            answers,
            weight=2,
        ),
        Reader(
            "metrics page",
            "metrics",
            (example("metrics.txt"),),
            lambda path: (
                sample_table([(0, path.read_bytes()), (10**9, path.read_bytes())]),
                page_kind(path.read_bytes()),
            ),
            weight=2,
        ),
        Reader("server's log", "server.log", (example("server-log.txt"),), server_log),
        Reader("step times", "step_time.json", (fits["step_time.json"],), load_step_time_model),
        Reader(
            "server's fit",
            "server.json",
            (fits["server.json"],),
            lambda path: load_server_fit(path) if is_server_fit(path) else None,
        ),
        Reader(
            "fleet",
            "plan.json",
            texts(plan_text(fleet())),
            lambda path: read_fleet(path.read_text(errors="replace"), where="plan.json"),
            weight=0.5,
        ),
        Reader(
            "seal",
            "seal.json",
            (own["seal/seal.json"],),
            lambda path: seals.read_seal(path.parent),
            weight=0.5,
        ),
        Reader("ledger", "ledger.jsonl", (own["ledger.jsonl"],), ledger.read_ledger, weight=0.5),
        Reader(
            "emission log",
            "e.log",
            (
                b"inferometer emissions 1\nE"
                + struct.pack("<Q", 40)
                + bytes(40)
                + b"R"
                + struct.pack("<Q", 1)
                + b"\x90",
            ),
            read_emission_log,
            is_text=False,
        ),
        Reader(
            "step log",
            "steps.log",
            texts(
                '{"version": 1, "counter_id": 3, "wall_time": 0.02, "scheduled_requests":'
                ' {"num_decode_requests": 4, "sum_decode_kv_tokens": 900}}',
                "INFO Engine 000: Iteration(1): 1 context requests, 64 context tokens, 2 generation"
                " requests, 2 generation tokens, iteration elapsed time: 9.25 ms, GPU KV cache"
                " usage: 50.0%",
                "at_s,event,duration_s,prefill_requests,decode_requests,prefill_tokens\n"
                "0.5,step,0.02,1,2,100",
            ),
            read_step_log,
        ),
        Reader(
            "request body",
            "body.json",
            texts(
                '{"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5,'
                ' "stream": true}'
            ),
            bodies,
        ),
        Reader(
            "knobs",
            "knobs",
            texts(
                "vllm\nwatermark_fraction=0.01\nmax_num_seqs=8\nnum_speculative_tokens=3\nacceptance_fraction=0.7",
                "vllm\npreemption_mode=swap\nswap_bytes_per_s=1e9\nkv_block_bytes=1000",
                "sglang\nschedule_conservativeness_ratio=1.5\npage_size=10\nchunked_prefill_size=80",
                "static\nmax_batch_size=4\nmax_wait_ns=1000",
                "trtllm\nmax_batch_size=4\nmax_seq_len=100",
            ),
            knobs,
            weight=2,
        ),
        Reader(
            "quantities",
            "q",
            texts(
                "500ms\n80GiB\n50GB/s\nttft:p95<500ms, tpot:p95<50ms\nttft:500 tpot:50",
                "1e3s\n2min\n400Gbit/s",
            ),
            quantities,
        ),
        *trace_readers(own),
        *import_readers(),
        *run_readers(),
    )

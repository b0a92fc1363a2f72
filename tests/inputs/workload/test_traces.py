"""Is every trace format read as it is meant, and every broken line named?"""

import gzip
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from inferometer.errors import SpecError
from inferometer.inputs.spans import read_spans
from inferometer.inputs.workload.plan import NONE, block_contents
from inferometer.inputs.workload.reading import with_changes
from inferometer.inputs.workload.replay import draw_workload
from inferometer.inputs.workload.traces import PrefixTree, read_texts, read_trace
from inferometer.inputs.workload.types import TraceSource, WorkloadSpec

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:18:00,110,27
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 1500, "output_length": 4, "hash_ids": [0, 1, 3]}
{"timestamp": 27.5, "input_length": 1100, "output_length": 3, "hash_ids": [0, 1, 2], "more": true}
{"timestamp": 30, "input_length": 100, "output_length": 3, "hash_ids": [9]}
"""
LLMSERVINGSIM = """{"request_id": "a", "arrival_time_ns": 5, "input_toks": 40, "output_toks": 5, "hash_runs": [[0, 2]]}
{"request_id": "b", "arrival_time_ns": 9, "input_toks": 70, "output_toks": 5, "hash_runs": [[0, 1], [7, 3]]}
"""
SHAREGPT = """[
 {"id": "a", "conversations": [{"from": "human", "value": "12345678"}, {"from": "gpt", "value": "12345"},
                               {"from": "human", "value": "1234"}, {"from": "gpt", "value": "123456789"}]},
 {"id": "b", "conversations": [{"from": "gpt", "value": "1234"}, {"from": "user", "value": "1"}, {"from": "assistant", "value": "1234"}]},
 {"id": "c", "conversations": []}
]"""
BATCH = """{"custom_id": "1", "method": "POST", "body": {"messages": [{"role": "user", "content": "12345678"}], "max_tokens": 30}}
{"custom_id": "2", "body": {"messages": [{"content": [{"text": "1234"}, {"type": "image_url"}]}], "max_completion_tokens": 7}}
{"custom_id": "3", "method": "POST", "body": {"prompt": [5, 6, 7], "max_tokens": 8}}
"""
ANSWERS = """{"custom_id": "1", "response": {"status_code": 200, "body": {"usage": {"prompt_tokens": 12, "completion_tokens": 3}}}}
"""
PROMPTS = """{"task_id": "HumanEval/0", "prompt": "12345678", "canonical_solution": "12345", "test": "x"}
{"question": "1234", "answer": "123456789"}
{"question_id": 81, "category": "writing", "turns": ["123", "12345"]}
{"prompt": "1", "output_tokens": 77}
"""


OTEL = Path(__file__).parents[3] / "bench" / "mutated_examples" / "otel.jsonl"


@pytest.fixture
def written(tmp_path):
    def write(text, name="trace", **settings):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return TraceSource(path=str(path), **settings)

    return write


def columns(trace, *names):
    return [getattr(trace.workload.plan, name).tolist() for name in names]


def test_azure(written):
    trace = read_trace(written(AZURE))
    assert trace.format == "azure"
    assert columns(trace, "arrival_ns", "prompt_tokens", "output_tokens") == [
        [0, 52_000_000, 56_020_040_000],
        [4808, 3180, 110],
        [10, 8, 27],
    ]
    assert trace.workload.cautions == ()


def test_azure_of_the_year_after(written):
    text = (
        AZURE.replace("9799600", "979960+00:00")
        .replace("0319600", "031960+00:00")
        .replace("18:18:00", "18:18:00+00:00")
    )
    assert columns(read_trace(written(text)), "arrival_ns") == columns(
        read_trace(written(AZURE)), "arrival_ns"
    )


OTHERS = {
    "BurstGPT": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n",
    "BurstGPT with sessions": "Timestamp,Session ID,Elapsed time,Model,Request tokens,"
    "Response tokens\n5,s0,0.6,ChatGPT,472,18\n45,s1,7,GPT-4,1087,230\n",
    "Vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,472,18\n41.5,1087,230\n",
    "SplitwiseSim": "request_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
    "0,0,1,472,18\n1,40.0,1,1087,230\n",
    "short names, since 1970": "ts,in_tokens,out_tokens\n1715299200000,472,18\n"
    "1715299240000,1087,230\n",
    "vLLM's words": "time_s,prompt_len,gen_len\n1.5,472,18\n41.5,1087,230\n",
    "dates": "Date,input_tokens,output_tokens\n2024-05-10 00:00:00,472,18\n"
    "2024-05-10 00:00:40,1087,230\n",
    "semicolons, ms": "arrival_ms;promptTokens;completionTokens\n0;472;18\n40000;1087;230\n",
    "seconds since 1970": "ts\tinput_len\toutput_len\n1715299200.25\t472\t18\n"
    "1715299240.25\t1087\t230\n",
    "milliseconds since 1970": "timestamp,n_prompt_tokens,n_output_tokens\n1715299200000,472,18\n"
    "1715299240000,1087,230\n",
    "quoted, whole floats, another zone": '"created_at","ISL","OSL"\n'
    '"2024-05-10T00:00:00.5Z","472.0","18"\n"2024-05-10T02:00:40.5+02:00","1087.0","230"\n',
    "a log of answers": '{"created": 1715299200, "usage": {"prompt_tokens": 472, '
    '"completion_tokens": 18}}\n{"created": 1715299240, "usage": {"prompt_tokens": 1087, '
    '"completion_tokens": 230}}\n',
    "a gateway's log of answers": '{"ts": "2024-05-10T00:00:00Z", "request": {"max_tokens": 300}, '
    '"response": {"usage": {"prompt_tokens": 472, "completion_tokens": 18}}}\n'
    '{"ts": "2024-05-10T00:00:40Z", "response": {"body": {"usage": {"prompt_tokens": 1087, '
    '"completion_tokens": 230}}}}\n',
    "a list of rows": '[{"created_ms": 0, "prompt_tokens": 472, "completion_tokens": 18},\n'
    ' {"created_ms": 40000, "prompt_tokens": 1087, "completion_tokens": 230}]\n',
    "columns in another order": "GeneratedTokens,ContextTokens,TIMESTAMP\n"
    "18,472,2023-11-16 18:17:03\n230,1087,2023-11-16 18:17:43\n",
    "our instants beside other names": "arrival_ns,input_len,output_len\n0,472,18\n"
    "40000000000,1087,230\n",
    "our names beside others": "arrival_ns,prompt_tokens,output_tokens,model\n0,472,18,a\n"
    "40000000000,1087,230,b\n",
    "an access log's dates": "time\tinput_tokens\toutput_tokens\n"
    "[10/Oct/2025:13:55:36 +0000]\t472\t18\n[10/Oct/2025:15:56:16 +0200]\t1,087\t230\n",
    "thousands in groups": 'start_ms,input_tokens,output_tokens\n"1,000",472,18\n'
    '"41,000.0","1,087",230\n',
    "the unit in a name of our own": "requestStartMicros,input_tokens,output_tokens\n"
    "7,472,18\n40000007,1087,230\n",
    "Qwen": '{"chat_id": 1, "timestamp": 0.0, "input_length": 472, "output_length": 18, '
    '"hash_ids": []}\n{"chat_id": 2, "timestamp": 40.0, "input_length": 1087, '
    '"output_length": 230, "hash_ids": []}\n',
}


def test_dates_with_and_without_a_zone_are_refused(written):
    """The others' zone may be any: as UTC they came an hour too early, or before the first."""
    text = (
        "ts,prompt_tokens,output_tokens\n2024-05-10T00:00:00+02:00,9,9\n2024-05-10T00:00:40,9,9\n"
    )
    with pytest.raises(SpecError, match=r"line 3 is broken: .* has no zone"):
        read_trace(written(text))


def test_a_table_in_utf_16_is_named_so(tmp_path):
    path = tmp_path / "excel.csv"
    path.write_text(OTHERS["dates"], encoding="utf-16")
    with pytest.raises(SpecError, match="UTF-16"):
        read_trace(TraceSource(path=str(path)))


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_tables_of_others_say_the_same_two_requests(written, text):
    trace = read_trace(written(text))
    assert columns(trace, "arrival_ns", "prompt_tokens", "output_tokens") == [
        [0, 40_000_000_000],
        [472, 1087],
        [18, 230],
    ]
    assumed = [one.code for one in trace.workload.cautions if one.code.startswith("unit")]
    is_unsaid = text.startswith(("Timestamp", "arrived", "request_id"))
    assert assumed == ["unit_of_instants_assumed"] * is_unsaid


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (
            "timestamp,input_tokens,output_tokens,input_tokens",
            "two columns are called input_tokens",
        ),
        ("timestamp,input_tokens,output_tokens,context_tokens", "both input_tokens and context"),
        ("timestamp,prompt_len,output_len,decode_len", "both output_len and decode_len"),
        ("arrival_ns,prompt_tokens,output_tokens,prompt_tokens", "two columns are called prompt"),
    ],
)
def test_two_columns_for_one_number_are_refused(written, header, said):
    with pytest.raises(SpecError, match=said) as refused:
        read_trace(written(f"{header}\n0,472,18,7\n40,1087,230,7\n"))
    assert "name" in refused.value.try_


def test_tokens_are_counted_by_the_column_that_says_so(written):
    text = "timestamp,prompt_len,prompt_tokens,output_tokens\n0,1888,472,18\n40,4348,1087,230\n"
    assert columns(read_trace(written(text)), "prompt_tokens") == [[472, 1087]]


def test_lengths_without_instants_need_arrivals(written):
    trace = read_trace(written("num_prefill_tokens,num_decode_tokens\n472,18\n"))
    assert (trace.format, trace.has_instants) == ("table", False)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("5,12,-3", "12, -3.0 are no counts of tokens"),
        ("5,12,2.5", "12, 2.5 are no counts"),
        ("soon,12,3", "no number"),
        ("5,12", "2 fields for 3 columns"),
        ("nan,12,3", "no number"),
        ("5,12,3e40", "no counts"),
        ("5,12,", "is empty"),
        ("5,12,0", "is 0"),
    ],
)
def test_a_broken_row_of_a_table_is_named(written, row, what):
    with pytest.raises(SpecError, match="line 3") as caught:
        read_trace(written(f"time,prompt_len,output_len\n1,2,3\n{row}\n"))
    assert what in caught.value.what
    assert caught.value.try_


@pytest.mark.parametrize("name", ["conversations", "conversation", "messages"])
def test_conversations_in_the_words_of_chat(written, name):
    said = [{"role": "user", "content": "1234" * 5}, {"role": "assistant", "content": "12345"}]
    trace = read_trace(written(json.dumps({name: said}) + "\n"))
    assert trace.format == "sharegpt"
    assert columns(trace, "prompt_tokens", "output_tokens") == [[5], [2]]


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_mooncake(written, name):
    trace = read_trace(written(MOONCAKE, name))
    assert trace.format == "mooncake"
    assert columns(trace, "arrival_ns")[0] == [0, 0, 27_500_000, 30_000_000]
    assert columns(trace, "prefix_request", "prefix_tokens") == [
        [NONE, 0, 0, NONE],
        [0, 1024, 1100, 0],
    ]
    ids = block_contents(trace.workload.plan, 512)
    assert [ids.ids[a:b].tolist() for a, b in zip(ids.start, ids.start[1:], strict=False)] == [
        [0, 1],
        [0, 1],
        [0, 1],
        [],
    ]


SESSION_COLUMNS = (
    *("arrival_ns", "follows", "think_ns", "prompt_tokens", "output_tokens"),
    *("prefix_request", "prefix_tokens"),
)


def test_sessions_among_mooncakes_lines_are_conversations(written):
    """AIPerf's: a later line is what it adds, sent so many ms after the answer before."""
    rows = [
        {"session_id": "a", "timestamp": 5, "input_length": 300, "output_length": 40},
        {"timestamp": 7, "input_length": 20, "output_length": 3},
        {"session_id": "a", "delay": 2.5, "input_length": 150, "output_length": 20},
        {"session_id": "b", "timestamp": 9, "input_length": 10, "output_length": 2},
        {"session_id": "a", "input_length": 7, "output_length": 1},
    ]
    trace = read_trace(written("\n".join(map(json.dumps, rows))))
    assert (trace.format, trace.has_instants) == ("mooncake", True)
    assert columns(trace, *SESSION_COLUMNS) == [
        [5_000_000, NONE, NONE, 7_000_000, 9_000_000],
        [NONE, 0, 1, NONE, NONE],
        [NONE, 2_500_000, 0, NONE, NONE],
        [300, 490, 517, 20, 10],
        [40, 20, 1, 3, 2],
        [NONE, 0, 1, NONE, NONE],
        [0, 340, 510, 0, 0],
    ]


def test_whole_prompts_of_a_session_are_shared_by_their_blocks(written):
    mode = {"session_id": "a", "context_mode": "message_array_with_responses"}
    rows = [
        mode | {"timestamp": 0, "input_length": 32, "output_length": 4, "hash_ids": [1, 2]},
        mode | {"delay": 1, "input_length": 48, "output_length": 4, "hash_ids": [1, 2, 3]},
    ]
    trace = read_trace(written("\n".join(map(json.dumps, rows)), hash_block_tokens=16))
    assert columns(trace, "prompt_tokens", "follows", "prefix_tokens") == [
        [32, 48],
        [NONE, 0],
        [0, 32],
    ]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([{"session_id": "a", "timestamp": 0}, {"session_id": "a", "timestamp": 5}], "no delay"),
        ([{"timestamp": 0}, {"delay": 0}], "line 2 is broken: no timestamp, while other lines"),
    ],
)
def test_turns_whose_instant_is_not_clear_are_refused(written, rows, complaint):
    lengths = {"input_length": 40, "output_length": 5}
    with pytest.raises(SpecError, match=complaint):
        read_trace(written("\n".join(json.dumps(lengths | row) for row in rows)))


SYSTEM = {"role": "system", "text": "12345678"}
MULTI_TURN = "\n".join(
    json.dumps(line)
    for line in (
        {
            "session_id": "s1",
            "turns": [
                SYSTEM,
                {"text": "1234", "output_length": 9},
                {"texts": ["1234", "123"], "delay": 1000},
            ],
        },
        {"session_id": "s2", "turns": [{"text": "12345", "images": ["a.png"], "delay": 0}]},
        {
            "session_id": "s1",
            "turns": [{"texts": [{"name": "a", "contents": ["1234", "1234567"]}], "delay": 3}],
        },
    )
)


def test_sessions_of_aiperf_are_conversations_with_the_servers_own_answers(written):
    """The system's turn begins every prompt and is no request; an answer is as long as allowed."""
    trace = read_trace(written(MULTI_TURN, output_tokens=6))
    assert (trace.format, trace.has_instants) == ("aiperf", False)
    assert columns(trace, *SESSION_COLUMNS) == [
        [0, NONE, NONE, 0],
        [NONE, 0, 1, NONE],
        [NONE, 1_000_000_000, 3_000_000, NONE],
        [3, 14, 23, 2],
        [9, 6, 6, 6],
        [NONE, 0, 1, NONE],
        [0, 12, 20, 0],
    ]
    assert "token_counts_estimated" in {one.code for one in trace.workload.cautions}
    with pytest.raises(SpecError, match="no output_length") as caught:
        read_trace(written(MULTI_TURN))
    assert caught.value.try_ == "--output-tokens 256"


def test_single_turns_of_aiperf_hold_their_whole_prompts(written):
    rows = [
        {"text": "1234", "timestamp": 0, "session_id": "a", "output_length": 3},
        {"texts": ["12345678"], "timestamp": 4, "output_length": 5},
        {"text": "12345", "session_id": "a", "delay": 7, "output_length": 4},
    ]
    trace = read_trace(written("\n".join(map(json.dumps, rows))))
    assert (trace.format, trace.has_instants) == ("aiperf", True)
    assert columns(trace, *SESSION_COLUMNS) == [
        [0, NONE, 4_000_000],
        [NONE, 0, NONE],
        [NONE, 7_000_000, NONE],
        [1, 2, 2],
        [3, 4, 5],
        [NONE, NONE, NONE],
        [0, 0, 0],
    ]


def test_a_table_of_counts_with_a_column_of_texts_is_a_table(written):
    row = {"text": "hello", "input_tokens": 5, "output_tokens": 6, "arrival_s": 0}
    assert read_trace(written(json.dumps(row) + "\n")).format == "table"


@pytest.mark.parametrize("column", ["cached_tokens", "prompt_tokens_details.cached_tokens"])
def test_a_column_of_cached_tokens_is_named_as_not_read(written, column):
    text = f"arrival_s,prompt_tokens,output_tokens,{column}\n0,40,5,32\n1,40,5,32\n"
    trace = read_trace(written(text))
    (caution,) = trace.workload.cautions
    assert (caution.code, caution.text.split()[0]) == ("cached_tokens_not_read", column)
    assert columns(trace, "prefix_tokens") == [[0, 0]]


def test_spans_of_client_and_server_are_one_request_each(written):
    trace = read_trace(written(OTEL.read_text(), "spans.jsonl"))
    assert (trace.format, trace.has_instants) == ("otel", True)
    plan = trace.workload.plan
    assert plan.arrival_ns.tolist() == [0, 40_000_000, 80_000_000]
    assert plan.prompt_tokens.tolist() == [12, 13, 14]
    assert plan.output_tokens.tolist() == [4, 5, 6]


def jaeger_of(span):
    """As Jaeger's API gives this span."""
    parent = [] if span.parent_id is None else [
        {"refType": "CHILD_OF", "traceID": f"{span.trace_id:x}", "spanID": f"{span.parent_id:x}"}
    ]  # fmt: skip
    tags = {**span.attributes, "span.kind": span.kind}
    return {
        "traceID": f"{span.trace_id:x}", "spanID": f"{span.span_id:x}",
        "operationName": span.name, "references": parent, "startTime": span.start_ns // 1000,
        "duration": (span.end_ns - span.start_ns) // 1000, "logs": [],
        "tags": [
            {"key": key, "type": "string", "value": value}
            for key, value in tags.items() if isinstance(value, str | int | float)
        ],
    }  # fmt: skip


def test_spans_in_one_document_are_the_same_workload(written):
    """``fit`` and ``explain`` read Jaeger's JSON and indented exports, and --workload did not."""
    exports = [json.loads(line) for line in OTEL.read_text().splitlines()]
    whole = {"resourceSpans": [one for each in exports for one in each["resourceSpans"]]}
    jaeger = {"data": [{"traceID": "1", "spans": [jaeger_of(one) for one in read_spans(OTEL)]}]}
    expected = read_trace(written(OTEL.read_text(), "spans.jsonl"))
    for text in (json.dumps(whole, indent=2), json.dumps(jaeger), json.dumps(jaeger, indent=1)):
        trace = read_trace(written(text, "spans.json"))
        assert trace.format == "otel"
        for one, other in zip(trace.workload.plan, expected.workload.plan, strict=True):
            assert one.tolist() == other.tolist()
    with pytest.raises(SpecError, match=r"spans\.json") as refused:
        read_trace(written(json.dumps(jaeger)[:-2], "spans.json"))
    assert "Jaeger's JSON" in refused.value.allowed


def test_spans_of_agents_and_of_failures_are_no_requests(written):
    text = OTEL.read_text().replace('"stringValue":"chat"', '"stringValue":"invoke_agent"')
    server_only = read_trace(written(text, "spans.jsonl")).workload.plan
    assert server_only.arrival_ns.tolist() == [0, 40_000_000, 80_000_000]
    empty = OTEL.read_text().replace('"intValue":"5"', '"intValue":"0"')
    with pytest.raises(SpecError):
        read_trace(written(empty, "spans.jsonl"))
    kept = read_trace(written(empty, "spans.jsonl", skip_empty=True)).workload.plan
    assert kept.output_tokens.tolist() == [4, 6]


def test_mooncake_blocks_of_another_size(written):
    text = '{"timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [0, 1, 2]}\n' * 2
    assert columns(read_trace(written(text, hash_block_tokens=16)), "prefix_tokens") == [[0, 40]]
    with pytest.raises(
        SpecError,
        match=r"line 1 is broken: 3 block ids for 40 tokens.*hash_block_tokens = 14 would fit",
    ):
        read_trace(written(text))


def test_llmservingsim(written):
    trace = read_trace(written(LLMSERVINGSIM))
    assert trace.format == "llmservingsim"
    assert columns(trace, "arrival_ns", "prefix_request", "prefix_tokens") == [
        [5, 9],
        [NONE, 0],
        [0, 16],
    ]


def test_llmservingsim_shares_the_tokens_that_its_own_files_have(written):
    """Whole blocks of 16 alone: the third prompt differs in its second, the last half fills one."""
    prompts = [*range(40)], [*range(40)], [*range(16), *range(100, 124)], [*range(8)]
    rows = [
        {"arrival_time_ns": at, "input_toks": len(ids), "output_toks": 4, "input_tok_ids": ids}
        for at, ids in enumerate(prompts)
    ]
    trace = read_trace(written("\n".join(map(json.dumps, rows))))
    assert columns(trace, "prefix_request", "prefix_tokens") == [
        [NONE, 0, 0, NONE],
        [0, 32, 16, 0],
    ]


def test_llmservingsim_sessions_go_on_after_their_tools(written):
    ids = [*range(32)]
    calls = [
        {"input_toks": 32, "output_toks": 5, "input_tok_ids": ids, "tool_duration_ns": 700},
        {"input_toks": 34, "output_toks": 6, "input_tok_ids": ids, "tool_duration_ns": 900},
        {"input_toks": 20, "output_toks": 7},
    ]
    flat = {"arrival_time_ns": 9, "input_toks": 8, "output_toks": 4}
    lines = {"session_id": "s", "arrival_time_ns": 5, "sub_requests": calls}, flat
    trace = read_trace(written("\n".join(map(json.dumps, lines))))
    names = "arrival_ns", "follows", "think_ns", "prompt_tokens", "prefix_request", "prefix_tokens"
    assert trace.has_instants
    assert columns(trace, *names) == [
        [5, NONE, NONE, 9],
        [NONE, 0, 1, NONE],
        [NONE, 700, 900, NONE],
        [32, 34, 20, 8],
        [NONE, 0, NONE, NONE],
        [0, 32, 0, 0],
    ]


@pytest.mark.parametrize(
    ("instants", "gap_ns", "assumed"),
    [
        ((0, 500), 500_000_000, []),
        ((1732032000123, 1732032000623), 500_000_000, []),
        ((1732032000.25, 1732032000.75), 500_000_000, []),
        ((0.0, 0.5), 500_000, ["milliseconds"]),
    ],
)
def test_the_unit_of_mooncakes_instants(written, instants, gap_ns, assumed):
    """Milliseconds; since 1970 the size tells, and fractions may be of seconds."""
    row = {"input_length": 40, "output_length": 5}
    text = "\n".join(json.dumps(row | {"timestamp": at}) for at in instants)
    trace = read_trace(written(text))
    assert columns(trace, "arrival_ns")[0] == pytest.approx([0, gap_ns], abs=1000)
    told = [one for one in trace.workload.cautions if one.code == "unit_of_instants_assumed"]
    assert [one.text.rpartition(" ")[2] for one in told] == assumed
    assert all("--speed-up 0.001 if they are seconds" in one.remedy for one in told)


def table_of(gap, n_requests=40, name="Time", prompt="prompt_tokens", step=1):
    rows = "".join(f"{gap * k + k % 2 * step},500,100\n" for k in range(n_requests))
    return f"{name},{prompt},output_tokens\n{rows}"


@pytest.mark.parametrize(
    ("text", "last_ns", "unit"),
    [
        (table_of(1), 40 * 10**9, "seconds"),  # in milliseconds 1,000 requests/s
        (table_of(40_000), 39 * 40_000 * 10**6 + 10**6, "milliseconds"),  # else two a day
        (table_of(137.5, step=0.25), 39 * 137_500_000_000 + 250_000_000, "seconds"),
        (table_of(137, n_requests=4), 3 * 137 * 10**9 + 10**9, "seconds"),
        (table_of(137, prompt="Request tokens"), 39 * 137 * 10**9 + 10**9, "seconds"),  # BurstGPT
        (table_of(137, name="Time_ms"), 39 * 137 * 10**6 + 10**6, ""),
    ],
)
def test_the_unit_of_whole_numbers_follows_from_their_rate(written, text, last_ns, unit):
    trace = read_trace(written(text))
    assert trace.workload.plan.arrival_ns[-1] == last_ns
    told = [one for one in trace.workload.cautions if one.code == "unit_of_instants_assumed"]
    assert [one.text.rpartition(" ")[2] for one in told] == [unit] * bool(unit)


def test_a_unit_that_cannot_be_decided_is_refused_with_the_flag(written):
    """7.3 requests/s in whole milliseconds were replayed as one request in two minutes."""
    source = written(table_of(137))
    with pytest.raises(
        SpecError, match=r"unit of Time is not known: 0\.0073 requests/s"
    ) as refused:
        read_trace(source)
    assert "7.3 requests/s if milliseconds" in refused.value.what
    assert refused.value.try_ == "--speed-up 1000 if milliseconds; name it Time_s if seconds"
    assert read_trace(msgspec.structs.replace(source, speed_up_ratio=1000.0)).has_instants
    assert read_trace(source, needs_instants=False).has_instants


def test_dates_in_another_order_are_refused(written):
    """They were taken for no instants at all."""
    text = "Date,Input Tokens,Output Tokens\n11/16/2023 18:15:46,374,44\n"
    with pytest.raises(SpecError, match=r"Date = '11/16/2023 18:15:46' is no number") as refused:
        read_trace(written(text))
    assert "dates as 2026-11-16 18:15:46" in str(refused.value)


def test_a_plural_is_no_instant_in_seconds(written):
    """``issues`` was read as ``issue`` with the unit s."""
    assert not read_trace(written("issues,input_tokens,output_tokens\n3,9,9\n")).has_instants


def test_a_comma_outside_of_csv_may_be_a_decimal_one(written):
    text = "time;prompt_tokens;output_tokens\n0;9;9\n1,500;9;9\n"
    with pytest.raises(SpecError, match=r"'1,500' may be thousands, or have a decimal comma"):
        read_trace(written(text))


def test_sharegpt_conversations_are_sessions(written):
    trace = read_trace(written(SHAREGPT))
    assert (trace.format, trace.has_instants) == ("sharegpt", False)
    assert columns(trace, "prompt_tokens", "output_tokens", "follows") == [
        [2, 5, 2],
        [2, 3, 1],
        [NONE, 0, NONE],
    ]
    assert columns(trace, "prefix_request", "prefix_tokens", "session_index") == [
        [NONE, 0, NONE],
        [0, 4, 0],
        [0, 0, 1],
    ]
    assert [one.code for one in trace.workload.cautions] == ["token_counts_estimated"]
    first = read_trace(written(SHAREGPT, turns="first"))
    assert columns(first, "prompt_tokens") == [[2, 2]]
    as_lines = "\n".join(json.dumps(item) for item in json.loads(SHAREGPT))
    assert columns(read_trace(written(as_lines)), "prompt_tokens") == [[2, 5, 2]]


def test_sharegpt_needs_instants_from_elsewhere(written):
    source = written(SHAREGPT, think_s={"kind": "constant", "value": 3})
    spec = with_changes(WorkloadSpec(replay=source), {}, where="here")
    with pytest.raises(SpecError, match="no instants"):
        draw_workload(spec)
    plan = draw_workload(
        with_changes(
            spec,
            {"arrivals": {"kind": "open", "process": "constant", "rate_per_s": 3}},
            where="here",
        )
    ).plan
    assert plan.arrival_ns.tolist() == [
        500_000_000,
        NONE,
        1_000_000_000,
    ]  # 2 sessions of 1.5 requests each
    assert plan.think_ns.tolist() == [NONE, 3 * 10**9, NONE]
    closed = draw_workload(
        with_changes(spec, {"arrivals": {"kind": "closed", "concurrency": 1}}, where="here")
    ).plan
    assert closed.follows.tolist() == [NONE, 0, 1]


def test_lists_of_prompts(written):
    """An answer is as long as its text.

    One that is not there takes what was asked for, and turns that follow it are left out.
    """
    source = written(PROMPTS, output_tokens=40)
    trace = read_trace(source)
    assert (trace.format, trace.has_instants) == ("prompts", False)
    assert columns(trace, "prompt_tokens", "output_tokens") == [[2, 1, 1, 1], [2, 3, 40, 77]]
    assert [one.code for one in trace.workload.cautions] == [
        "token_counts_estimated",
        "later_turns_left_out",
    ]
    assert [said[0].content for said in read_texts(source)] == ["12345678", "1234", "123", "1"]
    with pytest.raises(SpecError, match="line 3 is broken: no answer"):
        read_trace(written(PROMPTS))
    with pytest.raises(SpecError, match="line 5 is broken: neither a prompt"):
        read_trace(written(PROMPTS + '{"text": "?"}', name="broken", output_tokens=40))
    with pytest.raises(SpecError, match="no instants"):
        draw_workload(WorkloadSpec(replay=source))


def test_what_a_batch_does_not_say_can_be_asked_for(written):
    source = written(BATCH.replace(', "max_tokens": 8', ""), output_tokens=9)
    assert columns(read_trace(source), "output_tokens", "max_tokens") == [[30, 7, 9], [30, 7, 9]]


@pytest.mark.parametrize(
    ("name", "n_requests"),
    [("HumanEval.jsonl.gz", 164), ("gsm8k_test.jsonl", 1319), ("mt_bench_question.jsonl", 80)],
)
def test_published_prompts(published, name, n_requests):
    """As many as the source note of the data says."""
    source = TraceSource(path=published(f"text-prompts/{name}"), output_tokens=256)
    assert read_trace(source).workload.plan.n_requests == len(read_texts(source)) == n_requests


def test_openai_batches(written):
    trace = read_trace(written(BATCH))
    assert trace.format == "openai-batch"
    assert columns(trace, "arrival_ns", "prompt_tokens", "output_tokens") == [
        [0, 0, 0],
        [2, 1, 3],
        [30, 7, 8],
    ]
    cautions = {one.code: one.text for one in trace.workload.cautions}
    assert set(cautions) == {"token_counts_estimated", "outputs_run_to_max_tokens"}
    assert cautions["token_counts_estimated"].startswith("2 of 3")
    counted = read_trace(written(ANSWERS))
    assert columns(counted, "prompt_tokens", "output_tokens") == [[12], [3]]
    assert counted.workload.cautions == ()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (AZURE + "2023-11-16 18:19:00,5\n", "line 5 is broken"),
        (AZURE + "2023-11-16 18:19:00,5,-3\n", "line 5 is broken.*no counts"),
        (AZURE + "2023-11-16 25:19:00,5,3\n", "line 5 is broken"),
        (AZURE + "6023-11-16 18:19:00,5,3\n", "arrival_ns does not fit int64"),
        (
            AZURE + "2026-13-01 18:19:00,5,3\n",
            "line 5 is broken: TIMESTAMP = '2026-13-01 18:19:00' is no number and no date",
        ),
        (
            AZURE + "2023-11-16 18:16:00,5,3\n",
            "the request of line 5 arrives at .* before its predecessor",
        ),
        (AZURE + "2023-11-16 18:19:00,0,3\n", "prompt_tokens of the request of line 5 is 0"),
        (MOONCAKE + "{", "line 5 is broken"),
        (
            MOONCAKE + '\n{"timestamp": 31, "input_length": 5, "output_length": 0}',
            "output_tokens of the request of line 6 is 0",
        ),
        (
            MOONCAKE + '{"timestamp": -1, "input_length": 5, "output_length": 1}',
            "the request of line 5 is -1000000",
        ),
        (
            MOONCAKE + '{"timestamp": 1e300, "input_length": 5, "output_length": 1}',
            "line 5 is broken: 1e.300 is no instant",
        ),
        (
            MOONCAKE + '{"timestamp": 31, "input_length": "5", "output_length": 1}',
            "line 5 is broken.*input_length",
        ),
        (
            MOONCAKE + '{"timestamp": 31, "input_length": -5, "output_length": 1}',
            "line 5 is broken.*input_length",
        ),
        (
            LLMSERVINGSIM
            + '{"arrival_time_ns": 9, "input_toks": 40, "output_toks": 5, "hash_runs": [[0, 5]]}',
            "line 3 is broken: 5 block ids",
        ),
        (SHAREGPT.replace('"from": "gpt", "value": "1234"', '"from": "gpt"'), "line 4 is broken"),
        (
            SHAREGPT.replace('"user"', '"narrator"'),
            "line 4 is broken: a message is from 'narrator'",
        ),
        (SHAREGPT[:-2], "the trace is damaged"),
        (BATCH.replace(', "max_tokens": 8', ""), "line 3 is broken: no max_tokens"),
        (BATCH + '{"custom_id": "4"}', "line 4 is broken: neither"),
        (
            BATCH + '{"custom_id": "4", "response": {"status_code": 500, "body": {"error": 1}}}',
            "line 4 is broken",
        ),
        ("", "the trace is empty"),
        ("a,b,c\n1,2,3\n", "format is not known"),
        ('{"promptly": 3}\n', "format is not known"),
        ("{broken\n", "line 1 is broken"),
        (AZURE.splitlines()[0], "no requests"),
    ],
)
def test_broken_lines_are_named(written, text, what):
    source = written(text)
    with pytest.raises(SpecError, match=what) as caught:
        read_trace(source)
    assert source.path in caught.value.where


@pytest.mark.parametrize("text", [MOONCAKE, LLMSERVINGSIM, BATCH, PROMPTS, MULTI_TURN])
@pytest.mark.parametrize("indent", [None, 2])
def test_rows_may_stand_in_a_json_list(written, text, indent):
    rows = [json.loads(line) for line in text.splitlines()]
    lines = read_trace(written(text, "lines.jsonl", output_tokens=9))
    listed = read_trace(written(json.dumps(rows, indent=indent), "list.json", output_tokens=9))
    assert listed.format == lines.format
    for ours, theirs in zip(listed.workload.plan, lines.workload.plan, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_count_is_not_0(written, empty):
    text = AZURE + f"2023-11-16 18:18:09,{empty},7\n"
    with pytest.raises(SpecError, match="line 5 is broken: ContextTokens is empty") as caught:
        read_trace(written(text))
    assert "skip_empty = true" in caught.value.try_
    assert read_trace(written(text, skip_empty=True)).workload.plan.n_requests == 3
    with pytest.raises(SpecError, match="prompt_tokens of the request of line 5 is 0"):
        read_trace(written(AZURE + "2023-11-16 18:18:09,0,7\n"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match="cannot be read"):
        read_trace(TraceSource(path=str(tmp_path / "no.csv")))


def test_a_forced_format_is_believed(written):
    with pytest.raises(SpecError, match="line 1 is broken"):
        read_trace(written(MOONCAKE, format="azure"))


def test_sorting_and_leaving_out_are_asked_for(written):
    mixed = AZURE + "2023-11-16 18:17:04,7,1\n2023-11-16 18:17:05,0,1\n"
    trace = read_trace(written(mixed, is_sorted=False, skip_empty=True))
    assert columns(trace, "prompt_tokens") == [[4808, 7, 3180, 110]]
    assert [one.text for one in trace.workload.cautions] == [
        "1 of 5 requests were left out: without prompt or answer, or after such a turn"
    ]


def test_a_turn_without_answer_ends_its_session(written):
    text = SHAREGPT.replace('"12345"', '""')
    trace = read_trace(written(text, skip_empty=True))
    assert columns(trace, "prompt_tokens", "session_index") == [[2], [1]]


def test_jitter_spreads_rounded_instants_and_keeps_their_order(written):
    text = "".join(
        f'{{"timestamp": {3000 * (i // 50)}, "input_length": {i + 1}, "output_length": 1}}\n'
        for i in range(200)
    )
    source = written(text)
    coarse = read_trace(source)
    assert [(one.code, one.remedy) for one in coarse.workload.cautions] == [
        ("instants_are_coarse", "jitter_s = 3 spreads them")
    ]
    drawn = draw_workload(WorkloadSpec(replay=written(text, jitter_s=3, speed_up_ratio=2)))
    assert drawn.cautions == ()
    assert drawn.plan.prompt_tokens.tolist() == list(range(1, 201))
    assert len(np.unique(drawn.plan.arrival_ns)) == 200
    assert np.array_equal(
        drawn.plan.arrival_ns * 2 // (3 * 10**9), coarse.workload.plan.arrival_ns // (3 * 10**9)
    )


def test_a_trace_lends_its_lengths_or_its_instants(written):
    path = written(AZURE).path
    lengths = {"kind": "trace", "path": path, "column": "prompt_tokens"}
    one = {"name": "a", "prompt_tokens": lengths, "output_tokens": {"kind": "constant", "value": 5}}
    spec = with_changes(
        WorkloadSpec(classes=(), replay=TraceSource(path=path)),
        {"replay": None, "classes": [one], "n_requests": 50},
        where="x",
    )
    assert set(draw_workload(spec).plan.prompt_tokens.tolist()) == {4808, 3180, 110}
    timed = with_changes(
        spec,
        {"n_requests": None, "arrivals": {"kind": "trace", "path": path, "speed_up_ratio": 2}},
        where="x",
    )
    assert draw_workload(timed).plan.arrival_ns.tolist() == [0, 26_000_000, 28_010_020_000]
    with pytest.raises(SpecError, match="only 3 of 50"):
        draw_workload(with_changes(timed, {"n_requests": 50}, where="x"))


def test_a_replay_can_be_cut(written):
    spec = WorkloadSpec(replay=written(AZURE))
    assert draw_workload(with_changes(spec, {"n_requests": 2}, where="x")).plan.n_requests == 2
    assert draw_workload(with_changes(spec, {"duration_s": 10}, where="x")).plan.n_requests == 2
    with pytest.raises(SpecError, match="has 3 requests, not 4"):
        draw_workload(with_changes(spec, {"n_requests": 4}, where="x"))


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=20))
def test_the_prefix_tree_finds_the_longest_and_its_first_holder(prompts):
    tree = PrefixTree()
    for row, prompt in enumerate(prompts):
        owner, n_shared = tree.longest(row, prompt)
        lengths = [
            next((k for k in range(len(prompt), 0, -1) if earlier[:k] == prompt[:k]), 0)
            for earlier in prompts[:row]
        ]
        assert n_shared == max(lengths, default=0)
        assert owner == (lengths.index(n_shared) if n_shared else NONE)


@pytest.mark.parametrize(
    ("name", "n_requests", "means"),
    [
        ("azure-llm-2023/AzureLLMInferenceTrace_conv.csv", 19_366, (1155, 211)),
        ("azure-llm-2023/AzureLLMInferenceTrace_code.csv", 8_819, (2048, 28)),
        ("mooncake-fast25/conversation_trace.jsonl", 12_031, (12_035, 343)),
        ("mooncake-fast25/synthetic_trace.jsonl", 3_993, (15_325, 149)),
        ("llmservingsim-vllm-bench/workload_sharegpt-llama-3.1-8b-300-sps10.jsonl", 300, None),
    ],
)
def test_published_traces(published, name, n_requests, means):
    """Rows and means are those that the source note of the data says it counted."""
    plan = read_trace(TraceSource(path=published(name))).workload.plan
    assert plan.n_requests == n_requests
    if means is not None:
        assert (round(plan.prompt_tokens.mean()), round(plan.output_tokens.mean())) == means


@pytest.mark.parametrize(("name", "hits"), [("conversation", 0.374), ("synthetic", 0.651)])
def test_published_prefix_hits(published, name, hits):
    """An endless cache hits as many tokens as were counted for the data's source note, to its last digit."""
    plan = read_trace(
        TraceSource(path=published(f"mooncake-fast25/{name}_trace.jsonl"))
    ).workload.plan
    assert plan.prefix_tokens.sum() / plan.prompt_tokens.sum() == pytest.approx(hits, abs=5e-4)


@pytest.mark.slow
def test_published_block_ids_are_those_of_the_trace(published):
    """For full blocks of 512 tokens our ids name the same blocks as the trace's own."""
    path = published("mooncake-fast25/conversation_trace.jsonl")
    plan = read_trace(TraceSource(path=path)).workload.plan
    contents = block_contents(plan, 512)
    with Path(path).open() as file:
        rows = [json.loads(line) for line in file]
    theirs = np.concatenate([row["hash_ids"][: row["input_length"] // 512] for row in rows])
    ours = np.concatenate(
        [
            contents.ids[start : start + row["input_length"] // 512]
            for start, row in zip(contents.start, rows, strict=False)
        ]
    )
    pairs = np.unique(np.stack([theirs, ours]), axis=1)
    assert len(np.unique(theirs)) == len(np.unique(ours)) == pairs.shape[1]


def test_a_trace_that_mostly_pauses_says_so(written):
    rows = [f"{at + (90_000 if at > 12 else 0)},100,10" for at in range(25)]
    cautions = [
        [
            one.text
            for one in read_trace(
                written("\n".join(["arrival_s,prompt_len,output_len", *some]))
            ).workload.cautions
        ]
        for some in (rows, rows[:12])
    ]
    assert cautions[1] == []
    assert cautions[0] == [
        "25 h 0 min of the trace's 25 h 0 min pass without a request: rates are means over them too"
    ]

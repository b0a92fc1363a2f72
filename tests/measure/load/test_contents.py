"""Do prompts hold the tokens that the plan says they share, and as many as it says?"""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tiny_server import a_plan, question_of

from inferometer.errors import SpecError
from inferometer.inputs.workload.plan import block_contents
from inferometer.inputs.workload.reading import resolve_workload, with_changes
from inferometer.inputs.workload.replay import draw_workload
from inferometer.measure.load.bodies import WORDS, body_writer, stretches, token_ids, words

UNKNOWN = "[UNK]"
FAN_OUT = {
    "n_requests": 30,
    "classes": [
        {
            "name": "agent",
            "prompt_tokens": {"kind": "uniform", "low": 3, "high": 30},
            "output_tokens": {"kind": "uniform", "low": 2, "high": 20},
            "fan_out": {
                "subtasks": {"kind": "constant", "value": 3},
                "prompt_tokens": {"kind": "constant", "value": 9},
                "output_tokens": {"kind": "uniform", "low": 3, "high": 20},
            },
        }
    ],
}
SESSIONS = {
    "n_requests": 30,
    "duration_s": None,
    "classes": [
        {
            "name": "talk",
            "prompt_tokens": {"kind": "uniform", "low": 3, "high": 30},
            "output_tokens": {"kind": "uniform", "low": 1, "high": 20},
            "sessions": {
                "turns": {"kind": "constant", "value": 3},
                "think_s": {"kind": "constant", "value": 1},
            },
            "system_prompts": {"n_prompts": 2, "tokens": {"kind": "constant", "value": 7}},
        }
    ],
}


def load_plan(**changes):
    return replace(question_of("http://127.0.0.1:1", a_plan(1), None).load, **changes)


@st.composite
def plans(draw):
    n = draw(st.integers(1, 12))
    prompt, output = (
        draw(st.lists(st.integers(1, 20), min_size=n, max_size=n)),
        draw(st.lists(st.integers(1, 10), min_size=n, max_size=n)),
    )
    owner = [draw(st.sampled_from([-1, *range(i)])) for i in range(n)]
    prefix = [
        0 if o < 0 else draw(st.integers(0, min(prompt[i], prompt[o] + output[o])))
        for i, o in enumerate(owner)
    ]
    return a_plan(
        n, prompt_tokens=prompt, output_tokens=output, prefix_request=owner, prefix_tokens=prefix
    )


@given(plan=plans(), seed=st.integers(0, 2**63 - 1))
def test_prompts_are_the_plans_tree_token_by_token(plan, seed):
    """The plan's own account, with blocks of one token: equal ids there are equal prefixes here."""
    blocks = block_contents(plan, 1)
    by_content = {}
    for row in range(plan.n_requests):
        ids = token_ids(seed, stretches(plan, row))
        assert len(ids) == plan.prompt_tokens[row]
        contents = blocks.ids[blocks.start[row] : blocks.start[row] + len(ids)].tolist()
        for content, token in zip(contents, ids, strict=True):
            assert by_content.setdefault(content, token) == token


def test_other_requests_and_seeds_have_other_tokens():
    plan = a_plan(2, prompt_tokens=[200, 200])
    first, second, reseeded = (
        token_ids(seed, stretches(plan, row)) for seed, row in ((1, 0), (1, 1), (2, 0))
    )
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 5
    assert sum(a == b for a, b in zip(first, reseeded, strict=True)) < 5
    assert first == token_ids(1, stretches(plan, 0))
    assert len(set(first)) > 180


def test_words_are_new_in_each_run_unless_they_are_to_repeat():
    plan = a_plan(
        3, prompt_tokens=[50, 60, 70], prefix_request=[-1, 0, 1], prefix_tokens=[0, 50, 60]
    )
    prompts = {
        (repeats, name): [
            json.loads(body_writer(load_plan(repeats_prompts=repeats), plan, name).body(row))[
                "prompt"
            ]
            for row in range(3)
        ]
        for repeats in (True, False)
        for name in ("one run", "another run")
    }
    assert prompts[True, "one run"] == prompts[True, "another run"]
    one, other = prompts[False, "one run"], prompts[False, "another run"]
    assert sum(a == b for a, b in zip(one[2].split(), other[2].split(), strict=True)) < 5
    for first, second, third in (one, other):
        assert second.startswith(first), "what prompts share they share in every run"
        assert third.startswith(second)
    assert (
        json.loads(body_writer(load_plan(repeats_prompts=False), plan, "one run").body(0))["prompt"]
        == one[0]
    )
    for repeats in (True, False):
        after_a_seam = json.loads(
            body_writer(load_plan(repeats_prompts=repeats), plan, "one run", 1).body(2)
        )["prompt"].split()
        before = prompts[repeats, "one run"][2].split()
        assert sum(a == b for a, b in zip(after_a_seam, before, strict=True)) < 5, (
            "a prefix cache remembers what was sent before"
        )


def test_words_are_one_for_each_token():
    plan = a_plan(1, prompt_tokens=[37])
    assert len(words(0, stretches(plan, 0)).split()) == 37
    assert len(set(WORDS)) == len(WORDS) > 400
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


def test_a_chat_grows_turn_by_turn():
    spec = with_changes(resolve_workload("chat"), SESSIONS, where="the test")
    plan = draw_workload(spec).plan
    writer = body_writer(load_plan(endpoint="chat", workload=spec), plan)
    bodies = [json.loads(writer.body(row)) for row in range(plan.n_requests)]
    for row, body in enumerate(bodies):
        messages = body["messages"]
        assert [message["role"] for message in messages] == (["user", "assistant"] * 3)[
            : len(messages)
        ]
        assert (
            sum(len(message["content"].split()) for message in messages) == plan.prompt_tokens[row]
        )
        if plan.follows[row] >= 0:
            before = bodies[plan.follows[row]]["messages"]
            assert messages[: len(before)] == before
            assert len(messages) == len(before) + 2
            assert len(messages[-2]["content"].split()) == plan.output_tokens[plan.follows[row]]
    firsts = [
        body["messages"][0]["content"].split()[:7]
        for row, body in enumerate(bodies)
        if plan.follows[row] < 0
    ]
    assert len({tuple(first) for first in firsts}) == 2, "two system prompts"


def test_subtasks_and_syntheses_go_on_from_the_planners_talk():
    spec = with_changes(resolve_workload("64x8"), FAN_OUT, where="the test")
    plan = draw_workload(spec).plan
    writer = body_writer(load_plan(endpoint="chat", workload=spec), plan)
    talks = [json.loads(writer.body(row))["messages"] for row in range(plan.n_requests)]
    waiting = np.flatnonzero(plan.follows >= 0).tolist()
    assert len(waiting) > 20
    for row in waiting:
        planner = int(plan.follows[row])
        assert talks[row][: len(talks[planner])] == talks[planner]
        assert [one["role"] for one in talks[row]] == ["user", "assistant", "user"]
        n_words = [len(one["content"].split()) for one in talks[row]]
        assert n_words[1] == plan.output_tokens[planner]
        assert sum(n_words) == plan.prompt_tokens[row]
    lasts = {json.dumps(talk[-1]) for talk in talks}
    assert len(lasts) == plan.n_requests, "each has words of its own"


def test_lengths_are_asked_for_exactly_or_as_the_client_allows():
    plan = a_plan(1, output_tokens=[5], max_tokens=[50])
    exact, free = (
        json.loads(body_writer(load_plan(ignores_eos=one), plan).body(0)) for one in (True, False)
    )
    assert (exact["max_tokens"], exact["ignore_eos"]) == (5, True)
    assert (free["max_tokens"], "ignore_eos" in free) == (50, False)


def test_streams_ask_for_usage_and_further_keys_win():
    body = json.loads(
        body_writer(
            load_plan(extra_body=(("model", '"other"'), ("temperature", "0"))), a_plan(1)
        ).body(0)
    )
    assert body["stream_options"] == {"include_usage": True}
    assert (body["model"], body["temperature"]) == ("other", 0)
    assert "stream" not in json.loads(body_writer(load_plan(is_streaming=False), a_plan(1)).body(0))


def test_priorities_are_said_before_the_prompt_where_they_are_asked_for():
    plan = a_plan(2)._replace(priority=np.array([-3, 7], np.int32))
    sent = [body_writer(load_plan(sends_priorities=True), plan).body(row) for row in range(2)]
    assert [json.loads(one)["priority"] for one in sent] == [-3, 7]
    assert all(one.index(b"priority") < one.index(b"prompt") for one in sent)
    assert "priority" not in json.loads(body_writer(load_plan(), plan).body(0))


def test_a_local_tokenizer_makes_exact_lengths(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    vocabulary = {word: index for index, word in enumerate([UNKNOWN, *WORDS[::2]])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Whitespace(), tokenizers.pre_tokenizers.Split("o", "isolated")]
    )
    tokenizer.save(str(path))
    writer = body_writer(
        load_plan(prompt_form="tokenizer", tokenizer=str(tmp_path)), a_plan(1, prompt_tokens=[50])
    )
    prompt = json.loads(writer.body(0))["prompt"]
    assert len(tokenizer.encode(prompt).ids) == 50, (
        "words that this tokenizer cuts in two are not used"
    )


TALKS = [
    {
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "What is a prefix cache?"},
            {"from": "gpt", "value": "Memory of prompts."},
            {"from": "human", "value": "And a block?"},
            {"from": "gpt", "value": "Sixteen tokens."},
        ]
    },
    {
        "conversations": [
            {"from": "human", "value": "Good day"},
            {"from": "gpt", "value": "Good day to you"},
        ]
    },
]
PARTS = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": "data:,"}},
]
ASKED = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": PARTS}]
BATCH = [
    {"custom_id": "a", "body": {"messages": ASKED, "max_tokens": 9}},
    {"custom_id": "b", "body": {"prompt": "Once upon a time", "max_tokens": 7}},
]


def bodies_of(path, endpoint):
    """The bodies of a file of texts, asked one after the other."""
    spec = with_changes(
        resolve_workload(str(path)),
        {"arrivals": {"kind": "open", "rate_per_s": 1.0}},
        where="the test",
    )
    plan = draw_workload(spec).plan
    writer = body_writer(load_plan(endpoint=endpoint, workload=spec, prompt_form="trace"), plan)
    return [json.loads(writer.body(row)) for row in range(plan.n_requests)]


def test_conversations_are_sent_as_they_stand(tmp_path):
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(TALKS))
    first, second, other = (body["messages"] for body in bodies_of(path, "chat"))
    assert first == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is a prefix cache?"},
    ]
    assert second == [
        *first,
        {"role": "assistant", "content": "Memory of prompts."},
        {"role": "user", "content": "And a block?"},
    ]
    assert other == [{"role": "user", "content": "Good day"}]
    assert (
        bodies_of(path, "completions")[1]["prompt"]
        == "Be brief.\nWhat is a prefix cache?\nMemory of prompts.\nAnd a block?"
    )


def test_a_batch_is_sent_as_it_stands(tmp_path):
    path = tmp_path / "batch.jsonl"
    path.write_text("\n".join(map(json.dumps, BATCH)))
    bodies = bodies_of(path, "chat")
    assert [body["messages"] for body in bodies] == [
        ASKED,
        [{"role": "user", "content": "Once upon a time"}],
    ]
    assert [body["max_tokens"] for body in bodies] == [9, 7]
    assert [body["prompt"] for body in bodies_of(path, "completions")] == [
        "Be kind.\nWhat is this?",
        "Once upon a time",
    ]


def test_a_file_without_texts_is_refused(tmp_path):
    answers = tmp_path / "answers.jsonl"
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    answers.write_text(json.dumps({"custom_id": "a", "response": {"body": usage}}))
    with pytest.raises(SpecError, match="line 1 has no text"):
        bodies_of(answers, "chat")
    numbers = tmp_path / "numbers.csv"
    numbers.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,5,4\n")
    with pytest.raises(SpecError, match="azure trace holds no texts"):
        bodies_of(numbers, "chat")


@pytest.mark.parametrize(
    ("changes", "words_of_it"),
    [
        ({"prompt_form": "trace"}, "no trace is replayed"),
        ({"prompt_form": "token-ids", "endpoint": "chat"}, "takes text"),
        ({"prompt_form": "tokenizer"}, "no tokenizer"),
        ({"prompt_form": "tokenizer", "tokenizer": "/nowhere"}, "no such tokenizer"),
    ],
)
def test_prompts_that_cannot_be_made_are_refused(changes, words_of_it):
    with pytest.raises(SpecError, match=words_of_it):
        body_writer(load_plan(**changes), a_plan(1))

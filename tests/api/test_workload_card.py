"""Is a workload described by numbers that can be worked out by hand, and are its texts counted?"""

import json

import pytest

import inferometer as im
from inferometer import catalog
from inferometer.errors import SpecError
from inferometer.inputs.workload.description import cacheable_fraction, joint_lengths
from inferometer.inputs.workload.plan import request_plan

TEXTS = ("the cat sat on the mat", "a dog, and another dog")


def test_joint_lengths_and_what_a_cache_can_hit():
    plan = request_plan(
        "here",
        arrival_ns=[0, 1, 2, 3],
        prompt_tokens=[40, 10, 20, 30],
        output_tokens=[4, 1, 2, 3],
        prefix_request=[-1, -1, -1, 0],
        prefix_tokens=[0, 0, 0, 30],
    )
    joint = joint_lengths(plan)
    assert joint.rank_correlation_ratio == 1
    assert [(one.from_tokens, one.output_p50_tokens) for one in joint.quarters] == [
        (10, 1),
        (20, 2),
        (30, 3),
        (40, 4),
    ]
    assert cacheable_fraction(plan) == pytest.approx(16 / 100), "29 tokens hold one block of 16"
    constant = plan._replace(output_tokens=plan.prompt_tokens * 0 + 5)
    assert joint_lengths(constant).rank_correlation_ratio is None


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = (json.dumps({"prompt": text, "output_tokens": 5}) for text in TEXTS)
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_texts_are_counted_and_tokenizers_timed(prompts, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator(TEXTS, tokenizers.trainers.BpeTrainer(vocab_size=300))
    made.save(str(tmp_path / "tokenizer.json"))
    (found,) = catalog("workloads", prompts, tokenizer=[str(tmp_path)]).workloads
    texts = found.texts
    assert (texts.n_texts, texts.characters, texts.words) == (2, sum(map(len, TEXTS)), 11)
    (counted,) = texts.counts
    assert counted.tokens == sum(len(made.encode(text).ids) for text in TEXTS)
    assert counted.encode_s > 0
    assert counted.decode_s > 0


def test_a_workload_without_texts_is_not_tokenised(tmp_path):
    (chat,) = catalog("workloads", "chat").workloads
    assert chat.plan.n_requests == 2000
    assert chat.texts is None
    with pytest.raises(SpecError, match="holds no texts"):
        catalog("workloads", "chat", tokenizer=[str(tmp_path)])
    with pytest.raises(SpecError, match="have no texts"):
        catalog("models", tokenizer=[str(tmp_path)])


def test_a_table_of_lengths_alone_is_described(tmp_path):
    """Vidur's tables of lengths have no instants, and need none here."""
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n100,10\n300,30\n")
    card = catalog("workloads", str(path))
    assert card.workloads[0].plan.prompt.mean_tokens == 200
    assert card.workloads[0].plan.rate_per_s is None


def test_a_prefix_comes_before_the_prompts_own_tokens_and_the_answer_says_so():
    """Before, 768 of 1,024 tokens seemed to be shared, and 43 % were."""
    workload = "prompt=1024,output=16,prefix=768"
    answer = im.simulate(
        "llama-3.1-8b", hardware="h100_sxm", rate=2, requests=50, workload=workload
    )
    assert answer.workload.prompt.mean_tokens == 768 + 1024
    words = "each prompt is 768 tokens that all begin with, and then 1024 of its own"
    assert words in answer.assumptions
    assert words in str(answer)

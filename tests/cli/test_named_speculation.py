"""Does ``inferometer predict`` find the best number of draft tokens of a named method, and what one measured TPOT uses?"""

import json

import pytest
from click.testing import CliRunner

import inferometer as im
from inferometer.api.engine_settings import named_draft
from inferometer.cli.answer import plain_command
from inferometer.errors import SpecError

WORDS = ("llama-3.1-70b", "--hardware", "h100_sxm", "--tp", "4", "--batch", "16", "--json")


def predicted(*words):
    outcome = CliRunner().invoke(plain_command("predict"), [*WORDS, *words], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def tpot_s(answer):
    return answer["datasheet"]["speeds"]["tpot_s"]["value"]


@pytest.mark.parametrize("method", ["ngram", "eagle", "Medusa", "redrafter", "mtp", "llama-3.2-1b"])
def test_a_method_is_answered_at_its_best_number_of_draft_tokens(method):
    answer = predicted("--speculative", method)
    found = answer["speculation"]
    best = found["best"]
    assert found["draft_model"] == (method if "llama" in method else None)
    assert answer["datasheet"]["scenario"]["speculation"] == best
    by_hand = ",".join(
        str(best[name]) for name in ("n_draft_tokens", "acceptance_fraction", "draft_cost_ratio")
    )
    assert tpot_s(predicted("--speculative", by_hand)) == pytest.approx(tpot_s(answer))
    for one in found["lengths"]:
        other = ",".join(
            [
                str(one["n_draft_tokens"]),
                str(best["acceptance_fraction"]),
                str(best["draft_cost_ratio"]),
            ]
        )
        assert tpot_s(predicted("--speculative", other)) >= tpot_s(answer) * (1 - 1e-9)


def test_an_acceptance_that_was_measured_takes_the_place_of_published_ones():
    low, high = (predicted("--speculative", f"eagle,{chance}") for chance in (0.3, 0.9))
    assert low["speculation"]["acceptance"] == [0.3, 0.3, 0.3]
    assert low["speculation"]["acceptance_from"] == "as stated"
    assert tpot_s(high) < tpot_s(low)
    best = [one["speculation"]["best"]["n_draft_tokens"] for one in (low, high)]
    assert best[0] < best[1]


@pytest.mark.parametrize(
    ("typed", "method"),
    [("eagle3", "eagle"), ("EAGLE-3,0.8", "eagle"), ("deepseek_mtp", "mtp"), ("n-gram", "ngram")],
)
def test_methods_are_known_by_other_tools_names(typed, method):
    assert predicted("--speculative", typed)["speculation"]["method"] == method


@pytest.mark.parametrize("text", ["eagle,1.5", "eagle,x", "no-such-model", "4,0.8", ""])
def test_what_is_no_speculation_is_refused_with_what_is_one(text):
    with pytest.raises(SpecError, match="no speculation") as refused:
        CliRunner().invoke(
            plain_command("predict"), [*WORDS, "--speculative", text], catch_exceptions=False
        )
    assert "eagle" in refused.value.allowed


def test_one_measured_number_is_a_share_of_the_bandwidth():
    """7B, 14 ms, 2 TB/s: half of it (Databricks, LLM Inference Performance Engineering)."""
    words = ("llama-2-7b", "--hardware", "a100_80gb_sxm", "--prompt", "128", "--json")
    outcome = CliRunner().invoke(plain_command("predict"), [*words, "--measured-tpot", "14ms"])
    found = json.loads(outcome.stdout)["measured"]
    assert found["mbu_fraction"] == pytest.approx(0.5, rel=0.1)
    assert found["bound_ratio"] == pytest.approx(1 / found["mbu_fraction"], rel=0.01)
    with pytest.raises(SpecError, match="TPOT of 0"):
        CliRunner().invoke(
            plain_command("predict"), [*words, "--measured-tpot", "0ms"], catch_exceptions=False
        )


@pytest.mark.parametrize(
    ("tpot", "ratio", "is_possible"),
    [("14ms", "x the bound", True), ("3ms", "0.66", False), ("1us", "0.000222x", False)],
)
def test_a_tpot_beyond_the_peaks_is_a_caution_with_the_least_there_is(tpot, ratio, is_possible):
    words = ["llama-3.1-8b", "--hardware", "h100_sxm", "--measured-tpot", tpot]
    shown = CliRunner().invoke(plain_command("predict"), words).stdout
    assert ratio in shown
    assert ("is not possible here: at the peaks" in shown) is not is_possible
    assert ("4.5 ms or more" in shown) is not is_possible


SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct --speculative-config "
EAGLE3 = '{"method": "eagle3", "num_speculative_tokens": 3, "model": "yuhuili/EAGLE3-LLaMA3.1"}'


def test_drafts_of_a_start_command_are_simulated_and_predicted_alike():
    lone = {"hardware": "h100_sxm"}
    start = f"{SERVE}'{EAGLE3}'"
    loop = {"workload": "512x128", "concurrency": 1, "requests": 200}
    simulated = im.simulate(start, **lone, **loop)
    predicted = im.predict(start, prompt=512, output=128, **lone)
    assert (simulated.deployment.knobs["num_speculative_tokens"], predicted.basis) == (
        3,
        "published",
    )
    tpot_s = simulated.rows()[0]["summary.tpot_mean_s.value"]
    assert predicted.answered.tpot_s is not None
    assert predicted.answered.tpot_s.value == pytest.approx(tpot_s, rel=0.05)
    config = {"method": "eagle3", "num_speculative_tokens": 3}
    for named in ({"speculative": "eagle:3"}, {"speculative_config": config}):
        assert im.simulate("llama-3.1-8b", **named, **lone, **loop).levels == simulated.levels


def test_a_sizing_drafts_on_each_device():
    pick = im.size(
        "llama-3.1-8b",
        gpus="h100_sxm",
        tp=1,
        rate=2,
        slo="tpot:p95<50ms",
        speculative="ngram:2,0.6",
        time_limit=1,
    ).pick
    assert pick is not None
    assert "acceptance_fraction 0.6" in pick.layout


@pytest.mark.parametrize(
    ("config", "method", "n_tokens"),
    [
        (EAGLE3, "eagle", 3),
        ('{"model": "org/EAGLE3-LLaMA", "num_speculative_tokens": 2}', "eagle", 2),
        ('{"method": "draft_model", "model": "llama-3.2-1b"}', "draft_model", None),
        ('{"method": "qwen3_next_mtp", "num_speculative_tokens": 1}', "mtp", 1),
        ('{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}', "ngram", 5),
    ],
)
def test_the_json_of_vllm_is_read(config, method, n_tokens):
    draft = named_draft(config)
    assert (draft.method, draft.n_tokens) == (method, n_tokens)


@pytest.mark.parametrize("text", ["eagle:0", '{"method": "suffix"}', "[]", "eagle:3,2"])
def test_what_names_no_drafts_is_refused(text):
    with pytest.raises(SpecError, match="no speculation"):
        named_draft(text)
    with pytest.raises(SpecError, match="speculation"):
        named_draft("{")


def test_a_number_of_drafts_of_ones_own_is_answered_beside_the_best():
    answer = predicted("--speculative", "eagle:2")
    assert answer["speculation"]["best"]["n_draft_tokens"] == 2
    assert answer["basis"] == "published"
    best = predicted("--speculative", "eagle")["speculation"]["best"]["n_draft_tokens"]
    assert best != 2
    page = CliRunner().invoke(plain_command("predict"), [*WORDS[:-1], "--speculative", "eagle:2"])
    assert f"eagle: 2 (best: {best}) tokens" in page.output

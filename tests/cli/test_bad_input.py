"""Does every bad input end in one clear error: the right exit code, nothing on stdout, no traceback, nothing lost?

The whole command line, in this process: what is refused is refused before an engine is started, so
these tests are fast.
"""

import json
import shutil
from pathlib import Path

import pytest
from command_line import check_refused, run

RECORDS = Path(__file__).parents[1] / "records" / "fixtures"
DUMMY = ("--load-format", "dummy", "--device", "cpu")
PREDICT = ("predict", "smollm2-135m", "--hardware", "h100_sxm")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--batch", 0), ("--batch",)),
        (("--usd-per-hour", -3), ("--usd-per-hour", "above 0")),
        (("--usd-per-hour", "nan"), ("--usd-per-hour",)),
        (("--prefix-hit", 2), ("--prefix-hit",)),
        (("--attention-sinks", 4), ("--attention-sinks", "--attention-window 4096")),
        (("--speculative", "4,2,0.1"), ("--speculative",)),
        (("--gpu-memory-utilization", "nan"), ("--gpu-memory-utilization",)),
        (("--tp", 7), ("--tp", "1, 3, 9")),
        (("--prompt", 100_000), ("--prompt", "8192")),
        (("--dtype", "fp9"), ("--dtype", "float8")),
    ],
)
def test_impossible_predictions(flags, words, tmp_path):
    check_refused(run(*PREDICT, *flags, folder=tmp_path), 2, *words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--batch-sizes", "0"), ("--batch-sizes", "1 or more")),
        (("--seq", "128,abc"), ("--seq", "abc")),
        (("--reps", 0), ("--reps",)),
        (("--collapse-factor", 0.5), ("--collapse-factor", "more than 1")),
        (("--collapse-factor", "nan"), ("--collapse-factor", "a finite number")),
        (("--dtype", "fp9"), ("--dtype", "float8")),
    ],
)
def test_impossible_sweeps(flags, words, tmp_path):
    check_refused(
        run("sweep", "--model", "smollm2-135m", *DUMMY, *flags, "--out", "run", folder=tmp_path),
        2,
        *words,
    )
    assert not (tmp_path / "run").exists()


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 2048,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": None}, ("vocab_size", "missing")),
        ({"hidden_size": -64}, ("hidden_size",)),
        ({"num_hidden_layers": 0}, ("num_hidden_layers",)),
        ({"num_key_value_heads": 3}, ("n_kv_heads = 3",)),
        ({"hidden_size": "many"}, ("hidden_size",)),
        ({"model_type": "t5", "is_encoder_decoder": True}, ("encoder-decoder",)),
    ],
)
def test_impossible_configurations(changes, words, tmp_path):
    fields = {name: value for name, value in (LLAMA | changes).items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    outcome = run("predict", "config.json", "--hardware", "h100_sxm", folder=tmp_path)
    check_refused(outcome, 2, "config.json", *words)


def test_the_configuration_that_the_others_spoil_is_good(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert run("predict", "config.json", "--hardware", "h100_sxm", folder=tmp_path).returncode == 0


@pytest.mark.parametrize("budget", ["abc", "5", "0s", "-5s"])
def test_impossible_budgets(budget, tmp_path):
    check_refused(
        run("quick", "smollm2-135m", *DUMMY, "--budget", budget, folder=tmp_path), 2, "--budget"
    )


def test_a_catalogue_model_without_weights_says_how_to_go_on(tmp_path):
    check_refused(
        run("sweep", "--model", "smollm2-135m", folder=tmp_path), 2, "--load-format dummy"
    )


@pytest.mark.parametrize(
    ("words", "exit_code", "try_"),
    [
        (("verify", "pln.toml", "--seal-only"), 2, "try: did you mean plan.toml?"),
        (("verify", "else.txt", "--seal-only"), 2, "try: inferometer size MODEL --rate 1"),
        (("fit", "sweeps.csv"), 4, "try: did you mean sweep.csv?"),
        (("fit", "runs/none"), 4, "try: inferometer quick MODEL --out runs/NAME"),
        (("deploy", "llama-3.1-8b", "--out", "files"), 2, "try: inferometer size llama-3.1-8b"),
        (("deploy", "llama-3.1-8b"), 2, "try: --out files"),
        (("timeline", "--perfetto", ""), 2, "'' is not the name of a file or folder"),
        (
            ("simulate", "llama-3.1-8b", "--hardware", "h100_sxm", "--workload", "rag"),
            2,
            "try: --workload prefix=512,prompt=4096,output=256",
        ),
        (
            ("simulate", "llama-3.1-8b", "--hardware", "h100_sxm", "--workload", "zzzz"),
            2,
            "try: --workload 1024x256",
        ),
    ],
)
def test_what_is_not_there_says_what_could_be_meant(words, exit_code, try_, tmp_path):
    for name in ("plan.toml", "sweep.csv"):
        (tmp_path / name).write_text("")
    check_refused(run(*words, folder=tmp_path), exit_code, try_)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A record of schema version 1."""
    return Path(shutil.copytree(RECORDS / "version_1", tmp_path / "record"))


@pytest.mark.parametrize("verb", ["show", "fit", "explain", "report"])
def test_no_run_there(verb, tmp_path):
    check_refused(run(verb, "nothing", folder=tmp_path), 4, "nothing")
    (tmp_path / "empty").mkdir()
    check_refused(run(verb, "empty", folder=tmp_path), 4, "manifest.json")


def test_a_flipped_byte_is_found_and_the_rest_can_be_read(record, tmp_path):
    path = next(record.rglob("*.parquet"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    check_refused(run("show", record, folder=tmp_path), 4, path.name)


def test_a_truncated_manifest(record, tmp_path):
    manifest = record / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:200])
    check_refused(run("show", record, folder=tmp_path), 4, "manifest.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("empty",)),
        ("foo,bar\n1,2\n", ("foo, bar", "allowed")),
        ("seq,batch,prefill ms\n16,1,10\n32,1,abc\n", ("line 3", "abc")),
        ("seq,batch,prefill ms\n16,1\n", ("line 2", "fields")),
        ("seq,batch,prefill ms\n16,1,-10\n", ("line 2", "-10")),
        ("seq,batch,prefill ms\n16,0,10\n", ("line 2",)),
    ],
)
def test_broken_tables(text, words, tmp_path):
    (tmp_path / "table.csv").write_text(text)
    check_refused(run("show", "table.csv", folder=tmp_path), 4, "table.csv", *words)


def test_a_table_of_an_unknown_model_cannot_be_fitted_but_shown(tmp_path):
    shutil.copy(RECORDS / "t1_prompt_axis.csv", tmp_path / "table.csv")
    check_refused(run("fit", "table.csv", folder=tmp_path), 5, "--model")
    shown = run("show", "table.csv", folder=tmp_path)
    assert shown.returncode == 0
    assert shown.stdout.startswith("table.csv")
    assert "--model MODEL" in shown.stdout


@pytest.fixture
def fitted(tmp_path: Path) -> Path:
    """A fit of somebody's table of a float16 GPU sweep."""
    shutil.copy(RECORDS / "t1_prompt_axis.csv", tmp_path / "table.csv")
    facts = (
        "--model",
        "qwen2.5-3b",
        "--dtype",
        "float16",
        "--hardware",
        "a100_80gb_sxm",
        "--batch",
        1,
        "--gen-tokens",
        32,
    )
    outcome = run("fit", "table.csv", *facts, folder=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    return tmp_path / "step_time.json"


def test_a_fit_answers_only_for_what_was_fitted(fitted, tmp_path):
    asked = ("--fit", fitted, "--dtype", "float16")
    check_refused(
        run("predict", "smollm2-135m", "--hardware", "a100_80gb_sxm", *asked, folder=tmp_path),
        2,
        "--fit",
        "qwen2.5-3b",
    )
    folder = run("predict", "qwen2.5-3b", "--fit", tmp_path, folder=tmp_path)
    assert folder.returncode == 0, folder.stderr
    assert "qwen2.5-3b on NVIDIA A100 80GB" in folder.stdout
    assert "TRUST  the fit does not state its engine" in folder.stdout, (
        "a table of which nobody said what ran it"
    )
    assert "MBU of decode" not in folder.stdout


def test_what_is_no_fit(tmp_path):
    check_refused(
        run(*PREDICT, "--fit", "nothing.json", folder=tmp_path), 5, "nothing.json", "No such file"
    )
    (tmp_path / "other.json").write_text("{}")
    check_refused(run(*PREDICT, "--fit", "other.json", folder=tmp_path), 5, "other.json")


@pytest.mark.slow
def test_a_place_that_cannot_be_written(record, tmp_path):
    (tmp_path / "file").write_text("")
    check_refused(run("report", record, "--out", "file/report.html", folder=tmp_path), 4, "file")
    check_refused(run("fit", record, "--out", "file/fit.json", folder=tmp_path), 4, "file")


def test_a_misspelt_verb_of_schema_gets_the_nearest(tmp_path):
    check_refused(run("schema", "tunes", folder=tmp_path), 2, "'tunes' is no verb", "schema tune")


@pytest.mark.parametrize(
    ("words", "try_"),
    [
        (("tune", "--preset", "chat"), "--preset interactive"),
        (("deploy",), "inferometer deploy plan.json --out files"),
        (("deploy", "plan.json"), "--out files"),
        (("export", "runs/example"), "--out run.json"),
        (("catalog",), "inferometer catalog models"),
        (("size", "smollm2-135m", "--budget", "10"), "leave it out: the least cost is the answer"),
        (("capacity", "http://127.0.0.1:1", "--time-limit", "60"), "--max-probes 10"),
    ],
)
def test_what_is_missing_or_unknown_is_answered_with_what_to_type(words, try_, tmp_path):
    """These pointed at --help alone."""
    check_refused(run(*words, folder=tmp_path), 2, f"try: {try_}")


@pytest.mark.parametrize("card", ["rtx_5060ti_16gb", "rtx_4080"])
def test_a_large_model_on_a_small_card_is_answered_with_limits_for_a_few_users(card, tmp_path):
    """People serve gpt-oss-20b on 16 GB with few sequences; the answer was a second card."""
    asked = ("simulate", "gpt-oss-20b", "--hardware", card, "--concurrency", 2, "--requests", 50)
    refused = run(*asked, folder=tmp_path)
    check_refused(refused, 6, "--max-num-seqs 8 --max-model-len 8192", "for a few users")
    flags = refused.stderr.partition("try: ")[2].partition(":")[0].split()
    assert run(*asked, *flags, folder=tmp_path).returncode == 0

"""Is a server that was fitted to load tests the one that other verbs simulate, unless flags say otherwise?"""

import json
import re
from dataclasses import replace

import pytest
from command_line import check_refused, run
from server_files import FRONT_END_S, LIMITS, SWITCHES, server_fit, write_server

from inferometer.api.prediction import server_speeds
from inferometer.fit.loads.server_fit import ServerDraw
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.perfmodel.scenario import Scenario, mean_step, prefill_of

TRAFFIC = ("--rate", "0.5", "--requests", "40", "--json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fits")
    write_server(folder)
    return folder


def simulated(folder, *flags):
    outcome = run("simulate", "hidden", "--fit", "server.json", *TRAFFIC, *flags, folder=folder)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


def test_its_limits_and_switches_are_simulated(folder):
    deployment = simulated(folder)["deployment"]
    limits = {
        "max_num_seqs": LIMITS["max_num_seqs"],
        "max_num_batched_tokens": LIMITS["max_num_batched_tokens"],
    }
    for name, value in (limits | SWITCHES).items():
        assert deployment["knobs"][name] == value, name
    assert deployment["n_kv_blocks"] == LIMITS["n_kv_blocks"]
    assert deployment["model_id"] == "hidden"
    assert "500 requests in 2 load tests of hidden" in deployment["step_times_from"]


def test_flags_win(folder):
    knobs = simulated(
        folder, "--max-num-seqs", "4", "--set", "enable_prefix_caching=true", "--num-blocks", "900"
    )["deployment"]["knobs"]
    assert (knobs["max_num_seqs"], knobs["enable_prefix_caching"], knobs["num_blocks"]) == (
        4,
        True,
        900,
    )
    lower = simulated(folder, "--max-num-batched-tokens", "16")["deployment"]["knobs"]
    assert (lower["max_num_seqs"], lower["max_num_batched_tokens"]) == (16, 16)


def test_a_server_takes_contexts_as_long_as_it_was_seen_to_take(folder):
    """Whatever the positions of its model: those of GPT-2 are 1,024, and it took 4,000 tokens."""
    replace(server_fit(), model=find_model("gpt2")).save(folder / "long.json")
    words = ("simulate", "hidden", "--fit", "long.json", *TRAFFIC, "--workload", "9x9")
    taken = run(*words, "--max-model-len", "4000", folder=folder)
    assert json.loads(taken.stdout)["deployment"]["knobs"]["max_model_len"] == 4000
    check_refused(run(*words, "--max-model-len", "4001", folder=folder), 2, "up to 4,000")


def test_the_front_end_is_in_the_first_token(folder):
    levels = {level["step_times"]: level["summary"] for level in simulated(folder)["levels"]}
    medians = {pace: median_ttft_s(summary) for pace, summary in levels.items()}
    assert (
        FRONT_END_S + 8e-3
        < medians["fast"]
        < medians["likely"]
        < medians["slow"]
        < FRONT_END_S + 0.2
    )


def drawn_server(*slots):
    """The same step times with other slots in each draw."""
    fit = server_fit()
    parameters = tuple(parameter.estimate.value for parameter in fit.parameters)
    return replace(
        fit,
        draws=tuple(
            ServerDraw(knobs=LIMITS | SWITCHES | {"max_num_seqs": n}, parameters=parameters)
            for n in slots
        ),
    )


def test_doubt_of_limits_is_in_the_doubt_of_latencies(folder):
    """Steps without doubt, slots between 2 and 24.

    What a request waits is not known, unless somebody says how many there are.
    """
    drawn_server(24, 2, 12).save(folder / "doubted.json")
    busy = ("--fit", "doubted.json", "--rate", "4", "--slo", "ttft:p50<200ms")
    asked = ("simulate", "hidden", *TRAFFIC, *busy)
    doubted, known = (
        run(*asked, *flags, folder=folder) for flags in ((), ("--max-num-seqs", "24"))
    )
    assert (doubted.returncode, known.returncode) == (11, 0)
    levels = json.loads(doubted.stdout)["levels"]
    assert [level["step_times"] for level in levels] == ["likely", "draw", "draw", "draw"]
    likely, same, few, some = (median_ttft_s(level["summary"]) for level in levels)
    assert few > 1.5 * likely
    assert same == likely <= some <= few
    medians = {median_ttft_s(level["summary"]) for level in json.loads(known.stdout)["levels"]}
    assert medians == {likely}


@pytest.mark.slow
def test_a_capacity_is_looked_for_in_every_draw(folder):
    drawn_server(24, 2).save(folder / "doubted.json")
    outcome = run(
        "capacity",
        "hidden",
        "--fit",
        "doubted.json",
        "--rate",
        "2",
        "--slo",
        "ttft:p95<2s",
        folder=folder,
    )
    assert outcome.returncode in {0, 11}, outcome.stderr
    assert "in 2 draws of the step times: " in outcome.stdout


def median_ttft_s(summary):
    return next(one for one in summary["latencies"] if one["latency"] == "ttft")["percentiles"][0][
        "seconds"
    ]["value"]


def test_a_budget_below_the_longest_prompt_settles_an_open_chunking(folder):
    """In some draws prompts would not be cut: vLLM does not start like that."""
    fit = drawn_server(24)
    draws = [
        replace(draw, knobs=draw.knobs | {"enable_chunked_prefill": False}) for draw in fit.draws
    ]
    replace(fit, draws=tuple(draws)).save(folder / "open.json")
    knobs = simulated(folder, "--fit", "open.json", "--max-num-batched-tokens", "64")["deployment"][
        "knobs"
    ]
    assert (knobs["max_num_batched_tokens"], knobs["enable_chunked_prefill"]) == (64, True)


def test_every_draw_takes_the_contexts_that_the_server_takes(folder):
    """Also without chunked prefill: else a capacity counts refusals of longer prompts as misses."""
    fit = replace(drawn_server(24), model=find_model("llama-3.1-8b"))
    draws = [
        replace(draw, knobs=draw.knobs | {"enable_chunked_prefill": False}) for draw in fit.draws
    ]
    replace(fit, draws=tuple(draws)).save(folder / "longer.json")
    asked = ("--workload", "5000x8", "--requests", "10", "--rate", "0.1", "--json")
    outcome = run("simulate", "hidden", "--fit", "longer.json", *asked, folder=folder)
    assert outcome.returncode == 0, outcome.stderr
    for level in json.loads(outcome.stdout)["levels"]:
        assert dict(level["summary"]["n_by_status"]) == {"length": 10}, level["step_times"]


def test_a_batch_is_predicted(folder):
    flags = ("--hardware", "l4", "--batch", "4", "--fit", "server.json", "--json")
    outcome = run("predict", "smollm2-135m", *flags, folder=folder)
    assert outcome.returncode == 0, outcome.stderr
    fitted = json.loads(outcome.stdout)["fitted"]
    assert fitted["ttft_s"]["low"] < fitted["ttft_s"]["value"] < fitted["ttft_s"]["high"]
    assert fitted["ttft_s"]["value"] > FRONT_END_S
    check_refused(
        run("predict", "smollm2-135m", *flags[:2], "--batch", "64", *flags[4:], folder=folder),
        2,
        "64 sequences",
        "1 to 24",
    )


def test_prompts_beyond_the_step_budget_take_several_steps():
    """Before, 24 prompts of 512 tokens were one step of 12,288, which no engine runs."""
    fit, model = server_fit(), find_model("smollm2-135m")
    one, many = (
        server_speeds(
            fit,
            Scenario(
                model=model,
                engine=fit.engine,
                hardware=find_hardware("l4"),
                batch_size=n,
                prompt_tokens=512,
                output_tokens=8,
            ),
        )
        for n in (2, 24)
    )
    steps_s = [(found.ttft_s.value - FRONT_END_S) for found in (one, many)]
    assert steps_s[1] == pytest.approx(12 * steps_s[0]), "12 steps of 1,024 tokens, the budget"
    assert many.is_inside_box


@pytest.mark.parametrize(
    ("is_chunked", "batch_size", "prompt_tokens", "n_steps"),
    [
        (True, 1, 2500, 3),
        (False, 1, 2500, 1),  # whole, however long
        (True, 4, 700, 3),
        (False, 4, 700, 4),  # two do not fit into 1,024
        (False, 5, 400, 3),
    ],
)
def test_a_server_without_chunked_prefill_computes_whole_prompts(
    is_chunked, batch_size, prompt_tokens, n_steps
):
    """Before, it took the steps of one that splits them."""
    fit = server_fit()
    knobs = tuple(
        replace(one, value=is_chunked) if one.name == "enable_chunked_prefill" else one
        for one in fit.knobs
    )
    fit = replace(fit, knobs=knobs)
    assert fit.n_prompt_steps(batch_size=batch_size, prompt_tokens=prompt_tokens) == n_steps
    question = Scenario(
        model=find_model("smollm2-135m"),
        engine=fit.engine,
        hardware=find_hardware("l4"),
        batch_size=batch_size,
        prompt_tokens=prompt_tokens,
        output_tokens=8,
    )
    step_s = (server_speeds(fit, question).ttft_s.value - FRONT_END_S) / n_steps
    shape = mean_step(prefill_of(question)[0], n_steps)
    assert step_s == pytest.approx(fit.step_estimate(shape).value)


def test_memory_is_that_of_the_catalogue_s_model_or_not_stated(folder):
    """A load test does not tell the model's shape: a model of one layer of width 1 fitted 16 million times."""
    for name in ("llama-3.1-8b", "hidden"):
        replace(server_fit(), served_model=name, model=None).save(folder / f"{name}.json")
    flags = ("--hardware", "h100_sxm", "--batch", "4", "--fit")
    known, unknown = (
        run("predict", name, *flags, f"{name}.json", folder=folder).stdout
        for name in ("llama-3.1-8b", "hidden")
    )
    own = ("--dtype", "float32", "--datasheet")
    plain = run("predict", "llama-3.1-8b", *flags[:-1], *own, folder=folder).stdout
    (at_most,) = re.findall(r"at most [\d,]+ at once fit in memory", plain)
    assert at_most in known
    assert "does not tell the model" in unknown
    assert "fits in memory" not in unknown
    assert "at once fit" not in unknown


def test_a_run_without_a_fit_is_answered_with_the_command_that_fits_it(folder):
    for name, file in (("a sweep", "sweep.parquet"), ("load", "exchanges.parquet")):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / file).touch()
    flags = ("smollm2-135m", "--hardware", "l4", "--fit")
    for name, command in (
        ("a sweep", "try: inferometer fit 'a sweep'"),
        ("load", "try: inferometer fit --load load"),
        ("absent", "try: inferometer fit RUN"),
    ):
        for verb in ("predict", "simulate"):
            check_refused(run(verb, *flags, name, folder=folder), 5, command)


def test_what_it_refuses(folder):
    check_refused(
        run("simulate", "hidden", "--fit", "server.json", "--dtype", "float16", folder=folder),
        2,
        "--dtype float16",
        "fitted as it is",
    )
    (folder / "newer.json").write_text('{"kind": "server", "schema_version": 99}')
    check_refused(
        run("simulate", "hidden", "--fit", "newer.json", folder=folder), 5, "schema version 99"
    )
    check_refused(
        run("fit", "--server-log", "newer.json", "run", folder=folder), 2, "--server-log", "--load"
    )

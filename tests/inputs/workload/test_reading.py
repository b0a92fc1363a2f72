"""Does a bad workload file say which file, key and value, and what is allowed?"""

import json
import os

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.workload.reading import (
    checked_workload,
    preset_names,
    read_workload,
    resolve_workload,
    with_changes,
    workload_from_text,
)
from inferometer.inputs.workload.replay import draw_workload
from inferometer.inputs.workload.types import (
    ClosedArrivals,
    OpenArrivals,
    TraceSource,
    WorkloadSpec,
)

CLASS = (
    '[[classes]]\nname = "a"\nprompt_tokens = { kind = "uniform", low = 3, high = 4'
    ' }\noutput_tokens = { kind = "constant", value = 2 }\n'
)


@pytest.mark.parametrize(
    ("text", "key", "said", "allowed"),
    [
        ("nme = 1\n" + CLASS, None, "unknown field `nme`", "keys name, seed"),
        ("name = 3\n" + CLASS, "name", "name: 3: Expected `str`", "text"),
        ("seed = -1\n" + CLASS, "seed", "seed: -1", "a whole number from 0"),
        ("seed = 1.5\n" + CLASS, "seed", "seed: 1.5", "a whole number"),
        ("n_requests = 0\n" + CLASS, "n_requests", "n_requests: 0", "from 1"),
        ("duration_s = 0\n" + CLASS, "duration_s", "duration_s: 0", "a number above 0"),
        (
            'arrivals = { kind = "open", rate_per_s = 0 }\n' + CLASS,
            "arrivals.rate_per_s",
            "0",
            "a number from 1e-09 to 1e+12",
        ),
        (
            'arrivals = { kind = "open", rate_per_s = nan }\n' + CLASS,
            "arrivals.rate_per_s",
            "nan",
            "a number from 1e-09 to 1e+12",
        ),
        (
            'arrivals = { kind = "open", rate_per_s = inf }\n' + CLASS,
            "arrivals.rate_per_s",
            "inf",
            "a number from 1e-09 to 1e+12",
        ),
        (
            'arrivals = { kind = "open", rats = 3 }\n' + CLASS,
            "arrivals",
            "unknown field `rats`",
            "keys kind, rate_per_s, process",
        ),
        (
            'arrivals = { kind = "open", process = "fractal" }\n' + CLASS,
            "arrivals.process",
            "fractal",
            "constant or gamma or poisson",
        ),
        (
            'arrivals = { kind = "opened" }\n' + CLASS,
            "arrivals.kind",
            "opened",
            "kind = open, closed, trace, at_once",
        ),
        (
            "arrivals = { rate_per_s = 3 }\n" + CLASS,
            "arrivals",
            "missing required field `kind`",
            "kind = open, closed",
        ),
        (
            'arrivals = { kind = "closed" }\n' + CLASS,
            "arrivals",
            "missing required field `concurrency`",
            "keys kind, concurrency, think_s",
        ),
        (
            'arrivals = { kind = "closed", concurrency = 0 }\n' + CLASS,
            "arrivals.concurrency",
            "0",
            "from 1",
        ),
        (
            'arrivals = { kind = "open", profile = { kind = "ramp", from_ratio = "a", over_s = 1'
            " } }\n" + CLASS,
            "arrivals.profile.from_ratio",
            "'a'",
            "a number from 0",
        ),
        (CLASS + "weight = 3\n", "classes[0]", "unknown field `weight`", "weight_ratio"),
        (CLASS + "weight_ratio = 0\n", None, "every class has weight 0", None),
        (CLASS + CLASS, None, "two classes have one name", None),
        (
            CLASS.replace("low = 3", "low = 5"),
            "classes[0].prompt_tokens",
            "low = 5 is above high = 4",
            "keys kind, low, high",
        ),
        (
            CLASS.replace('"uniform"', '"unform"'),
            "classes[0].prompt_tokens.kind",
            "unform",
            "uniform, normal, lognormal",
        ),
        (
            CLASS + CLASS.replace('name = "a"', 'name = "b"\ncorrelation_ratio = 2'),
            "classes[1].correlation_ratio",
            "2",
            "from -1 to 1",
        ),
        (CLASS + "sessions = { turns = 3 }\n", "classes[0].sessions.turns", "3", "kind = constant"),
        ("", None, "either classes or a replay", "keys name"),
        (
            'replay = { kind = "file", path = "x" }\n' + CLASS,
            None,
            "either classes or a replay",
            "keys name",
        ),
        (
            'tenants = { n_tenants = 3 }\nreplay = { kind = "file", path = "x" }',
            None,
            "tenants of its trace",
            "keys name",
        ),
    ],
)
def test_bad_keys_are_named(text, key, said, allowed):
    with pytest.raises(SpecError) as caught:
        workload_from_text(text, where="w.toml")
    assert said in caught.value.what
    assert caught.value.where == ("w.toml" if key is None else f"w.toml, key {key}")
    assert allowed is None or allowed in caught.value.allowed


def test_what_is_no_toml_or_json_is_refused(tmp_path):
    with pytest.raises(SpecError, match="the TOML is damaged"):
        workload_from_text("a = ", where="w")
    with pytest.raises(SpecError, match="the JSON is damaged"):
        workload_from_text("{", where="w", is_json=True)
    with pytest.raises(SpecError, match="cannot be read"):
        read_workload(tmp_path / "none.toml")


def test_toml_and_json_say_the_same(tmp_path):
    (tmp_path / "w.toml").write_text(CLASS)
    (tmp_path / "w.json").write_text(
        json.dumps(
            {
                "classes": [
                    {
                        "name": "a",
                        "prompt_tokens": {"kind": "uniform", "low": 3, "high": 4},
                        "output_tokens": {"kind": "constant", "value": 2},
                    }
                ]
            }
        )
    )
    assert read_workload(tmp_path / "w.toml") == resolve_workload(str(tmp_path / "w.json"))


def test_paths_are_relative_to_the_file(tmp_path):
    (tmp_path / "w.toml").write_text('replay = { kind = "file", path = "trace.csv" }')
    assert read_workload(tmp_path / "w.toml").replay == TraceSource(
        path=str(tmp_path / "trace.csv")
    )
    (tmp_path / "w.toml").write_text(
        'duration_s = 1\nreplay = { kind = "servegen", rates_path = "/a/r", lengths_path = "l" }'
    )
    replay = read_workload(tmp_path / "w.toml").replay
    assert (replay.rates_path, replay.lengths_path) == ("/a/r", str(tmp_path / "l"))


def test_names_files_and_traces_are_told_apart(tmp_path):
    assert resolve_workload("chat").name == "chat"
    trace = tmp_path / "azure.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,48,10\n")
    assert draw_workload(resolve_workload(str(trace))).plan.prompt_tokens.tolist() == [48]
    sharegpt = tmp_path / "sharegpt.json"
    sharegpt.write_text("[]")
    assert resolve_workload(str(sharegpt)).replay == TraceSource(path=str(sharegpt))
    lines = tmp_path / "mooncake.json"
    lines.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1}\n' * 2)
    assert draw_workload(resolve_workload(str(lines))).plan.n_requests == 2
    with pytest.raises(SpecError, match="no workload 'chatt'") as caught:
        resolve_workload("chatt")
    assert all(name in caught.value.allowed for name in preset_names())
    assert caught.value.try_ == "--workload chat"
    with pytest.raises(SpecError, match="no workload '1024'") as caught:
        resolve_workload("1024")
    assert caught.value.try_ == "--workload 1024x256"


def test_a_pipe_is_no_workload_since_it_is_read_more_than_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="read more than once"):
        resolve_workload(str(tmp_path / "pipe"))


def test_changes_go_into_tables_and_replace_other_kinds():
    spec = with_changes(
        resolve_workload("chat"), {"arrivals": {"rate_per_s": 9}, "seed": 4}, where="flags"
    )
    assert isinstance(spec.arrivals, OpenArrivals)
    assert (spec.arrivals.rate_per_s, spec.arrivals.burstiness_ratio, spec.seed) == (9, 0.835, 4)
    closed = with_changes(spec, {"arrivals": {"kind": "closed", "concurrency": 3}}, where="flags")
    assert closed.arrivals == ClosedArrivals(concurrency=3)
    with pytest.raises(SpecError, match="unknown field `rate_per_s`") as caught:
        with_changes(closed, {"arrivals": {"rate_per_s": 3}}, where="--rate")
    assert caught.value.where.startswith("--rate")
    assert (
        with_changes(
            WorkloadSpec(replay=TraceSource(path="x")),
            {"arrivals": {"kind": "open", "rate_per_s": 2}},
            where="",
        ).arrivals.rate_per_s
        == 2
    )


def test_ranges_hold_for_specifications_made_in_code():
    made = WorkloadSpec(n_requests=-5, replay=TraceSource(path="x"))
    with pytest.raises(SpecError, match="n_requests: -5"):
        checked_workload(made)
    with pytest.raises(SpecError, match="n_requests: -5"):
        draw_workload(made)


def test_a_key_of_another_kind_of_table_is_not_suggested_in_its_own_place():
    """`low` is one of a uniform length, and was what to try instead of `low` of another."""
    text = CLASS.replace('kind = "constant", value', 'kind = "exponential", mean = 9, low')
    with pytest.raises(SpecError, match="unknown field `low`") as caught:
        workload_from_text(text, where="w.toml")
    assert caught.value.try_ is None
    assert "mean" in caught.value.allowed


def test_a_file_without_a_name_is_called_as_it_is_called(tmp_path):
    """Its title was "6 requests/s of workload"."""
    text = (
        "arrivals = { kind = 'open', rate_per_s = 1 }\n[[classes]]\nname = 'all'\n"
        "prompt_tokens = { kind = 'constant', value = 9 }\n"
        "output_tokens = { kind = 'constant', value = 9 }\n"
    )
    (tmp_path / "night.toml").write_text(text, encoding="utf-8")
    (tmp_path / "day.toml").write_text(f"name = 'shop'\n{text}", encoding="utf-8")
    assert read_workload(tmp_path / "night.toml").name == "night"
    assert read_workload(tmp_path / "day.toml").name == "shop"

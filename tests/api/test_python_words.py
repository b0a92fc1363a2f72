"""Errors and help for callers in Python: keyword arguments, not flags."""

import inspect
import re

import pytest

import inferometer as im
from inferometer.api import front
from inferometer.api.load_sending import LoadTest
from inferometer.api.python_calls import questions_of
from inferometer.api.python_words import in_python, own_flags
from inferometer.api.simulate import Simulate
from inferometer.errors import InferometerError

SIMULATED = own_flags(Simulate)


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("--hardware h100_sxm", "hardware='h100_sxm'"),
        ("--tp 2 --rate 5", "tp=2, rate=5"),
        (
            "--concurrency 256 --requests 256, all at once",
            "concurrency=256, requests=256, all at once",
        ),
        ("--slo 'ttft:p95<500ms, tpot:p95<50ms'", "slo='ttft:p95<500ms, tpot:p95<50ms'"),
        ("another folder with --out", "another folder with out="),
        (
            "--workload prompt=512,output=102..154, or --requests 60",
            "workload='prompt=512,output=102..154', or requests=60",
        ),
        ("inferometer simulate MODEL --tp 1,2, say", "im.simulate('MODEL', tp='1,2'), say"),
        ("the same command without --transfer", "the same call without transfer=True"),
        ("more --requests, or a longer --for", "more requests=, or a longer duration="),
        ("--for 60s", "duration='60s'"),
        ("--set policy=priority", "set={'policy': 'priority'}"),
        ("the server's own --enable-expert-parallel", "the server's own --enable-expert-parallel"),
        ("inferometer fit RUN", "im.fit('RUN')"),
        (
            "inferometer simulate MODEL --hardware ID --parts --set block_size=16; see docs",
            "im.simulate('MODEL', hardware='ID', parts=True, set={'block_size': 16}; see docs".replace(
                "}; see", "}); see"
            ),
        ),
        ("inferometer quick MODEL --max-num-seqs 3", "inferometer quick MODEL max_num_seqs=3"),
        ("inferometer size --help", "help(im.size)"),
        ("inferometer emulate MODEL", "inferometer emulate MODEL"),
        ("!inferometer load URL --rate 5", "!inferometer load URL --rate 5"),
    ],
)
def test_texts_for_the_command_line_are_translated(text, python):
    assert in_python(text, SIMULATED, questions_of(vars(front))) == python


@pytest.mark.parametrize(
    ("ask", "where", "try_"),
    [
        (lambda: im.predict("gpt2"), "hardware", "hardware='h100_sxm'"),
        (lambda: im.predict("gpt2", hardware="foo"), "hardware", "im.catalog('hardware')"),
        (lambda: im.predict(None, hardware="l4"), "predict()", None),
        (lambda: im.predict("nothing-like-it", hardware="l4"), "model", None),
        (
            lambda: im.simulate("gpt2", hardware="l4", router="roundrobin"),
            "router",
            "router='round-robin'",
        ),
        (
            lambda: im.simulate("gpt2", hardware="l4", set={"max_num_seq": 4}),
            "set",
            "set={'max_num_seqs': VALUE}",
        ),
        (
            lambda: im.simulate("gpt2", hardware="l4", rate=1, concurrency=2),
            "rate, concurrency",
            None,
        ),
        (lambda: im.study("nothing", "gpt2", hardware="l4"), "STUDY", "batch"),
        (lambda: im.study("batch", "gpt2", hardware="foo", tp=0), "tp", None),
        (lambda: im.diagnose("http://127.0.0.1:1", duration=3), "duration", "duration='60s'"),
    ],
)
def test_errors_name_keyword_arguments(ask, where, try_):
    with pytest.raises(InferometerError) as refused:
        ask()
    assert refused.value.where == where
    assert try_ is None or refused.value.try_ == try_
    assert "--" not in str(refused.value)


def test_the_help_of_every_function_has_its_keyword_arguments():
    for name in questions_of(vars(front)):
        text = getattr(im, name).__doc__
        assert "\nParameters\n----------\n" in text, name
        own = own_flags(questions_of(vars(front))[name])
        assert not [flag for flag in own if re.search(rf"(?<!-){flag}(?![-\w])", text)], name
    assert (
        "rate : float or several, above 0, optional\n    Requests per second" in im.simulate.__doc__
    )
    assert "rate : float, above 0, optional" in im.size.__doc__
    assert "header : dict, optional" in im.load.__doc__
    assert im.load.__doc__.index("Parameters") < im.load.__doc__.index("KeyboardInterrupt")


def test_what_stands_without_a_name_does_so_in_the_signature():
    """An editor marked ``read("run")`` as an error."""
    for function in (im.read, im.report, im.fit, im.sweep, im.watch, im.import_results):
        assert next(iter(inspect.signature(function).parameters.values())).kind == 1


def test_an_option_of_one_other_function_is_a_keyword_too():
    flags = {"--respect-eos": own_flags(LoadTest)["--respect-eos"]} | SIMULATED
    text = in_python("or --respect-eos where answers end", flags, {})
    assert text == "or respect_eos=True where answers end"


def test_the_repr_of_an_answer_is_its_title():
    """It was a megabyte of fields."""
    answer = im.predict("llama-3.1-8b", hardware="h100_sxm")
    assert (
        repr(answer)
        == f"<PredictAnswer: {' '.join(str(answer).split(chr(10) + chr(10))[0].split('✔')[0].split())}>"
    )
    assert repr(im.predict("llama-3.1-8b", hardware="h100_sxm", tp=[1, 2])).startswith(
        "<GridAnswer: "
    )


def test_an_answer_speaks_of_keyword_arguments_where_a_terminal_names_flags():
    """It named flags: "a larger --requests"."""
    words = {"hardware": "l4", "workload": "64x8", "rate": 1, "requests": 40}
    simulated = im.simulate("llama-3.1-8b", **words, slo="ttft:p95<150ms")
    text = str(simulated)
    assert "not simulated: network=DURATION" in text
    assert "im.sweep() on this device" in text
    assert "--network" not in text
    assert "inferometer" not in text
    assert "network=DURATION" in simulated._repr_html_()
    (page,) = simulated.pages()
    assert any("inferometer sweep" in caution.remedy for caution in page.cautions)  # a shared page
    changed = str(im.predict("llama-3.1-8b", hardware="l4", what_if=True))
    assert "quantization='int4': " in changed
    fewer = im.study("precision", "llama-3.1-8b", hardware="l4")
    assert "im.quality('MODEL', quantization=['fp8', 'int8', 'int4'])" in " ".join(
        str(fewer).split()
    )


def test_no_line_of_an_answer_is_cut_off():
    """A line that holds a command was cut off at the page's width."""
    answer = im.simulate("llama-3.1-8b", hardware="l4", workload="64x8", rate=1, requests=40)
    (caution,) = (one for one in answer.pages()[0].cautions if "inferometer" in one.remedy)
    end = caution.remedy.rpartition(" ")[2]
    assert f"im.{end}()" in str(answer)

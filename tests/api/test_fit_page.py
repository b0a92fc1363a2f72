"""Does the page of a fit to a served run say how far off the second half of its requests was?"""

from inferometer.api.fit_views import fit_page
from inferometer.api.fitted_steps import HeldOutStatistic, ServedFit
from inferometer.fit.published.efficiencies import published_steps
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec


def trust_of(held_out):
    engine = EngineSpec(dtype="bfloat16", device="cuda")
    model = published_steps(find_model("llama-3.1-8b"), engine, find_hardware("h100_sxm"), "vllm")
    page = fit_page(model, "fit.json", ServedFit(model=model, held_out=held_out))
    return next(line.text for line in page.lines if line.label == "TRUST")


def test_the_second_half_of_a_run_is_what_was_held_out():
    times_s = (("ttft", "p50", 0.2, 0.188), ("tpot", "p50", 0.05, 0.051), ("e2e", "mean", 10, 10))
    names = ("latency", "statistic", "measured_s", "simulated_s")
    said = trust_of(
        tuple(HeldOutStatistic(**dict(zip(names, one, strict=True))) for one in times_s)
    )
    assert "3 statistics of the second half of the requests" in said
    assert "median error 2 %" in said
    assert "worst -6.0% (TTFT p50)" in said


def test_without_one_the_errors_are_those_of_the_fit():
    assert "error on points held out" in trust_of(())

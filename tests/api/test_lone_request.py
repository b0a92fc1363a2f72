"""Do predict and simulate take the same time for one lone request, whatever spreads or changes its steps?"""

import pytest

import inferometer as im

LENGTHS = {"prompt": 512, "output": 128}
LONE = {"workload": "512x128", "concurrency": 1, "requests": 20}


def simulated(model, **words):
    latencies = im.simulate(model, **LONE, **words).levels[0].summary.latencies
    means = {one.latency: one.mean.seconds.value for one in latencies}
    return means["ttft"], means["tpot"]


def predicted(model, **words):
    answer = im.predict(model, **LENGTHS, **words)
    assert answer.basis == "published"
    assert answer.without_published is None
    return answer.fitted.ttft_s.value, answer.fitted.tpot_s.value


@pytest.mark.parametrize("n_stages", [1, 2, 3])
@pytest.mark.parametrize(
    ("model", "device"), [("llama-3.1-70b", "h100_sxm"), ("gpt-oss-120b", "l4")]
)
def test_pipeline_stages_take_published_step_times_in_both(model, device, n_stages):
    """predict answered by the datasheet, 40 % above the TTFT of the simulation."""
    words = {"hardware": device, "tp": 4, "pp": n_stages}
    assert predicted(model, **words) == pytest.approx(simulated(model, **words), rel=1e-6)


def test_waiting_for_the_first_stage_takes_other_micro_batches():
    """A lone request waited for micro-batches that nobody had sent."""
    words = {"model": "llama-3.1-70b", "hardware": "h100_sxm", "tp": 4, "datasheet": True}
    whole, lone = (
        im.predict(**words, **LENGTHS, pp=pp).datasheet.speeds.ttft_s.value for pp in (1, 2)
    )
    assert lone == pytest.approx(whole, rel=0.01)
    first, both = (
        im.predict(**words, **LENGTHS, pp=2, batch=batch).datasheet.speeds.ttft_s.value
        for batch in (1, 2)
    )
    front_end_s = 5e-3
    assert both - front_end_s == pytest.approx(1.5 * (first - front_end_s))


def test_drafts_take_published_step_times_in_both():
    drafts = ("num_speculative_tokens=4", "acceptance_fraction=0.8", "draft_method=ngram")
    words = {"model": "llama-3.1-8b", "hardware": "h100_sxm"}
    found = predicted(**words, speculative="4,0.8,0")
    # The last step of an answer drafts more than is left of it, and the next request waits for the
    # step that was then in flight, 1.2 ms longer than its way to the engine takes.
    ttft_s, tpot_s = simulated(**words, set=drafts)
    assert found[1] == pytest.approx(tpot_s, rel=0.03)
    assert 0 <= ttft_s - found[0] < 2e-3
    plain = predicted(**words)
    assert found[1] < 0.4 * plain[1]
    costly = predicted(**words, speculative="4,0.8,0.25")[1]
    assert costly - found[1] == pytest.approx(4 * 0.25 * plain[1] / 3.3616, rel=1e-3)


def test_a_link_that_the_device_has_and_a_window_keep_published_rows():
    words = {"model": "llama-3.1-70b", "hardware": "h100_sxm", "tp": 4}
    assert predicted(**words, link="nvlink") == predicted(**words)
    assert im.predict(**words, link="pcie4").without_published == "--link"
    windowed = im.predict(**words, prompt=8192, batch=32, attention_window=1024)
    whole = im.predict(**words, prompt=8192, batch=32)
    assert windowed.basis == whole.basis == "published"
    assert windowed.fitted.tpot_s.value < 0.9 * whole.fitted.tpot_s.value

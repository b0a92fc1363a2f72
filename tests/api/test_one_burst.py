"""What is answered where all requests come at once?"""

import inferometer as im
from inferometer.units import format_number


def test_a_burst_has_no_rate_of_windows_but_one_on_each_server_that_may_be_the_one():
    """Most of its time fewer and fewer requests are left: by windows it was 43 [0, 90] per second."""
    answer = im.simulate("llama-3.1-8b", hardware="h100_sxm", workload="batch", requests=200)
    likely = answer.levels[0].summary
    rate = likely.completed_requests_per_s
    assert (rate.low, rate.high) == (None, None)
    assert rate.method == "completed requests/s; of one burst"
    draws = [level.summary.completed_requests_per_s.value for level in answer.levels]
    shown = str(answer)
    assert f"[{format_number(min(draws))}, {format_number(max(draws))}]" in shown
    assert "(one burst)" in shown
    assert "200 at once of batch" in shown.splitlines()[0]
    assert likely.output_tokens_per_s.low is None
    again = im.simulate("llama-3.1-8b", hardware="h100_sxm", rate=5, requests=200)
    assert again.levels[0].summary.completed_requests_per_s.low is not None

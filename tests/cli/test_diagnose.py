"""What does `inferometer diagnose` refuse, and does it read a stored load test?"""

import pytest
from command_line import check_refused, run


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nothing-here",), 4, ("nothing-here",)),
        (("http://127.0.0.1:9",), 3, ("metrics cannot be read", "metrics page itself")),
        (("http://127.0.0.1:9", "--for", "1s"), 2, ("--for", "10 s or more")),
        (("http://127.0.0.1:9", "--slo", "fast"), 2, ("fast", "ttft:p95<500ms")),
        (("http://127.0.0.1:9", "--known", "seats=3"), 2, ("seats=3", "max_num_seqs")),
    ],
)
def test_what_cannot_be_is_refused(words, code, said, tmp_path):
    check_refused(run("diagnose", *words, folder=tmp_path), code, *said)

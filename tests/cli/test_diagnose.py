"""What does `inferometer diagnose` refuse, and does it read a stored load test?"""

import pytest
from command_line import check_refused, run

PAST = ("--prometheus", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nothing-here",), 4, ("nothing-here",)),
        (("http://127.0.0.1:9",), 3, ("metrics cannot be read", "metrics page itself")),
        (("http://127.0.0.1:9", "--for", "1s"), 2, ("--for", "10 s or more")),
        (("http://127.0.0.1:9", "--slo", "fast"), 2, ("fast", "ttft:p95<500ms")),
        (("http://127.0.0.1:9", "--known", "seats=3"), 2, ("seats=3", "max_num_seqs")),
        (("a:1", "--last", "5min"), 2, ("--last without --prometheus",)),
        (("a:1", *PAST, "--range", "yesterday"), 2, ("no range of times", "START..END")),
        (("a:1", *PAST, "--last", "2h"), 2, ("2 h 0 min of metrics", "up to 1 h")),
        (("a:1", *PAST), 3, ("Prometheus does not answer", "127.0.0.1:9")),
    ],
)
def test_what_cannot_be_is_refused(words, code, said, tmp_path):
    check_refused(run("diagnose", *words, folder=tmp_path), code, *said)

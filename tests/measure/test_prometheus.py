"""Is a range of times read as it is written?"""

import pytest

from inferometer.errors import SpecError
from inferometer.measure.prometheus import time_range

UTC_14_00 = 1_795_442_400.0


@pytest.mark.parametrize(
    ("text", "for_s"),
    [
        ("2026-11-23T14:00..14:20", 1200),
        ("2026-11-23T14:00Z..2026-11-23T14:20Z", 1200),
        ("2026-11-23T16:00+02:00..16:20:30", 1230),
        ("2026-11-23T14:00..2026-11-24T01:00+02:00", 9 * 3600),
    ],
)
def test_ranges(text, for_s):
    start_s, end_s = time_range(text, where="--range")
    assert (start_s, end_s - start_s) == (UTC_14_00, for_s)


@pytest.mark.parametrize(
    "text", ["", "14:00..14:20", "2026-11-23T14:00", "2026-11-23T14:00..13:00", "a..b"]
)
def test_what_is_no_range_is_refused(text):
    with pytest.raises(SpecError) as caught:
        time_range(text, where="--range")
    assert caught.value.where == "--range"

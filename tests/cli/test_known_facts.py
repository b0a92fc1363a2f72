"""Which facts of a server are taken from ``--known``, and which are refused?"""

import pytest

from inferometer.api.known_facts import known_facts, with_known
from inferometer.errors import SpecError
from inferometer.fit.loads.server import ReportedSettings


def test_names_are_those_of_vllm():
    known = known_facts(
        "num_gpu_blocks=2588,"
        " max_num_seqs=256,max_num_batched_tokens=2_048,block_size=32,max_model_len=4096"
    )
    assert known.limits == {
        "n_kv_blocks": 2587,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
    }
    assert (known.block_tokens, known.max_model_len) == (32, 4096)
    assert known_facts("enable_prefix_caching=off,async_scheduling=True").switches == {
        "enable_prefix_caching": False,
        "async_scheduling": True,
    }
    assert known_facts(None) == ReportedSettings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seats=4", "'seats=4'"),
        ("max_num_seqs", "'max_num_seqs'"),
        ("n_kv_blocks=4", "'n_kv_blocks=4'"),
        ("max_num_seqs=0", "max_num_seqs = '0'"),
        ("num_gpu_blocks=1", "num_gpu_blocks = '1'"),
        ("num_gpu_blocks=99999999999", "num_gpu_blocks = '99999999999'"),
        ("max_num_seqs=4.5", r"max_num_seqs = '4\.5'"),
        ("max_num_seqs=4,max_num_seqs=5", "named twice"),
        ("async_scheduling=maybe", "async_scheduling = 'maybe'"),
        ("", "''"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(SpecError, match=message) as refused:
        known_facts(text)
    assert refused.value.where == "--known"
    assert refused.value.allowed
    assert refused.value.try_


def test_what_the_server_reported_is_not_contradicted():
    reported = ReportedSettings(limits={"n_kv_blocks": 180}, block_tokens=128, max_model_len=1024)
    both = with_known(reported, known_facts("num_gpu_blocks=181,max_num_seqs=4"))
    assert both.limits == {"n_kv_blocks": 180, "max_num_seqs": 4}
    assert (both.block_tokens, both.max_model_len) == (128, 1024)
    with pytest.raises(SpecError, match="num_gpu_blocks = 100") as refused:
        with_known(reported, known_facts("num_gpu_blocks=100"))
    assert "181, as the server's log" in str(refused.value)

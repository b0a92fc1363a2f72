"""Do all plausible servers have KV blocks of their own, and does each of them start?"""

from dataclasses import replace

import pytest

from inferometer.api.server import fit_cautions
from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_levels import StepDraw, datasheet_levels
from inferometer.simulate.deployment import Knobs, deploy


def deployed(n_draws=0, **shared):
    """qwen3-32b on one H100: its weights leave room for 1,400 to 2,400 KV blocks."""
    model, hardware = find_model("qwen3-32b"), find_hardware("h100_sxm")
    engine = EngineSpec(dtype="bfloat16", device="cuda")
    levels = datasheet_levels(model, engine, hardware)
    draws = (StepDraw(steps=levels.likely, front_end_s=0.0),) * n_draws
    return deploy(model, engine, hardware, replace(levels, draws=draws), Knobs(shared={**shared}))


def test_slow_step_times_of_a_datasheet_come_with_few_kv_blocks():
    """Only the draws of published rows had KV blocks of their own: datasheets and `size` did not."""
    replica = deployed()
    fast, likely, slow = (
        replica.at(pace).config.n_kv_blocks for pace in ("fast", "likely", "slow")
    )
    assert slow < 0.9 * likely < likely < fast
    assert replica.kv_block_ends == (slow, fast)
    classed = replica.for_classes(("chat", "batch"))
    assert classed.at("slow").config.n_kv_blocks == slow
    assert (
        replica.at("slow").at("fast").config.n_kv_blocks == slow
    )  # one server, whatever the steps


def test_a_given_number_of_kv_blocks_is_that_of_all():
    replica = deployed(num_blocks=2000)
    assert {replica.at(pace).config.n_kv_blocks for pace in ("fast", "likely", "slow")} == {1999}
    assert (replica.kv_block_ends, replica.least_blocks) == ((1999, 1999), None)  # one is null


@pytest.mark.parametrize("n_draws", [0, 19])
def test_only_servers_that_start_with_the_context_are_plausible(n_draws):
    """Draws that are too small for --max-model-len silently became the likely server."""
    low, _ = deployed(n_draws).kv_block_ends
    replica = deployed(n_draws, max_model_len=16 * (low + 300))
    least, most = replica.kv_block_ends
    assert replica.least_blocks is not None
    assert low < replica.least_blocks <= least < replica.config.n_kv_blocks < most
    counts = [replica.at(case).config.n_kv_blocks for case in replica.cases[1:]]
    assert len(set(counts)) == len(counts)  # the likely number is not repeated
    (caution,) = (one for one in fit_cautions(replica) if one.code == "MAY_NOT_START")
    assert f"{16 * (low + 300):,} tokens needs {replica.least_blocks:,} KV blocks" in caution.text
    assert not [one for one in fit_cautions(deployed(n_draws)) if one.code == "MAY_NOT_START"]


def test_a_context_that_only_servers_with_more_blocks_than_likely_hold_is_theirs():
    """A server that ran on two RTX PRO 6000 was refused: its context was 1 % beyond the likely blocks."""
    plain = deployed(19)
    likely, (_, most) = plain.config.n_kv_blocks, plain.kv_block_ends
    replica = deployed(19, max_model_len=16 * (likely + 20))
    least, _ = replica.kv_block_ends
    assert likely < replica.least_blocks <= least + 1
    assert replica.config.n_kv_blocks == least
    (caution,) = (one for one in fit_cautions(replica) if one.code == "MAY_NOT_START")
    assert "fewer are likely, or just as many" in caution.text
    with pytest.raises(SpecError, match="KV"):
        deployed(19, max_model_len=16 * (most + 50))

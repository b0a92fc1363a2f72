"""Do tables of others become runs of the model that the command line names, and are runs told apart by what differs?"""

import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from inferometer.api import runs
from inferometer.api.runs import RunRequest, Runs, analyses_of
from inferometer.cli.flags import asks
from inferometer.errors import RecordError, SpecError

FIXTURES = Path(__file__).parents[1] / "records" / "fixtures"
PROMPTS, BATCHES = FIXTURES / "t1_prompt_axis.csv", FIXTURES / "t1_batch_axis.md"


def request_of(*words: object) -> RunRequest:
    """What the verbs get from these words."""
    seen: list[Runs] = []

    @click.command()
    @asks(Runs)
    def command(asked: Runs, **_printing: bool) -> None:
        seen.append(asked)

    outcome = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return runs.request_of(seen[0])


def test_a_table_becomes_a_run_of_what_was_named():
    (analysis,) = analyses_of(
        request_of(
            PROMPTS, "--model", "qwen2.5-3b", "--dtype", "float16", "--hardware", "a100_80gb_sxm"
        )
    )
    manifest = analysis.run.manifest
    assert manifest.model is not None
    assert manifest.plan is not None
    assert (manifest.model.model_id, manifest.plan.engine.dtype, manifest.plan.engine.device) == (
        "qwen2.5-3b",
        "float16",
        "cuda",
    )
    assert analysis.model is not None, analysis.why_no_model
    assert [summary.point.prompt_tokens for summary in analysis.points] == [128, 512, 2048, 4096]


def test_a_table_of_nothing_named_is_shown_without_a_model():
    (analysis,) = analyses_of(request_of(PROMPTS))
    assert analysis.model is None
    assert analysis.label == PROMPTS.name
    assert analysis.points[0].prefill_s is not None
    assert analysis.points[0].prefill_s.value == pytest.approx(34.79e-3)


def test_tables_side_by_side_are_called_by_their_files():
    analyses = analyses_of(request_of(PROMPTS, BATCHES, "--prompt", 128))
    assert [analysis.label for analysis in analyses] == [PROMPTS.name, BATCHES.name]
    assert {summary.point.prompt_tokens for summary in analyses[1].points} == {128}, (
        "where no column has it"
    )


def test_what_no_column_has_must_be_said():
    with pytest.raises(RecordError, match="--prompt"):
        analyses_of(request_of(BATCHES))


def test_a_model_without_a_number_format_is_no_fact():
    with pytest.raises(SpecError, match="number format"):
        analyses_of(request_of(PROMPTS, "--model", "qwen2.5-3b"))


def test_a_stored_run_needs_nothing_said(tmp_path):
    folder = shutil.copytree(FIXTURES / "version_1", tmp_path / "run")
    (analysis,) = analyses_of(request_of(folder))
    assert analysis.points


@pytest.mark.slow
def test_the_manifest_names_its_run(tmp_path):
    folder = shutil.copytree(FIXTURES / "version_1", tmp_path / "run")
    by_folder, by_manifest = (
        analyses_of(request_of(path))[0] for path in (folder, folder / "manifest.json")
    )
    assert by_manifest.points == by_folder.points

"""Are models and devices found by the words that people use for them?"""

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.catalog import (
    close_models,
    devices_named,
    find_hardware,
    load_models,
    models_named,
)
from inferometer.inputs.name_search import no_decoder
from inferometer.inputs.resolve import resolve_model


@pytest.mark.parametrize("text", ["llama 70b", "llama70b", "Llama-70B-Instruct"])
def test_the_newest_of_a_family_and_size_comes_first(text):
    assert close_models(text)[:2] == ("llama-3.3-70b", "llama-3.1-70b")


def test_words_of_a_name_choose_models_and_all_of_them_count():
    found = models_named("qwen 7b")
    assert "qwen2.5-7b" in found
    assert all("qwen" in one and "7b" in one for one in found)
    assert models_named("no such words") == ()


@pytest.mark.parametrize(
    ("text", "vendor"), [("mac", "apple"), ("nvidia", "nvidia"), ("tpu", "google")]
)
def test_devices_are_found_by_their_maker(text, vendor):
    found = devices_named(text)
    assert found
    assert {one.vendor.lower() for one in found} == {vendor}


def test_an_unknown_device_of_a_maker_names_some_of_its_devices():
    with pytest.raises(SpecError) as refused:
        find_hardware("mac")
    assert "apple_m1" in str(refused.value.try_)


@pytest.mark.parametrize(
    "name",
    [
        "bge-m3",
        "BAAI/bge-reranker-v2-m3",
        "Qwen/Qwen3-Embedding-8B",
        "bert-base-uncased",
        "whisper-large-v3",
    ],
)
def test_models_that_do_not_decode_are_refused_for_that_reason(name):
    with pytest.raises(SpecError, match="is not answered for"):
        resolve_model(name, load_format="dummy")


def test_no_model_of_the_catalogue_is_taken_for_an_encoder():
    assert not [one.model_id for one in load_models() if no_decoder(one.model_id)]

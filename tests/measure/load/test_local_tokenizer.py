"""Does a local tokenizer say where each token of an answer ends, so that chunks of several tokens are counted?"""

import pytest
from tests.records.load_frames import delta, request_frame, sse

from inferometer.errors import SpecError
from inferometer.measure.load.bodies import token_ends_of
from inferometer.records.answers import answer_of


@pytest.fixture
def path(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: i for i, word in enumerate(("[UNK]", "one", "two", "three"))}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(vocabulary, unk_token=next(iter(vocabulary)))
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path)


def test_where_tokens_end(path):
    assert token_ends_of(path)("one two  three") == [3, 7, 14]


def test_answers_are_counted_by_it(path):
    answer = answer_of(
        request_frame(sse(delta("one two"), delta(" thr"), delta("ee", "stop"), b"[DONE]")),
        token_ends_of(path),
    )
    assert [chunk.n_tokens for chunk in answer.chunks] == [2, 0, 1]
    assert (answer.output_tokens, answer.token_source) == (3, "tokenizer")


def test_no_tokenizer_is_said_so(tmp_path):
    with pytest.raises(SpecError, match="no such tokenizer"):
        token_ends_of(str(tmp_path))

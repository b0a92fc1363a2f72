import numpy as np
from hypothesis import given, strategies as st

from inferometer.inputs.types import SweepPoint
from inferometer.measure.engines.protocol import random_prompts


@given(
    prompt=st.integers(1, 64),
    batch=st.integers(1, 8),
    vocab=st.integers(4, 200_000),
    seed=st.integers(0, 2**31),
    repetition=st.integers(0, 50),
)
def test_prompts_have_the_shape_and_lie_in_the_vocabulary(prompt, batch, vocab, seed, repetition):
    ids = random_prompts(
        SweepPoint(prompt_tokens=prompt, batch_size=batch, gen_tokens=1),
        vocab_size=vocab,
        seed=seed,
        repetition=repetition,
    )
    assert ids.shape == (batch, prompt)
    assert ids.dtype == np.int64
    assert ids.min() >= 0
    assert ids.max() < vocab


def test_prompts_are_the_same_on_every_engine_and_new_in_every_repetition():
    point = SweepPoint(prompt_tokens=32, batch_size=2, gen_tokens=1)
    first, again, second = (
        random_prompts(point, vocab_size=50_000, seed=1, repetition=index) for index in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)

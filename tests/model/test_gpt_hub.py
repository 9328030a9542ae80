"""With the weights of KerasHub's GPT-2, Llama 3 and Mixtral, `model=gpt` gives their logits."""

import importlib.util

import pytest

from tests import forks


@pytest.mark.nightly
def test_the_transformer_equals_those_of_keras_hub() -> None:
    # An import would keep every later test of the session from being forked, see `tests.forks`.
    if importlib.util.find_spec("keras_hub") is None:
        pytest.skip("needs the extra hub")
    for apart, size in forks.answer("-m", "tests.model.gpt_hub_worker", timeout=1800).values():
        assert apart <= 1e-5 * size

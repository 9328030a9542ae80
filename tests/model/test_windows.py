"""Which keys local attention computes, and what share of all products these are."""

from __future__ import annotations

import numpy as np
import pytest

from runner.config.schema import ModelConfig
from runner.model import gpt_options, windows


def test_a_block_is_local_unless_it_is_the_last_of_so_many() -> None:
    assert [windows.is_local(index, 8, 3) for index in range(6)] == [True, True, False] * 2
    assert all(windows.is_local(index, 8, None) for index in range(6))
    assert not any(windows.is_local(index, None, None) for index in range(6))


@pytest.mark.parametrize(("tokens", "window"), [(16, 4), (16, 5), (17, 1), (640, 3), (10, 9)])
def test_chunks_have_every_query_once_and_every_key_of_its_window(tokens: int, window: int) -> None:
    chunks = windows.chunks(tokens, window)
    assert np.concatenate([np.arange(chunk.start, chunk.stop) for chunk in chunks]).tolist() == list(range(tokens))
    for chunk in chunks:
        assert chunk.first_key <= max(0, chunk.start - window + 1)
        # A GPU's fused attention with a mask needs even numbers.
        assert chunk.start % 2 == 0
        assert chunk.first_key % 2 == 0
    assert len(chunks) <= max(16, -(-tokens // window))


@pytest.mark.parametrize(("tokens", "window", "expected"), [(8192, 4096, 3 / 4), (8192, 1024, 15 / 64), (512, 512, 1)])
def test_windows_that_divide_a_row_leave_two_windows_of_keys_per_query(
    tokens: int, window: int, expected: float
) -> None:
    # 2 T W - W^2 of T^2: the first chunk has no window before it.
    assert windows.share(tokens, window) == expected


def test_global_blocks_compute_all_products() -> None:
    options = {"depth": 4, "window": 4096, "global_every": 2}
    shares = gpt_options.attention_shares(ModelConfig(gpt_options.TARGET, options), 8192)
    for index, expected in enumerate([0.75, 1.0, 0.75, 1.0]):
        assert shares[f"block_{index}"] == shares[f"block_{index}/attention/mix"] == expected
    assert shares["blocks"] == 0.875
    assert gpt_options.attention_shares(ModelConfig("my_models.build", options), 8192) == {}
    assert gpt_options.attention_shares(ModelConfig(gpt_options.TARGET, {"depth": 4, "window": None}), 8192) == {}

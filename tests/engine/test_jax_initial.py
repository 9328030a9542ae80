"""The engine `jax` places a model's values by shards: the very ones that a build of stock Keras has."""

from typing import Any

import pytest

from tests import forks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> Any:
    variables = {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
    return forks.answer("-m", "tests.engine.first_values", library="jax", **variables)


@pytest.mark.parametrize("model", ["drawn", "assigned", "given", "numpy_drawn"])
def test_values_are_those_of_a_whole_build_to_the_last_bit_and_the_model_holds_none(found: Any, model: str) -> None:
    other, held, _ = found[model]
    assert other == []
    assert held == []


def test_a_value_that_lies_elsewhere_is_read_a_device_s_part_at_a_time(found: Any) -> None:
    assert found["given"][2] == 16 * (1 << 15) // 8

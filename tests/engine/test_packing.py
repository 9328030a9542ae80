"""Which models are packed into one vector, and where a variable begins in it."""

from __future__ import annotations

from typing import Any

import pytest

from runner.engine.base import VariableInfo
from runner.engine.dtensor.packing import Packing, packing

SHAPES: dict[str, tuple[int, ...]] = {"d1/kernel": (784, 128), "d1/bias": (128,), "d2/bias": (10,), "d3/bias": (3,)}


def packed(
    shapes: dict[str, tuple[int, ...]] = SHAPES,
    dtype: str = "float32",
    axis: str | None = None,
    elementwise: bool = True,
) -> Packing | None:
    variables = {
        path: VariableInfo(shape, dtype, (axis, *[None] * len(shape[1:])), 0) for path, shape in shapes.items()
    }
    return packing(variables, 8, elementwise=elementwise)


def test_whole_float32_matrices_and_vectors_are_packed_in_their_order() -> None:
    assert packed() == Packing(tuple(SHAPES), tuple(SHAPES.values()), 8)


@pytest.mark.parametrize(
    "unfit",
    [
        {"shapes": {}},
        {"shapes": SHAPES | {"conv/kernel": (3, 3, 1, 8)}},
        {"shapes": {"d1/kernel": (8192, 8192)}},
        {"dtype": "bfloat16"},
        {"axis": "model"},
        {"elementwise": False},
    ],
    ids=["nothing trained", "a convolution's kernel", "many elements", "another dtype", "split", "a rule of norms"],
)
def test_other_variables_stay_by_themselves(unfit: dict[str, Any]) -> None:
    assert packed(**unfit) is None


def test_every_variable_begins_at_64_bytes_after_the_end_of_the_one_before() -> None:
    starts = Packing(tuple(SHAPES), tuple(SHAPES.values()), 8).starts
    assert starts == [0, 100352, 100480, 100496]
    assert all(start * 4 % 64 == 0 for start in starts)

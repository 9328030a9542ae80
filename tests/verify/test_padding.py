"""With `remainder=pad` the first point's batch ends in padding; what the padding holds can be exchanged."""

import numpy as np
import pytest

from runner.data.base import WEIGHT
from runner.verify.meshproof.rounding import Rounding
from runner.verify.points import compare, spread
from runner.verify.request import Request
from tests.configs import with_keys
from tests.engine import cases

POINTS = {"point1/step": np.asarray(1), "point2/step": np.asarray(0)}  # no loss was finite at point 0


def request(remainder: str, batch: int = 8) -> Request:
    made = with_keys(cases.config({"batch": 2}), {"dataset.remainder": remainder})
    return Request(made, cases.data(), 3, cases.batches(3, batch))


def test_the_batch_of_the_first_point_alone_ends_in_padding() -> None:
    sound = request("pad")
    given = sound.at_point(POINTS, 1).batches
    for weights in (given.weights, given.arrays[WEIGHT]):
        assert (weights[1] > 0).tolist() == [True] * 6 + [False] * 2
        assert weights[[0, 2]].all()
    assert sound.batches.weights.all()
    assert sound.batches.arrays[WEIGHT].all()
    assert sound.at_point(POINTS, 2) is sound
    drops = request("drop")
    assert drops.at_point(POINTS, 1) is drops


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_what_the_padding_holds_is_exchanged_and_nothing_else(batch: int) -> None:
    padded = request("pad", batch).at_point(POINTS, 1)
    other = padded.refilled(1).batches
    assert padded.batches.weights[1].any(), "never padding alone"
    np.testing.assert_array_equal(other.weights, padded.batches.weights)
    for name, array in padded.batches.arrays.items():
        same = (other.arrays[name] == array).reshape(3, batch, -1).all(axis=2)
        assert same[padded.batches.weights > 0].all()
        if name == "image":
            assert not same[padded.batches.weights == 0].any()


def test_a_step_that_other_padding_changes_fails_by_the_variable() -> None:
    end = {"d1/kernel": np.ones(3, np.float32), "optimizer/m/d1/kernel": np.zeros(3, np.float32)}
    sides = {"loss": np.ones(1, np.float32)} | {f"point1/start/{path}": value for path, value in end.items()}
    sides |= {f"point1/end/{path}": value for path, value in end.items()}
    again = {f"padding/{path}": value for path, value in end.items()}
    again["padding/optimizer/m/d1/kernel"] = np.nextafter(np.zeros(3, np.float32), np.float32(1))
    checks = compare(sides, spread(sides, [sides]), sides | again, Rounding(0.0))
    assert [check.passed for check in checks if check.kind == "padding"] == [True, False]
    assert [check.variable for check in checks if not check.passed] == ["d1/kernel"]

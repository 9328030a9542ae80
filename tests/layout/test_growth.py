"""What layouts and plans cost grows as the number of variables does; the campaign `growth` goes further."""

from __future__ import annotations

import math

import pytest

from tests.campaign.growth_base import Dimension
from tests.campaign.growth_layouts import DEEP, IN_PROCESS

# Beyond 512, for `re` keeps so many patterns.
_SIZES = (150, 1200)
# Costs that are linear came to 1.1 at most on two busy cores; each that was not came to 1.38 and more.
_MOST = 1.3


@pytest.mark.parametrize("dimension", IN_PROCESS, ids=lambda dimension: dimension.name.replace(" ", "_"))
def test_the_cost_is_proportional_to_the_number_of_variables(dimension: Dimension) -> None:
    small, large = (dimension.measure(size) for size in _SIZES)
    assert math.log(large / small) / math.log(_SIZES[1] / _SIZES[0]) < _MOST, (small, large)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("dimension", DEEP, ids=lambda dimension: dimension.name.replace(" ", "_"))
def test_a_deep_model_is_planned_in_the_time_of_a_shallow_one(dimension: Dimension) -> None:
    sizes = dimension.sizes
    seconds = [dimension.measure(size) for size in sizes]
    assert math.log(seconds[-1] / seconds[0]) / math.log(sizes[-1] / sizes[0]) < dimension.exponent, seconds

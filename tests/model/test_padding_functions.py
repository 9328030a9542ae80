"""Padding is rejected where a task's function would count it."""

import numpy as np
import pytest

from runner.errors import ConfigError
from runner.model import padding


@pytest.mark.parametrize(
    ("name", "seen", "is_rejected"),
    [
        ("loss", [1.0, 2.0, 3.0], False),
        ("loss", [1.0, 2.0, 3.0 + 1e-6], False),  # rounding of a sum in another order
        ("loss", [1.0, 2.0, 3.001], True),  # one row of padding among thousands
        ("loss", [1.0, 2.0, float("nan")], True),
        ("near", [1.0, 2.0, 3.1], True),
    ],
)
def test_a_function_whose_values_depend_on_padding_is_rejected(
    name: str, seen: list[float], is_rejected: bool
) -> None:
    unseen = {name: np.array([1.0, 2.0, 3.0])}
    if not is_rejected:
        padding.check_functions({name: np.array(seen)}, unseen)
        return
    with pytest.raises(ConfigError) as error:
        padding.check_functions({name: np.array(seen)}, unseen)
    which = "the loss" if name == "loss" else "metric near"
    assert str(error.value).startswith(f"dataset.remainder=pad: {which} of an example depends on other rows")
    assert "set dataset.remainder=drop" in str(error.value)

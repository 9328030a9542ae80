"""Values of untrusted JSON: nothing is converted, and an error names the place."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest

from runner.training.checkpoint.typed import MisfitError, flag, number, text, whole

VALUES: dict[str, object] = {
    "0": 0,
    "-1": -1,
    "2.0": 2.0,
    "NaN": math.nan,
    "a huge integer": 10**400,
    "true": True,
    "'1'": "1",
    "two lines": "a\nb",
    "null": None,
    "a list": [1],
}
finite = partial(number, finite=True)


@pytest.mark.parametrize(
    ("read", "accepted", "expected"),
    [
        (whole, {"0", "a huge integer"}, "an integer of at least 0"),
        (number, {"0", "-1", "2.0", "NaN"}, "a number"),
        (finite, {"0", "-1", "2.0"}, "a finite number"),
        (text, {"'1'"}, "a printable string"),
        (flag, {"true"}, "true or false"),
    ],
)
def test_a_value_of_another_type_is_rejected_by_its_place(
    read: Callable[[object, str], object], accepted: set[str], expected: str
) -> None:
    for name, value in VALUES.items():
        if name in accepted:
            # NaN equals nothing, itself included.
            assert str(read(value, "files.x")).removesuffix(".0") == str(value).removesuffix(".0")
        else:
            with pytest.raises(MisfitError, match=rf"^files\.x must be {expected}$"):
                read(value, "files.x")

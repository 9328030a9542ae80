"""Values of untrusted JSON: nothing is converted, and an error names the place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from runner.checkpoint.typed import (
    MisfitError,
    read,
)


@dataclass(frozen=True)
class Some:
    whole: int = 0
    number: float = 0.0
    text: str = ""
    flag: bool = False
    by_name: dict[str, tuple[int, ...]] = field(default_factory=dict)
    anything: dict[str, Any] = field(default_factory=dict)


VALUES: dict[str, object] = {
    "0": 0,
    "-1": -1,
    "2.0": 2.0,
    "NaN": math.nan,
    "true": True,
    "'1'": "1",
    "two lines": "a\nb",
    "a list": [1],
    "a mapping": {"a": [1, 2]},
    "a mapping of two lines": {"a\nb": [1]},
}


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("whole", {"0"}),
        ("number", {"0", "-1", "2.0", "NaN"}),
        ("text", {"'1'"}),
        ("flag", {"true"}),
        ("by_name", {"a mapping"}),
        ("anything", {"a mapping", "a mapping of two lines"}),
    ],
)
def test_a_value_of_another_type_is_rejected_by_its_place(name: str, accepted: set[str]) -> None:
    for case, value in VALUES.items():
        if case in accepted:
            assert read(Some, {name: value, "more": 1}, "it")
        else:
            with pytest.raises(MisfitError, match=name) as error:
                read(Some, {name: value}, "it")
            assert "\n" not in str(error.value)


def test_a_value_that_is_missing_is_rejected() -> None:
    @dataclass(frozen=True)
    class Needs:
        step: int

    with pytest.raises(MisfitError, match=r"it\.step is required"):
        read(Needs, {}, "it")

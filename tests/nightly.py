"""Tables of which some cases run with all tests, and the others in the nightly set."""

from collections.abc import Sequence
from typing import Any

import pytest


def nightly_except(always: Sequence[Any], cases: Sequence[Any]) -> list[Any]:
    """Returns the cases for `parametrize`, with the marker `nightly` on all but some.

    Args:
      always: the cases that run with all tests.
      cases: all cases; a tuple has a value for each of several parameters.
    """
    assert all(case in cases for case in always), "a case that always runs is not in the table"
    return [case if case in always else _nightly(case) for case in cases]


def _nightly(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.nightly)

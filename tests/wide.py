"""The marker `wide`: a parametrized test of which some cases run with README's command and the others as campaigns.

`@pytest.mark.wide(keep=["jax"])` names the ids of the cases that run with all tests; `@pytest.mark.wide(every=3)`
takes each third. A test that runs as a campaign only has `@pytest.mark.campaign`. CI runs the rest by
`python -m pytest -m campaign`.
"""

from __future__ import annotations

from collections import Counter

import pytest


def mark(items: list[pytest.Item]) -> None:
    """Marks as campaigns the cases that a `wide` marker leaves out.

    Raises:
      pytest.UsageError: a marker keeps a case that the test does not have.
    """
    places: Counter[str] = Counter()
    missing: dict[str, set[str]] = {}
    for item in items:
        marker = item.get_closest_marker("wide")
        if marker is None:
            continue
        test, _, case = item.nodeid.partition("[")
        case = case.removesuffix("]")
        keep = marker.kwargs.get("keep")
        if keep is not None:
            is_kept = case in keep
            missing.setdefault(test, set(keep)).discard(case)
        else:
            is_kept = places[test] % marker.kwargs["every"] == 0
        places[test] += 1
        if not is_kept:
            item.add_marker("campaign")
    # A single case that is asked for by its id is no list with a gap.
    unknown = {test: cases for test, cases in missing.items() if cases and places[test] > 1}
    if unknown:
        raise pytest.UsageError(f"pytest.mark.wide keeps cases that do not exist: {unknown}")

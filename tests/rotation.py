"""The marker `rotates`: a campaign of which each state of the code runs some cases, and `--whole` all.

`@pytest.mark.rotates(every=4)` runs each fourth case; of a list of three, three states of the code in four run one.
With `by=["engine"]`, the cases of each value of the test's parameter `engine` are such a list of their own, of which
at least one case runs: what a test is about, such as the engine or the kind, is named there, so that none is left out.
Which cases run depends on the digest of the runner's code, options and pinned versions alone (see `tests.digests`): it
is the same on every machine and in every order, and differs with the next change of the code. So the whole table runs
in the course of some commits, and a failure stays until the code changes.

The campaigns of a file that have no such marker are one case of a list of such files, of which each eighth runs. A
test with `rotates(every=1)` runs at every state of the code: it is a campaign so that README's test command is short.

With `over="trained"`, cases with the same value of the parameter `trained` run together or not at all, in all tests of
the file: that is for a fixture which computes much for each of its values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests import digests

MARKER = "rotates"
# One of how many files runs whose campaigns have no marker.
EVERY_FILE = 8
_CASE = pytest.StashKey["Case"]()


@dataclass(frozen=True)
class Case:
    """A case of a list of which some run.

    Attributes:
      name: of the list.
      place: of the case in it, from 0.
      length: of the list.
      every: one of how many runs.
      at_least_one: whether one case runs at each state though the list has fewer than `every`.
    """

    name: str
    place: int
    length: int
    every: int
    at_least_one: bool = False

    def runs(self, state: str) -> bool:
        """Returns whether it runs at a state of the code, given by a digest."""
        digest = hashlib.sha256(f"{state} {self.name}".encode()).digest()
        turns = min(self.every, self.length) if self.at_least_one else self.every
        first = int.from_bytes(digest[:8], "big") % turns
        return self.place % self.every == first


def mark(items: list[pytest.Item]) -> None:
    """Notes the place of each campaign's case in its list.

    Raises:
      pytest.UsageError: `by` or `over` names no parameter of the test.
    """
    lists: dict[str, list[object]] = {}
    places: dict[pytest.Item, tuple[str, int]] = {}
    campaigns = [item for item in items if item.get_closest_marker("campaign") is not None]
    marked = [item for item in campaigns if item.get_closest_marker(MARKER) is not None]
    unmarked = [item for item in campaigns if item.get_closest_marker(MARKER) is None]
    _mark_files(unmarked)
    for item in marked:
        marker = item.get_closest_marker(MARKER)
        assert marker is not None
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        by, over = marker.kwargs.get("by", []), marker.kwargs.get("over")
        unknown = {*by, over} - {*parameters, None}
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: pytest.mark.rotates names {unknown}, of {[*parameters]}")
        value: object
        if over is None:
            name = " ".join([item.nodeid.partition("[")[0], *(str(parameters[name]) for name in by)])
            value = item.nodeid
        else:
            name = f"{_file(item)} {over}"
            value = parameters[over]
        values = lists.setdefault(name, [])
        if value not in values:
            values.append(value)
        places[item] = (name, values.index(value))
    for item, (name, place) in places.items():
        marker = item.get_closest_marker(MARKER)
        assert marker is not None
        item.stash[_CASE] = Case(
            name, place, len(lists[name]), int(marker.kwargs["every"]), at_least_one="by" in marker.kwargs
        )


def _mark_files(campaigns: list[pytest.Item]) -> None:
    """Notes the place of each file in the list of those that have campaigns without the marker."""
    files = sorted({_file(item) for item in campaigns})
    for item in campaigns:
        item.stash[_CASE] = Case("files", files.index(_file(item)), len(files), EVERY_FILE, at_least_one=True)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def state_of_code() -> str:
    """Returns the digest of all of the runner."""
    return digests.digest(("runner", "hydra_plugins"), ())


def skip_others(item: pytest.Item, state: Callable[[], str] = state_of_code) -> None:
    """Skips a case that does not run at this state of the code, unless it is asked for by its id.

    It is called as a test is set up, since the digest takes seconds, and most sessions have no such test.
    """
    case = item.stash.get(_CASE, None)
    asked_for = {argument.partition("::")[2] for argument in item.config.args}
    if case is None or item.nodeid.partition("::")[2] in asked_for:
        return
    if not case.runs(state()):
        pytest.skip(f"one of {case.every} cases runs, by the digest of the code; --whole runs all")

"""A run is named in every command by the same rule."""

from __future__ import annotations

import pytest

from runner.cli.runs.records import RunRecord, pick, tracked
from runner.errors import ConfigError
from runner.tracking.store import open_store

NAMES = {"ab1": "x", "ab2": "x", "c12": "ab1", "d": "c"}
RECORDS = [RunRecord(run_id, name, "FINISHED", {}, {}) for run_id, name in NAMES.items()]


@pytest.mark.parametrize(
    ("text", "run_id"),
    [
        ("ab1", "ab1"),  # a complete id, although a run has it for a name
        ("x", "ab1"),  # the newest of two
        ("c", "d"),  # a name, although an id begins so
        ("c1", "c12"),
        ("ab2", "ab2"),
    ],
)
def test_an_id_comes_before_a_name_and_that_before_the_start_of_an_id(text: str, run_id: str) -> None:
    assert pick(text, RECORDS).run_id == run_id


@pytest.mark.parametrize(
    ("text", "problem"),
    [("ab", "several run ids start"), ("zz", "no run has"), ("", "no run has"), ("X", "no run has")],
)
def test_a_text_that_names_none_or_several_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        pick(text, RECORDS)


def test_a_store_is_searched_by_the_same_rule(uri: str) -> None:
    store = open_store(uri, "tests")
    ids = {}
    for name in ("a_b", "axb"):
        ids[name] = store.client.create_run(store.experiment_id, run_name=name).info.run_id
    # By the start of another run's id: the name wins.
    start = ids["axb"][:6]
    ids[start] = store.client.create_run(store.experiment_id, run_name=start).info.run_id
    for name, run_id in ids.items():
        assert pick(name, tracked(store)).run_id == run_id
        assert pick(run_id, tracked(store)).run_id == run_id
    with pytest.raises(ConfigError, match=r"^run=a%b: no run has this id or name "):
        pick("a%b", tracked(store))

"""A run is named in every command by the same rule."""

import pytest

from runner.cli.runs.records import RunRecord, pick
from runner.errors import ConfigError

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

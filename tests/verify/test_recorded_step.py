"""What a run has recorded of a step: where a replay starts, and which keys make a difference."""

from __future__ import annotations

import numpy as np
import pytest

from runner.checkpoint.metric_history import (
    Restore,
    empty,
)
from runner.checkpoint.runs import SavedRun
from runner.errors import ConfigError
from runner.verify import replay as record
from runner.verify.replay import _difference


def test_only_keys_that_change_a_step_are_differences() -> None:
    before = {"mesh": {"axes": {"batch": 4}}, "tracking": {"name": "mlflow"}, "trainer": {"checkpoint": {"keep": 1}}}
    now = {"mesh": {"axes": {"batch": 8}}, "tracking": {"name": "none"}, "trainer": {"checkpoint": {"keep": 2}}}
    assert record.config_differences(before, now) == {"mesh.axes.batch": (4, 8)}


def test_how_fast_a_run_reads_its_data_is_no_difference() -> None:
    before = {
        "dataset": {"workers": 0, "prefetch": 2, "batch_size": 8},
        "sweep": {"jobs": 1},
        "trainer": {"on_nan": "stop"},
    }
    now = {
        "dataset": {"workers": 4, "prefetch": 9, "batch_size": 9},
        "sweep": {"jobs": 2},
        "trainer": {"on_nan": "continue"},
    }
    assert record.config_differences(before, now) == {"dataset.batch_size": (8, 9)}


def test_an_axis_that_only_one_mesh_has_is_a_difference() -> None:
    before = {"mesh": {"axes": {"batch": 4}}}
    now = {"mesh": {"axes": {"batch": 4, "model": 2}}}
    assert record.config_differences(before, now) == {"mesh.axes.model": (None, 2)}
    assert record.config_differences(now, before) == {"mesh.axes.model": (2, None)}


@pytest.mark.parametrize(
    ("start", "part"),
    [
        (10, "replay.start=10: must be a checkpoint before step 10; run a has 20, 40"),
        (7, "replay.start=7: must be a checkpoint before step 10; run a has 20, 40"),
    ],
)
def test_an_impossible_start_is_invalid(tmp_path, start: int, part: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=r".") as raised:
        record._start(SavedRun(tmp_path, {"run": "a"}), [20, 40], 10, start, empty([]))
    assert part in str(raised.value)


def test_without_a_checkpoint_before_the_step_the_run_is_computed_from_its_beginning(tmp_path) -> None:  # type: ignore[no-untyped-def]
    run = SavedRun(tmp_path, {"run": "a"})
    assert record._start(run, [20, 40], 20, None, empty([])) is None
    branch = SavedRun(tmp_path, {"run": "a", "origin": "b@10"})
    with pytest.raises(ConfigError, match="branched from b@10"):
        record._start(branch, [20, 40], 15, None, empty([]))
    history = empty([])
    history.restores.append(Restore(8, 5, 0.5))
    with pytest.raises(ConfigError, match="restored a checkpoint"):
        record._start(run, [20, 40], 15, None, history)


def test_a_difference_is_of_values_and_not_of_their_dtype() -> None:
    one = np.array([1.0, np.nan], np.float32)
    assert _difference("variable", "w", 3, one, one.astype(np.float64)) == []
    assert _difference("variable", "w", 3, one, one.copy()) == []
    (found,) = _difference("variable", "w", 3, np.array([2.0, -4.0], np.float32), np.array([2.0, -4.5], np.float32))
    assert (found.largest, found.relative) == (0.5, 0.125)
    (is_nan,) = _difference("variable", "w", 3, np.zeros(2), np.array([0.0, np.nan]))
    assert np.isnan(is_nan.largest)

"""What a run has recorded of a step: where a replay starts, and which keys make a difference."""

import numpy as np
import pytest

from runner.checkpoint.metric_history import empty
from runner.checkpoint.runs import SavedRun
from runner.errors import ConfigError
from runner.verify import parting
from runner.verify import replay as record


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"tracking": {"name": "mlflow"}}, {"tracking": {"name": "none"}}, {}),
        ({"trainer": {"checkpoint": {"keep": 1}}}, {"trainer": {"checkpoint": {"keep": 2}}}, {}),
        ({"trainer": {"on_nan": "stop"}}, {"trainer": {"on_nan": "continue"}}, {}),
        ({"dataset": {"prefetch": 2}}, {"dataset": {"prefetch": 9}}, {}),
        ({"dataset": {"batch_size": 8}}, {"dataset": {"batch_size": 9}}, {"dataset.batch_size": (8, 9)}),
        # An axis that only one mesh has.
        ({"mesh": {"axes": {}}}, {"mesh": {"axes": {"model": 2}}}, {"mesh.axes.model": (None, 2)}),
        ({"mesh": {"axes": {"model": 2}}}, {"mesh": {"axes": {}}}, {"mesh.axes.model": (2, None)}),
    ],
)
def test_only_keys_that_change_a_step_are_differences(
    before: dict[str, object], now: dict[str, object], expected: dict[str, object]
) -> None:
    assert record.config_differences(before, now) == expected


@pytest.mark.parametrize("start", [10, 7])
def test_an_impossible_start_is_invalid(tmp_path, start: int) -> None:  # type: ignore[no-untyped-def]
    said = rf"^replay\.start={start}: must be a checkpoint before step 10; run a has 20, 40"
    with pytest.raises(ConfigError, match=said):
        record._start(SavedRun(tmp_path, {"run": "a"}), [20, 40], 10, start)


def test_without_a_checkpoint_before_the_step_the_run_is_computed_from_its_beginning(tmp_path) -> None:  # type: ignore[no-untyped-def]
    run = SavedRun(tmp_path, {"run": "a"})
    assert record._start(run, [20, 40], 20, None) is None
    branch = SavedRun(tmp_path, {"run": "a", "origin": "b@10"})
    with pytest.raises(ConfigError, match="branched from b@10"):
        record._start(branch, [20, 40], 15, None)


def test_a_difference_is_of_values_and_not_of_their_dtype(tmp_path) -> None:  # type: ignore[no-untyped-def]
    one = np.array([1.0, np.nan], np.float32)
    saved = {"same": one, "wide": one, "far": np.array([2.0, -4.0], np.float32), "nan": np.zeros(2)}
    again = {"same": one.copy(), "wide": one.astype(np.float64), "far": np.array([2.0, -4.5]), "nan": one}
    recorded = record.RecordedStep(SavedRun(tmp_path, {"run": "a"}), 3, None, saved, empty([]), 3, {})  # type: ignore[arg-type]
    compared, (is_nan, far) = record.compare(recorded, empty([]), again)
    assert compared == {"metric": 0, "variable": 4}
    assert (far.name, far.difference, far.relative) == ("far", 0.5, 0.125)
    assert is_nan.name == "nan"


def test_runs_part_where_a_bit_differs_and_the_models_own_variables_come_first() -> None:
    one, other = (record.digests({"d1/kernel": np.array([1e20, last], np.float32)}) for last in (1.0, 2.0))
    assert parting.differing(one | {"ema/d1/kernel": "a"}, other) == ["d1/kernel", "ema/d1/kernel"]
    assert parting.differing(one, dict(one)) == []

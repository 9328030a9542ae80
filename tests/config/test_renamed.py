from __future__ import annotations

import pytest

from runner.cli.command_line import arranged
from runner.config import renamed
from runner.training.checkpoint.arguments import without


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dataset.eval=test", "dataset.test=test"),
        ("dataset.eval='test[:100]'", "dataset.test='test[:100]'"),
        ("++dataset.eval=test", "++dataset.test=test"),
        ("dataset.eval_batch_size=8", "dataset.eval_batch_size=8"),
        ("model.eval=dataset.eval=3", "model.eval=dataset.eval=3"),
    ],
)
def test_a_renamed_key_is_taken_by_its_old_name_and_no_other_is_touched(old: str, new: str) -> None:
    assert renamed.argument(old) == new


def test_the_number_of_devices_has_a_short_key() -> None:
    assert arranged(["devices=64"]) == ["advise.devices=64"]


def test_old_names_are_taken_on_a_command_line_and_in_a_config() -> None:
    assert arranged(["dataset.eval='test[:9]'"]) == ["dataset.test='test[:9]'"]
    defaults = {"test": "test"}
    assert renamed.group("dataset", {"test": "test", "eval": "test[:9]"}, defaults) == {"test": "test[:9]"}
    assert renamed.group("dataset", {"eval": "test[:9]"}, defaults) == {"test": "test[:9]"}
    assert renamed.group("trainer", {"eval": 1}, {}) == {"eval": 1}


def test_a_typed_value_wins_over_the_old_name_in_a_preset() -> None:
    typed = {"test": "test[:5]", "eval": "test[:9]"}
    assert renamed.group("dataset", typed, {"test": "test"}) == {"test": "test[:5]"}


def test_a_key_typed_again_wins_over_the_same_one_recorded_under_its_old_name() -> None:
    recorded = ["dataset=digits", "dataset.eval='test[:9]'", "dataset.eval_batch_size=8"]
    assert without(recorded, ["dataset.test"]) == ["dataset=digits", "dataset.eval_batch_size=8"]
    assert without(recorded, []) == ["dataset=digits", "dataset.test='test[:9]'", "dataset.eval_batch_size=8"]

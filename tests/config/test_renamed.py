from __future__ import annotations

import pytest

from runner.cli import command_line
from runner.cli.command_line import arranged
from runner.config import renamed
from runner.errors import ConfigError
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


@pytest.mark.parametrize(
    ("module", "short", "full", "fix"),
    [
        ("runner.advise", "devices=64", "advise.devices=64", "set mesh=batch8"),
        ("runner.replay", "step=9", "replay.step=9", "set trainer.steps=100"),
        ("runner.generate", "prompt=Once", "generate.prompt=Once", "set task.sample.prompt"),
    ],
)
def test_a_command_has_its_own_short_keys_and_rejects_those_of_others(
    module: str, short: str, full: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "command_module", lambda: module)
    assert arranged([short]) == [full]
    assert arranged([full]) == [full]
    for other in ("runner", "runner.plan"):
        monkeypatch.setattr(command_line, "command_module", lambda other=other: other)
        assert arranged([full]) == [full]
        with pytest.raises(ConfigError, match=f"only python -m {module} has this key; {fix}"):
            arranged([short])


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

"""How callbacks are made, and what the loop calls; `tests.parity` compares events and logs with those of `fit`."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from runner.engine import listeners
from runner.errors import ConfigError, EngineError
from runner.train.callbacks import Callbacks
from tests.numpy_engine import NumpyEngine
from tests.training.test_loop import STEPS, by_steps, config, train


def test_batches_end_at_each_interval_of_an_epoch_and_at_its_end(tmp_path: Path) -> None:
    report = Mock()
    train(by_steps(7, 5), NumpyEngine(), tmp_path, callbacks=Callbacks([("", report)], 3))
    report.set_params.assert_called_once_with({"verbose": 0, "epochs": 2, "steps": 5})
    called = [f"{name} {arguments[0]}" for name, arguments, _ in report.method_calls if name.startswith("on_")]
    assert called[:-1] == [
        *("on_train_begin {}", "on_epoch_begin 0", "on_train_batch_begin 0", "on_train_batch_end 2"),
        *("on_train_batch_begin 3", "on_train_batch_end 4", "on_epoch_end 0"),
        *("on_epoch_begin 1", "on_train_batch_begin 0", "on_train_batch_end 1", "on_epoch_end 1"),
    ]
    assert called[-1].startswith("on_train_end {'accuracy'")


@pytest.mark.parametrize(("every", "evaluated"), [(1, [STEPS, 2 * STEPS]), (9, [2 * STEPS])])
def test_a_stop_ends_the_run_after_the_epoch_and_evaluates_it(tmp_path: Path, every: int, evaluated: Any) -> None:
    def stop_in_the_second_epoch(*_: Any, **__: Any) -> None:
        model = report.set_model.call_args.args[0]
        model.history = report  # as Keras's History does
        model.stop_training = report.on_epoch_begin.call_count == 2

    engine, report = NumpyEngine(), Mock()
    report.on_train_batch_end.side_effect = stop_in_the_second_epoch
    run = config(epochs=9, evaluate_every=every)
    result, seen = train(run, engine, tmp_path, callbacks=Callbacks([("", report)], STEPS))
    assert (result.taken, result.ended) == (2 * STEPS, f"a callback stopped the run after step {2 * STEPS}")
    assert report.on_train_end.call_count == 1
    assert [step for step, _ in seen.of("eval/loss")] == evaluated
    assert [outputs for _, outputs in engine.evaluated][-1], "the report needs them"


def test_a_callback_that_fails_ends_the_run_with_its_line_and_none_is_called_after_it(tmp_path: Path) -> None:
    def steer(*_: Any) -> None:
        bad.set_model.call_args.args[0].optimizer.learning_rate = 0.1

    bad, report = Mock(), Mock()
    bad.on_epoch_begin.side_effect = steer
    error = r"a\[0\]: Mock.on_epoch_begin raised .*can't set model.optimizer.learning_rate .*callbacks.py:\d+ in steer"
    with pytest.raises(EngineError, match=error):
        train(config(), NumpyEngine(), tmp_path, callbacks=Callbacks([("a[0]", bad), ("", report)]))
    assert report.method_calls[-1][0] == "on_train_begin"


def test_what_steers_or_is_no_callback_or_fails_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    early = type("EarlyStopping", (Mock,), {"__module__": "keras.src.early"})(patience=5)
    (tmp_path / "seen_by_user.py").write_text("class Seen:\n    def __init__(self, path):\n        open(path)\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = {"_target_": "seen_by_user.Seen", "path": "nowhere"}
    for entries, given, error in (
        (
            [],
            [early],
            r"callbacks\[0\]=keras.src.early.EarlyStopping: callbacks only read here, .*_stopping.patience=5",
        ),
        ([], [Mock(), 3], r"callbacks\[1\]=int: is no callback; derive it from keras.callbacks.Callback"),
        ([made], [], r"trainer.callbacks\[0\]._target_=seen_by_user.Seen: raised FileNotFound.*seen_by_user.py:3 in"),
    ):
        with pytest.raises(ConfigError, match=error):
            listeners.make(entries, given)

"""A state that can't be written is not taken for saved: not as the last, and not as the best."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoint import storage
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.storage import BestRecord, Content
from runner.cluster.team import ProcessError, Team
from runner.config.schema import CheckpointConfig, EarlyStoppingConfig
from runner.errors import Interrupted
from tests.numpy_engine import NumpyEngine
from tests.training import test_loop
from tests.training.checkpoint import test_resumed_loop as resumed
from tests.training.checkpoint.test_storage import file_of

FULL = OSError(28, "No space left on device")
STEPS = test_loop.STEPS


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns what makes the disk full for the steps that a function names, each time that it is asked."""
    write = storage.write

    def fill(fails: Callable[[int], bool], error: Exception = FULL) -> None:
        def full(folder: Path, content: Content, team: Team) -> Path:
            if fails(content.step):
                raise error
            return write(folder, content, team)

        monkeypatch.setattr(storage, "write", full)

    return fill


def train(folder: Path, **trainer: Any) -> tuple[Any, test_loop.Seen, NumpyEngine]:
    engine = NumpyEngine(accuracies=trainer.pop("accuracies", None))
    result, seen = test_loop.train(test_loop.config(**trainer), engine, folder)
    return result, seen, engine


def test_an_unsaved_last_state_is_reported_with_the_newest_checkpoint(tmp_path: Path, disk: Any) -> None:
    disk(lambda step: step > STEPS)
    result, seen, _ = train(tmp_path, epochs=3, checkpoint=CheckpointConfig(every_steps=STEPS))
    assert result.unsaved == (
        f"the state of step 30 could not be saved ([Errno 28] No space left on device); free space in {tmp_path} or "
        f"make it writable, then continue from step 10 with resume={tmp_path}"
    )
    assert any("could not write the checkpoint of step 20" in line for line in seen.said)


def test_the_loss_of_a_process_is_not_reported_twice(tmp_path: Path, disk: Any) -> None:
    disk(lambda step: step == 20, ProcessError("process 1 has not answered for 15 s"))
    result, seen, _ = train(tmp_path, epochs=3)
    assert not any("could not write" in line for line in seen.said)
    assert result.unsaved is None, "the next one was written"


def test_the_last_state_is_tried_again_and_stays_the_best(tmp_path: Path, disk: Any) -> None:
    tries: list[int] = []
    disk(lambda step: tries.append(step) or (tries.count(20) == 1 and step == 20))  # type: ignore[func-returns-value]
    result, _, _ = train(tmp_path, accuracies=[0.5, 0.7])
    assert result.unsaved is None
    assert storage.read_best(tmp_path) == BestRecord("eval/accuracy", 0.7, 20)


EARLY = EarlyStoppingConfig("eval/accuracy", patience=9)


def test_an_unsaved_best_is_not_recorded_as_the_best(tmp_path: Path, disk: Any) -> None:
    disk(lambda step: step == 20)
    result, seen, engine = train(tmp_path, epochs=3, accuracies=[0.7, 0.9, 0.6], early_stopping=EARLY)
    assert storage.read_best(tmp_path) == BestRecord("eval/accuracy", 0.7, 10)
    assert result.taken == 10
    assert engine.w == float(Checkpoint(storage.place(tmp_path, 10))["d1/w"])
    assert "warning: the best evaluation, of step 20, has no checkpoint" in seen.said
    assert "using the weights of step 10, the best evaluation that has a checkpoint" in seen.said
    assert result.unsaved.startswith("the state of step 20 could not be saved ([Errno 28]")


def test_the_last_weights_are_used_if_they_are_better_than_a_stale_best(tmp_path: Path, disk: Any) -> None:
    disk(lambda step: step in (20, 30))
    result, _, _ = train(tmp_path, epochs=4, accuracies=[0.5, 0.9, 0.91, 0.8], early_stopping=EARLY)
    assert result.taken == 40
    assert storage.read_best(tmp_path) == BestRecord("eval/accuracy", 0.8, 40)
    assert result.unsaved.startswith("the state of step 30 could not be saved"), "which was better"


def test_the_next_improvement_becomes_the_best_after_an_unsaved_one(tmp_path: Path, disk: Any) -> None:
    disk(lambda step: step == 20)
    result, seen, _ = train(tmp_path, epochs=3, accuracies=[0.5, 0.9, 0.7])
    assert result.unsaved is None, "the last state is saved"
    assert seen.tags["runner.unsaved"].startswith("the state of step 20 could not be saved")
    assert any("warning: the best evaluation has no checkpoint: the state of step 20" in line for line in seen.said)
    assert storage.read_best(tmp_path) == BestRecord("eval/accuracy", 0.7, 30)


def test_a_damaged_best_is_reported_and_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = storage.write

    def damages(folder: Path, content: Content, team: Team) -> None:
        written = write(folder, content, team)
        if content.step == 10:
            file_of(written, "arrays-00000.safetensors").write_bytes(b"")

    monkeypatch.setattr(storage, "write", damages)
    result, seen, _ = train(tmp_path, accuracies=[0.9, 0.6], early_stopping=EARLY)
    assert result.taken == 20
    assert any("arrays-00000.safetensors has 0 bytes" in line for line in seen.said)


def test_an_interruption_reports_an_unsaved_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Any) -> None:
    disk(lambda _: True)
    monkeypatch.setattr(pytest, "fail", str)  # takes warnings
    with pytest.raises(
        Interrupted, match=r"ended by signal 15; the state of step \d+ could not be saved .*start the run again"
    ):
        resumed.train(resumed.make_config(None), resumed.Store(), tmp_path, calls=2)

"""A run that is resumed from before its end: its later checkpoints are removed, and never mix with the new ones."""

from pathlib import Path

import numpy as np
import pytest

from runner.checkpoint import storage
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.saver import Saver
from runner.config.schema import CheckpointConfig
from tests.training.checkpoint.numpy_engine import NumpyEngine
from tests.training.checkpoint.test_resumed_loop import Killed, Store, make_config, train
from tests.training.checkpoint.test_storage import content


def at(folder: Path, step: int) -> Checkpoint:
    return Checkpoint(storage.place(folder, step))


def saver(folder: Path, start: int) -> Saver:
    config = CheckpointConfig(keep=1)
    return Saver(config, folder, lambda step, _: content(step), pytest.fail, start)


def die_after(folder: Path, start: int, points: int, every: int = 5) -> None:
    """Resumes from a step at another learning rate, and dies after so many points."""
    store = Store(dies_at=points)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NumpyEngine.__init__, "__defaults__", (0.05,))
        with pytest.raises(Killed):
            train(make_config(every, keep=99, window=1), store, folder, at(folder, start))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    train(make_config(5, keep=99), Store(), tmp_path)
    assert {5, 10, 15, 20, 24} <= set(storage.steps(tmp_path))
    return tmp_path


def test_the_later_checkpoints_are_removed_when_training_continues(folder: Path) -> None:
    old = at(folder, 15)["d/kernel"]
    die_after(folder, 10, 30)  # in step 18 or so, saved at 15
    assert storage.steps(folder)[-1] == 15
    assert not np.array_equal(at(folder, 15)["d/kernel"], old)


def test_a_crash_before_the_first_save_continues_from_the_step_that_was_named(folder: Path) -> None:
    die_after(folder, 10, 0)
    assert storage.steps(folder)[-1] == 10
    best = storage.read_best(folder)
    assert best is None or best.step <= 10


def test_a_damaged_checkpoint_after_the_resumed_one_is_replaced(folder: Path) -> None:
    (storage.place(folder, 24) / "checkpoint.json").write_text("{")
    assert not {24} & saver(folder, 20)._steps
    train(make_config(5, keep=99), Store(), folder, at(folder, 20))
    assert at(folder, 24).step == 24


def test_a_folder_with_only_the_name_of_a_checkpoint_does_not_displace_a_valid_one(folder: Path) -> None:
    storage.place(folder, 999).mkdir()
    genuine = storage.steps(folder)
    storage.place(folder, 5).rename(folder / "swap")
    storage.place(folder, 10).rename(storage.place(folder, 5))
    (folder / "swap").rename(storage.place(folder, 10))
    kept = saver(folder, 24)
    assert not {5, 10, 999} & kept._steps
    kept._steps -= set(kept._remove_old())
    assert {5, 10, 24} <= set(storage.steps(folder)) < set(genuine)

"""A state that is too large to be held twice is written array by array, while training waits."""

import gc
import hashlib
import logging
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import safetensors.numpy

from runner.checkpoint import saver, storage, tensors
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.recorder import MetricRecorder
from runner.checkpoint.saver import Saver, take_state
from runner.checkpoint.storage import Content
from runner.config.schema import CheckpointConfig
from runner.engine.base import Shard
from runner.engine.common import Engine
from tests.training.checkpoint.numpy_engine import ABOUT


@pytest.fixture(autouse=True)
def collects_only_what_a_test_makes() -> Iterator[None]:
    """Leaves all that the session has made out of the collections of a test, which would take seconds each."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class OnDevice:
    """An array that NumPy copies to the host; tells how many of the copies are there together."""

    copies: ClassVar[list[weakref.ref[Any]]] = []
    most: ClassVar[int] = 0

    def __init__(self, value: float, size: int = 1000) -> None:
        self.value, self.shape, self.dtype, self.nbytes = value, (size,), np.dtype("float32"), 4 * size

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        class Copy(np.ndarray):
            pass

        found = np.full(self.shape, self.value, np.float32).view(Copy)
        gc.collect()
        OnDevice.copies.append(weakref.ref(found))
        OnDevice.most = max(OnDevice.most, sum(each() is not None for each in OnDevice.copies))
        return found


class Split:
    """An engine of variables that are split over two devices."""

    def __init__(self) -> None:
        self.value = 1.0

    def shards(self) -> dict[str, list[Shard]]:
        return {
            f"v{number}": [Shard((start,), cast(Any, OnDevice(self.value)), (2000,)) for start in (0, 1000)]
            for number in range(5)
        }


def test_the_safetensors_library_reads_the_files(tmp_path: Path) -> None:
    arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.arange(5, dtype=np.float64),
        "whole": np.array(7, np.int64),
        "empty": np.zeros((0, 3), np.float32),
        "flag": np.array([True, False]),
        "turned": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    }
    told = tensors.write(tmp_path / "file", arrays)
    data = (tmp_path / "file").read_bytes()
    read = safetensors.numpy.load(data)
    assert set(read) == set(arrays)
    for key, value in arrays.items():
        assert read[key].dtype == value.dtype
        np.testing.assert_array_equal(read[key], value, strict=True)
    assert told == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_bfloat16_is_restored(tmp_path: Path) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    value = np.arange(6).astype(bfloat16).reshape(3, 2)
    folder = storage.write(tmp_path, Content(1, {"w": [Shard((0, 0), value, (3, 2))]}, {}, ABOUT))
    found = Checkpoint(folder)["w"]
    assert found.dtype == bfloat16
    np.testing.assert_array_equal(found, value)


def test_arrays_are_copied_to_the_host_one_at_a_time(tmp_path: Path) -> None:
    OnDevice.most = 0
    written = storage.write(tmp_path, Content(2, Split().shards(), {}, ABOUT, passing=True))
    assert OnDevice.most <= 2, "one is written while the next is brought"
    assert all((Checkpoint(written)[f"v{number}"] == 1).all() for number in range(5))


def test_training_does_not_wait_for_arrays_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver, "MOST_COPIED", 0)
    held = {"v": [Shard((0,), np.ones(1000, np.float32), (1000,))]}
    engine, history = SimpleNamespace(shards=lambda: held), MetricRecorder(lambda *_: None, 1, lambda _: 0.1)
    assert not take_state(cast(Engine, engine), ABOUT)(3, history).passing


@pytest.mark.parametrize(("most", "waits"), [(0, True), (1 << 30, False)])
def test_training_waits_for_a_state_that_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, waits: bool
) -> None:
    monkeypatch.setattr(saver, "MOST_COPIED", most)
    engine, seen, write = Split(), list[bool](), storage.write

    def noted(folder: Path, content: Content, *rest: Any) -> Path:
        pieces = [shard.array for shards in content.shards.values() for shard in shards]
        seen.append(all(isinstance(piece, OnDevice) for piece in pieces))
        return write(folder, content, *rest)

    monkeypatch.setattr(storage, "write", noted)
    keeps = Saver(CheckpointConfig(), tmp_path, take_state(cast(Engine, engine), ABOUT), pytest.fail)
    history = MetricRecorder(lambda *_: None, 1, lambda _: 0.1)
    keeps.save(3, history)
    if waits:
        assert storage.steps(tmp_path) == [3], "the next step gives the state's memory away"
    keeps.close()
    assert storage.steps(tmp_path) == [3]
    assert seen == [waits]
    assert (Checkpoint(storage.place(tmp_path, 3))["v4"] == 1).all()


def test_a_failed_write_keeps_no_state_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    class Values(np.ndarray):
        """An array that can be referenced weakly."""

    monkeypatch.setattr(storage, "write", full)
    values = np.ones(1000, np.float32).view(Values)
    reference = weakref.ref(values)
    contents = [Content(3, {"v": [Shard((0,), values, (1000,))]}, {}, ABOUT)]
    logging.disable(logging.CRITICAL)  # pytest would keep the error, whose traceback has the state
    try:
        keeps = Saver(CheckpointConfig(), tmp_path, lambda *_: contents.pop(), lambda _: None)
        keeps.save(3, MetricRecorder(lambda *_: None, 1, lambda _: 0.1))
        keeps.close()
    finally:
        logging.disable(logging.NOTSET)
    del values
    gc.collect()
    assert reference() is None

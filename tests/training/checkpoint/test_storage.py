"""A checkpoint comes back as it was written, and one whose bytes have changed does not come back."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.checkpoint import files, manifest, metric_history, runs, storage
from runner.checkpoint.files import DamagedError
from runner.checkpoint.places import Place
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.runs import SavedRun
from runner.checkpoint.storage import Content
from runner.cluster import process
from runner.engine.base import Shard

WHOLE = np.arange(24, dtype=np.float32).reshape(6, 4)
ABOUT = {"run": "r", "config": {"a": {"b": [1, None, 1e-7]}}, "seed": 1, "versions": {"numpy": np.__version__}}
PAST = metric_history.empty(["accuracy"])
PAST.train.append((2, {"loss": 0.1, "accuracy": np.nan}))
HISTORY = metric_history.to_json(PAST)


def split(array: np.ndarray, rows: int, columns: int) -> list[Shard]:
    """Cuts a matrix into a grid of shards, as a mesh of that shape holds it."""
    return [
        Shard((int(i[0]), int(j[0])), array[np.ix_(i, j)], array.shape)
        for i in np.array_split(np.arange(array.shape[0]), rows)
        for j in np.array_split(np.arange(array.shape[1]), columns)
    ]


def content(step: int = 3, run: str = "r", **about: object) -> Content:
    shards = {
        "d1/kernel": split(WHOLE, 2, 2),
        "optimizer/m/d1/kernel": [Shard((0, 0), WHOLE * 2, WHOLE.shape)],
        "step": [Shard((), np.array(7, np.int64), ())],
    }
    return Content(step, shards, HISTORY, {**ABOUT, "run": run, **about})


def register(
    folder: Place,
    run: str,
    *,
    tracked: bool = False,
    overrides: Sequence[str] = (),
    name: str | None = None,
    lasting: Mapping[str, object] = MappingProxyType({}),
) -> SavedRun:
    """Records a run of this process, as `attempts.begin` does; `name` is that of its folder."""
    own_folder = folder / (name or run)
    files.make_folder(own_folder)
    record = {"run": run, "tracked": tracked, "overrides": list(overrides), "process": process.identity()}
    record |= {"started": time.time(), **lasting}
    runs.write_record(own_folder, record)
    return SavedRun(own_folder, record)


def end(run: SavedRun, *, finished: bool = False) -> None:
    """Records that a run has ended, as its process does."""
    runs.write_record(run.folder, {**run.record, "ended": True, "finished": finished})


def file_of(written: Place, name: str) -> Path:
    """The file of a checkpoint on a disk."""
    assert isinstance(written, Path)
    return written / name if name == manifest.NAME else written / manifest.read(written).files_folder / name


def test_arrays_history_and_metadata_are_restored(tmp_path: Path) -> None:
    written = storage.write(tmp_path, content())
    found = Checkpoint(written)
    assert (found.step, found.about["config"]) == (3, {"a": {"b": [1, None, 1e-7]}})
    assert set(found) == {"d1/kernel", "optimizer/m/d1/kernel", "step"}
    np.testing.assert_array_equal(found["d1/kernel"], WHOLE)
    np.testing.assert_array_equal(found["optimizer/m/d1/kernel"], WHOLE * 2)
    assert (found["step"].shape, found["step"].dtype, int(found["step"])) == ((), np.int64, 7)
    assert found["d1/kernel"].dtype == np.float32
    assert (found.shape("d1/kernel"), len(found)) == ((6, 4), 3)
    np.testing.assert_equal(metric_history.to_json(found.history()), HISTORY)


def test_what_is_read_is_what_was_verified(tmp_path: Path) -> None:
    found = Checkpoint(storage.write(tmp_path, content()))
    assert storage.remove(tmp_path, 3)
    assert "d1/kernel" in found
    assert "d2/kernel" not in found
    np.testing.assert_array_equal(found["d1/kernel"], WHOLE)


@given(rows=st.integers(1, 6), columns=st.integers(1, 4))
def test_any_sharding_is_restored(tmp_path_factory: pytest.TempPathFactory, rows: int, columns: int) -> None:
    written = storage.write(
        tmp_path_factory.mktemp("split"), Content(1, {"w": split(WHOLE, rows, columns)}, HISTORY, ABOUT)
    )
    np.testing.assert_array_equal(Checkpoint(written)["w"], WHOLE)


def test_no_file_has_the_whole_of_a_sharded_variable(tmp_path: Path) -> None:
    from safetensors import safe_open

    with safe_open(file_of(storage.write(tmp_path, content()), manifest.ARRAYS), framework="numpy") as file:
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118 - not a mapping
    assert [shape for key, shape in shapes.items() if key.startswith("d1/kernel")] == [[3, 2]] * 4


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def edit(path: Path) -> None:
    text = path.read_text()
    path.write_text(text.replace('"step": 3', '"step": 4') if '"step": 3' in text else text + " ")


@pytest.mark.parametrize(
    ("name", "damage", "shown"),
    [
        ("arrays-00000.safetensors", flip, "SHA-256 mismatch"),
        ("arrays-00000.safetensors", cut, "bytes"),
        ("arrays-00000.safetensors", Path.unlink, "is missing"),
        ("history.json", flip, "SHA-256 mismatch"),
        ("checkpoint.json", edit, "corrupted"),
        ("checkpoint.json", cut, "can't be read"),
        ("checkpoint.json", Path.unlink, "is missing"),
    ],
)
def test_damage_is_detected_in_every_file(
    tmp_path: Path, name: str, damage: Callable[[Path], None], shown: str
) -> None:
    written = storage.write(tmp_path, content())
    path = file_of(written, name)
    damage(path)
    if name == "checkpoint.json" and damage is cut:
        path.write_text(path.read_text()[:-5])
    with pytest.raises(DamagedError, match=shown) as refused:
        Checkpoint(written)
    assert name in str(refused.value)


def test_an_unfinished_folder_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write(tmp_path, content(1))

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        storage.write(tmp_path, content(2))
    assert storage.steps(tmp_path) == [1]
    assert len(list(tmp_path.iterdir())) == 2
    assert len(list(storage.place(tmp_path, 2).rglob("*"))) == 3
    storage.clean(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    assert Checkpoint(storage.place(tmp_path, 1)).step == 1


def test_a_step_that_is_saved_again_replaces_its_checkpoint(tmp_path: Path) -> None:
    storage.write(tmp_path, content())
    storage.write(tmp_path, Content(3, {"w": [Shard((0,), np.ones(1), (1,))]}, HISTORY, ABOUT))
    assert list(Checkpoint(storage.place(tmp_path, 3))) == ["w"]
    assert len(list(tmp_path.rglob("*"))) == 5


def test_file_modes_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        written = storage.write(tmp_path, content())
    finally:
        os.umask(before)
    made = [path for path in written.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in made} == {0o640}


def test_foreign_files_are_never_removed(tmp_path: Path) -> None:
    written = storage.write(tmp_path, content())
    assert isinstance(written, Path)
    files_folder = file_of(written, manifest.ARRAYS).parent
    foreign = ("notes.txt", "mine/checkpoint.json")
    (written / "mine").mkdir()
    for name in foreign:
        (written / name).write_text("of the user")
    (written / "abcdef0123").symlink_to(files_folder)
    storage.clean(tmp_path)
    assert Checkpoint(written).step == 3
    assert storage.remove(tmp_path, 3)
    assert storage.steps(tmp_path) == []
    assert {path.relative_to(written).as_posix() for path in written.rglob("*") if path.is_file()} == set(foreign)


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    storage.write(tmp_path, content(1))
    monkeypatch.setattr(files, "_write_synced", full)
    with pytest.raises(OSError, match="No space left"):
        storage.write(tmp_path, content(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_a_process_that_dies_while_it_replaces_a_checkpoint_leaves_the_old_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write(tmp_path, content())

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    for name, run in (("write", "r"), ("remove_folder", "new")):
        with monkeypatch.context() as patch:
            patch.setattr(files, name, dies)
            with pytest.raises(KeyboardInterrupt):
                storage.write(tmp_path, content(run="new"))
        assert Checkpoint(storage.place(tmp_path, 3)).about["run"] == run
        storage.clean(tmp_path)
        assert len(list(tmp_path.rglob("*"))) == 5
        assert Checkpoint(storage.place(tmp_path, 3)).about["run"] == run


def test_a_process_that_dies_while_it_removes_a_checkpoint_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write(tmp_path, content())

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storage, "_clean_step", dies)
        with pytest.raises(KeyboardInterrupt):
            storage.remove(tmp_path, 3)
    assert storage.steps(tmp_path) == []
    storage.clean(tmp_path)
    assert list(tmp_path.iterdir()) == []

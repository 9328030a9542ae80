"""A checkpoint comes back as it was written, and one whose bytes have changed does not come back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.base import Shard
from runner.errors import ConfigError
from runner.training import metric_history
from runner.training.checkpoint import files, index, storage
from runner.training.checkpoint.files import DamagedError
from runner.training.checkpoint.reading import Checkpoint
from runner.training.checkpoint.storage import Content

WHOLE = np.arange(24, dtype=np.float32).reshape(6, 4)
ABOUT = {
    "run": "r",
    "config": {"a": {"b": [1, None, 1e-7]}},
    "seed": 1,
    "versions": {"numpy": np.__version__},
    "saved_at": "2024-01-01T00:00:00+0000",
    "metrics": {"eval/loss": 0.1, "train/loss": float("nan")},
}
PAST = metric_history.empty(["accuracy"])
PAST.train.append((2, {"loss": 0.1, "accuracy": np.nan}))
HISTORY = metric_history.to_arrays(PAST)


def split(array: np.ndarray, rows: int, columns: int) -> list[Shard]:
    """Cuts a matrix into a grid of shards, as a mesh of that shape holds it."""
    return [
        Shard((int(i[0]), int(j[0])), array[np.ix_(i, j)], array.shape)
        for i in np.array_split(np.arange(array.shape[0]), rows)
        for j in np.array_split(np.arange(array.shape[1]), columns)
    ]


def content(step: int = 3, run: str = "r") -> Content:
    shards = {
        "d1/kernel": split(WHOLE, 2, 2),
        "optimizer/m/d1/kernel": [Shard((0, 0), WHOLE * 2, WHOLE.shape)],
        "step": [Shard((), np.array(7, np.int64), ())],
    }
    return Content(step, shards, HISTORY, {**ABOUT, "run": run})


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
    np.testing.assert_array_equal(found.history()["train"], content().history["train"])
    assert found.history()["open"].shape == (0,)


def test_membership_tests_read_no_array(tmp_path: Path) -> None:
    found = Checkpoint(storage.write(tmp_path, content()))
    for path in found.folder.glob("*.safetensors"):
        path.unlink()
    assert "d1/kernel" in found
    assert "d2/kernel" not in found
    with pytest.raises(DamagedError):
        found["d1/kernel"]


@given(rows=st.integers(1, 6), columns=st.integers(1, 4))
def test_any_sharding_is_restored(tmp_path_factory: pytest.TempPathFactory, rows: int, columns: int) -> None:
    written = storage.write(
        tmp_path_factory.mktemp("split"), Content(1, {"w": split(WHOLE, rows, columns)}, {"train": WHOLE}, ABOUT)
    )
    np.testing.assert_array_equal(Checkpoint(written)["w"], WHOLE)


def test_no_file_has_the_whole_of_a_sharded_variable(tmp_path: Path) -> None:
    from safetensors import safe_open

    with safe_open(storage.write(tmp_path, content()) / "arrays-00000.safetensors", framework="numpy") as file:
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
        ("history.safetensors", flip, "SHA-256 mismatch"),
        ("checkpoint.json", edit, "corrupted"),
        ("checkpoint.json", cut, "can't be read"),
        ("checkpoint.json", Path.unlink, "is missing"),
    ],
)
def test_damage_is_detected_in_every_file(
    tmp_path: Path, name: str, damage: Callable[[Path], None], shown: str
) -> None:
    written = storage.write(tmp_path, content())
    damage(written / name)
    if name == "checkpoint.json" and damage is cut:
        (written / name).write_text((written / name).read_text()[:-5])
    with pytest.raises(DamagedError, match=shown) as refused:
        Checkpoint(written)
    assert name in str(refused.value)


def test_a_newer_format_is_rejected_by_its_number(tmp_path: Path) -> None:
    written = storage.write(tmp_path, content())
    manifest = json.loads((written / "checkpoint.json").read_text())
    (written / "checkpoint.json").write_text(json.dumps({**manifest, "format": 99, "news": True}))
    with pytest.raises(ConfigError, match="has format 99, but this version of the runner reads format 3"):
        Checkpoint(written)


def test_an_unfinished_folder_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write(tmp_path, content(1))

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_synced", dies)
    with pytest.raises(KeyboardInterrupt):
        storage.write(tmp_path, content(2))
    assert storage.steps(tmp_path) == [1]
    assert len(list(tmp_path.iterdir())) == 2
    storage.clean(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    assert Checkpoint(storage.place(tmp_path, 1)).step == 1


def test_a_step_that_is_saved_again_replaces_its_checkpoint(tmp_path: Path) -> None:
    storage.write(tmp_path, content())
    storage.write(tmp_path, Content(3, {"w": [Shard((0,), np.ones(1), (1,))]}, {"train": WHOLE}, ABOUT))
    assert list(Checkpoint(storage.place(tmp_path, 3))) == ["w"]
    assert len(list(tmp_path.iterdir())) == 1


def test_file_modes_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        written = storage.write(tmp_path, content())
        index.write_best(tmp_path, {"metric": "eval/loss", "value": 0.1, "step": 3})
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in [*written.iterdir(), tmp_path / index.BEST_FILE]} == {0o640}


def test_foreign_files_are_never_removed(tmp_path: Path) -> None:
    written = storage.write(tmp_path, content())
    (written / "notes.txt").write_text("of the user")
    assert not storage.remove(tmp_path, 3)
    for name in (".unfinished-000000007-1", ".unfinished-000000008-1-old", ".unfinished-mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "checkpoint.json").touch()
        (tmp_path / name / "thesis.txt").touch()
    (tmp_path / ".unfinished-000000009-1").symlink_to(written)
    storage.clean(tmp_path)
    assert len(list(tmp_path.rglob("thesis.txt"))) == 3
    assert (tmp_path / ".unfinished-mine" / "checkpoint.json").exists()
    assert Checkpoint(written).step == 3


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    storage.write(tmp_path, content(1))
    monkeypatch.setattr(files, "write_synced", full)
    with pytest.raises(OSError, match="No space left"):
        storage.write(tmp_path, content(2))
    with pytest.raises(OSError, match="No space left"):
        index.write_best(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_a_process_that_dies_while_it_replaces_a_checkpoint_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write(tmp_path, content())
    rename, renames = Path.rename, []

    def dies(self: Path, target: Path) -> Path:
        renames.append(target)
        if len(renames) == 2:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", dies)
    with pytest.raises(KeyboardInterrupt):
        storage.write(tmp_path, content())
    monkeypatch.undo()
    assert storage.steps(tmp_path) == [3]
    assert Checkpoint(storage.place(tmp_path, 3)).step == 3
    storage.clean(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000003"]
    assert Checkpoint(storage.place(tmp_path, 3)).step == 3


def test_anything_else_in_a_checkpoints_place_is_set_aside(tmp_path: Path) -> None:
    storage.place(tmp_path, 3).mkdir()
    (storage.place(tmp_path, 3) / "thesis.txt").touch()
    assert Checkpoint(storage.write(tmp_path, content())).step == 3
    assert (tmp_path / "aside-step-000000003" / "thesis.txt").exists()


@pytest.mark.parametrize(
    "name",
    ["step-3", "step-\u00b2\u00b2\u00b2\u00b2\u00b2\u00b2\u00b2\u00b2\u00b2", "step-0000000030", "step--00000001"],
)
def test_other_names_are_no_checkpoints(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert storage.steps(tmp_path) == []


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        ({"metric": "eval/loss", "value": 0.1, "step": 4}, "no checkpoint of step 4"),
        ({"metric": "eval/loss", "value": 0.2, "step": 3}, "has another value of eval/loss"),
        ({"metric": "eval/loss", "value": True, "step": 3}, "must be a number"),
        ({"metric": "eval/loss", "value": 0.1, "step": "3"}, "must be an integer"),
        ({"value": 0.1, "step": 3}, "lacks metric"),
    ],
)
def test_an_invalid_record_of_the_best_is_damage(tmp_path: Path, record: dict[str, object], shown: str) -> None:
    storage.write(tmp_path, content())
    assert index.read_best(tmp_path) is None
    index.write_best(tmp_path, record)
    with pytest.raises(DamagedError, match=shown):
        index.read_best(tmp_path)

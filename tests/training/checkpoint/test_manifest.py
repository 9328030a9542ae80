"""A manifest is a claim: typed, complete, of its own folder, and true of every element of every array."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoint import manifest, storage
from runner.checkpoint.files import DamagedError
from runner.checkpoint.reading import Checkpoint
from runner.errors import ConfigError
from tests.training.checkpoint.test_storage import content, file_of


def forge(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Changes a manifest, and makes its digest fit."""
    found = json.loads((folder / manifest.NAME).read_text())
    found.pop("sha256")
    edit(found)
    manifest.write(folder, found)


def whole(found: dict[str, Any]) -> Any:
    return found["arrays"]["d1/kernel"]


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "no parts": lambda found: whole(found).update(parts=[]),
    "a part too few": lambda found: whole(found)["parts"].pop(),
    "a part outside": lambda found: whole(found)["parts"][0].update(start=[100, 0]),
    "a part before the start": lambda found: whole(found)["parts"][0].update(start=[-3, 0]),
    "another array's tensor": lambda found: found["arrays"]["step"]["parts"][0].update(key="optimizer/m/d1/kernel"),
    "a part of another shape": lambda found: whole(found)["parts"][0].update(shape=[2, 3]),
    "a huge shape": lambda found: whole(found).update(shape=[10**9, 10**9]),
    "another dtype": lambda found: whole(found).update(dtype="int32"),
    "an object dtype": lambda found: whole(found).update(dtype="object"),
    "a dtype that runs": lambda found: whole(found).update(dtype="O,i4"),
    "no files": lambda found: found.update(files={}),
    "a file outside": lambda found: whole(found)["parts"][0].update(file="../x.safetensors"),
    "an absolute file": lambda found: found["files"].update({"/etc/hostname": found["files"]["history.json"]}),
    "a file too many": lambda found: found["files"].update({"x": found["files"]["history.json"]}),
    "no step": lambda found: found.pop("step"),
    "no config": lambda found: found.pop("config"),
    "a true step": lambda found: found.update(step=True),
    "a step of 3.0": lambda found: found.update(step=3.0),
    "another step": lambda found: found.update(step=4),
    "a format in words": lambda found: found.update(format="1"),
    "a size that is NaN": lambda found: found["files"]["history.json"].update(bytes=float("nan")),
    "a best in words": lambda found: found.update(best={"eval/loss": "low"}),
    "an encoding in words": lambda found: found.update(encoding="none"),
    "constants in words": lambda found: found.update(constants={"scale": ["1.0"]}),
}


@pytest.mark.parametrize("edit", FORGED.values(), ids=FORGED)
def test_a_forged_manifest_is_damaged_whatever_its_digest_says(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    written = storage.write(tmp_path, content())
    forge(written, edit)
    with pytest.raises(DamagedError, match="step-000000003") as refused:
        dict(Checkpoint(written))
    assert "\n" not in str(refused.value)


def test_changes_without_meaning_are_no_damage(tmp_path: Path) -> None:
    written = storage.write(tmp_path, content())
    forge(written, lambda found: found.update(note="of a later version"))
    path = written / manifest.NAME
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert Checkpoint(written).step == 3


@pytest.mark.parametrize("name", ["checkpoint.json", "arrays-00000.safetensors", "history.json"])
@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "device"])
def test_only_regular_files_are_opened(tmp_path: Path, name: str, kind: str) -> None:
    written = storage.write(tmp_path, content())
    outside = tmp_path / "outside"
    path = file_of(written, name)
    path.rename(outside)  # so that a link would lead to the very bytes
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else outside)
    with pytest.raises(DamagedError, match=f"{name} is not a regular file"):
        Checkpoint(written)


def test_a_huge_file_is_rejected_before_it_is_read(tmp_path: Path) -> None:
    written = storage.write(tmp_path, content())
    os.truncate(written / manifest.NAME, 1 << 40)  # takes no room
    with pytest.raises(DamagedError, match="is larger than"):
        Checkpoint(written)


def test_a_checkpoint_must_be_of_the_step_in_its_folders_name(tmp_path: Path) -> None:
    first, second = (storage.write(tmp_path, content(step)) for step in (3, 4))
    first.rename(tmp_path / "swap")
    second.rename(first)
    (tmp_path / "swap").rename(second)
    with pytest.raises(DamagedError, match="step-000000003 holds the checkpoint of step 4"):
        Checkpoint(first)
    assert not storage.remove(tmp_path, 3)
    assert not storage.remove(tmp_path, 4)
    assert storage.steps(tmp_path) == [3, 4]


def test_a_link_to_a_checkpoint_is_no_checkpoint(tmp_path: Path) -> None:
    elsewhere = storage.write(tmp_path / "elsewhere", content())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / elsewhere.name).symlink_to(elsewhere)
    with pytest.raises(DamagedError, match="is not a folder"):
        Checkpoint(tmp_path / "run" / elsewhere.name)
    assert not storage.remove(tmp_path / "run", 3)
    assert Checkpoint(elsewhere).step == 3


@pytest.mark.parametrize("other", [-1, 1])
def test_another_format_is_rejected_and_not_reported_as_damage(tmp_path: Path, other: int) -> None:
    written = storage.write(tmp_path, content())
    forge(written, lambda found: found.update(format=storage.FORMAT + other))
    with pytest.raises(ConfigError, match="use the version that wrote it") as refused:
        Checkpoint(written)
    assert not isinstance(refused.value, DamagedError)

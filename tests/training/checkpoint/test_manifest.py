"""A manifest is a claim: typed, complete, of its own folder, and true of every element of every array."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.checkpoint import (
    manifest,
    storage,
)
from runner.checkpoint.files import DamagedError
from runner.checkpoint.manifest import covers
from runner.checkpoint.reading import Checkpoint
from runner.errors import ConfigError
from tests.training.checkpoint.test_storage import content, file_of

Box = tuple[tuple[int, int], tuple[int, int]]


@given(st.data())
def test_boxes_cover_an_array_if_counting_each_element_says_so(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    side = st.tuples(st.integers(0, 3), st.integers(0, 3))
    boxes = data.draw(st.lists(st.tuples(side, side), max_size=4))
    counts, inside = np.zeros(shape, int), True
    for (row, column), (height, width) in boxes:
        inside = inside and row + height <= shape[0] and column + width <= shape[1]
        counts[row : row + height, column : column + width] += 1
    assert covers(shape, boxes) == (inside and bool((counts == 1).all()))


@given(st.data())
def test_any_sharding_covers_an_array(data: st.DataObject) -> None:
    def cut(box: Box, depth: int) -> list[Box]:
        start, size = box
        dim = data.draw(st.integers(0, 1))
        if not depth or size[dim] < 2:
            return [box]
        first = data.draw(st.integers(1, size[dim] - 1))
        one, other = list(size), list(size)
        one[dim], other[dim] = first, size[dim] - first
        moved = list(start)
        moved[dim] += first
        return cut((start, (one[0], one[1])), depth - 1) + cut(((moved[0], moved[1]), (other[0], other[1])), depth - 1)

    boxes = cut(((0, 0), (9, 7)), 3)
    assert covers((9, 7), boxes)
    assert not covers((9, 7), [*boxes, boxes[0]])
    assert not covers((9, 7), boxes[1:])


def test_thousands_of_parts_are_checked_quickly() -> None:
    columns = [((0, at), (8, 1)) for at in range(20_000)]
    assert covers((8, 20_000), columns)
    assert not covers((8, 20_000), [*columns[:-1], columns[0]])


def forge(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Changes a manifest, and makes its digest fit."""
    path = folder / manifest.NAME
    found = json.loads(path.read_text())
    found.pop("sha256")
    edit(found)
    path.write_bytes(manifest.sealed(found))


def whole(found: dict[str, Any]) -> Any:
    return found["arrays"]["d1/kernel"]


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "no parts": lambda found: whole(found).update(parts=[]),
    "a part too few": lambda found: whole(found)["parts"].pop(),
    "a part elsewhere": lambda found: whole(found)["parts"][0].update(start=[3, 2]),
    "a part outside": lambda found: whole(found)["parts"][0].update(start=[100, 0]),
    "a part before the start": lambda found: whole(found)["parts"][0].update(start=[-3, 0]),
    "another array's tensor": lambda found: found["arrays"]["step"]["parts"][0].update(key="optimizer/m/d1/kernel"),
    "an array too few": lambda found: found["arrays"].pop("step"),
    "a huge shape": lambda found: whole(found).update(shape=[10**9, 10**9]),
    "another dtype": lambda found: whole(found).update(dtype="int32"),
    "an object dtype": lambda found: whole(found).update(dtype="object"),
    "a dtype that runs": lambda found: whole(found).update(dtype="O,i4"),
    "no files": lambda found: found.update(files={}),
    "a file outside": lambda found: whole(found)["parts"][0].update(file="../x.safetensors"),
    "an absolute file": lambda found: found["files"].update({"/etc/hostname": found["files"]["history.safetensors"]}),
    "a file too many": lambda found: found["files"].update({"x": found["files"]["history.safetensors"]}),
    "no step": lambda found: found.pop("step"),
    "no config": lambda found: found.pop("config"),
    "a true step": lambda found: found.update(step=True),
    "a step of 3.0": lambda found: found.update(step=3.0),
    "another step": lambda found: found.update(step=4),
    "a format in words": lambda found: found.update(format="1"),
    "a size that is NaN": lambda found: found["files"]["history.safetensors"].update(bytes=float("nan")),
    "metrics in words": lambda found: found.update(metrics={"eval/loss": "low"}),
    "words that break a line": lambda found: found.update(saved_at="now\nerror: x"),
    "depth": lambda found: found.update(config=json.loads("[" * 200 + "]" * 200)),
    "an encoding in words": lambda found: found.update(encoding="none"),
    "a category that is no text": lambda found: found.update(encoding={"categories": {"town": ["Rome", 1]}}),
    "a vocabulary without its tokenizer": lambda found: found.update(encoding={"vocabulary": {"kind": "bpe"}}),
    "a mean that is no number": lambda found: found.update(encoding={"mean": {"x": [float("nan")]}}),
    "constants in words": lambda found: found.update(constants={"scale": ["1.0"]}),
}


@pytest.mark.parametrize("edit", FORGED.values(), ids=FORGED)
def test_a_forged_manifest_is_damaged_whatever_its_digest_says(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    written = storage.write(tmp_path, content())
    forge(written, edit)
    with pytest.raises(DamagedError, match="step-000000003") as refused:
        Checkpoint(written)
    assert "\n" not in str(refused.value)


def test_changes_without_meaning_are_no_damage(tmp_path: Path) -> None:
    written = storage.write(tmp_path, content())
    forge(written, lambda found: found.update(note="of a later version"))
    path = written / manifest.NAME
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert Checkpoint(written).step == 3


def test_a_duplicate_key_is_damage(tmp_path: Path) -> None:
    written = storage.write(tmp_path, content())
    path = written / manifest.NAME
    path.write_text(path.read_text().replace('"step": 3,', '"step": 9,\n "step": 3,', 1))
    with pytest.raises(DamagedError, match="can't be read"):
        Checkpoint(written)


@pytest.mark.parametrize("name", ["checkpoint.json", "arrays-00000.safetensors", "history.safetensors"])
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

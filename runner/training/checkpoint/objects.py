"""The folder of one checkpoint in an object store, which has no rename.

    step-000000300/
      checkpoint.json                     manifest; it names the folder of the files below it
      8f3a61c2/arrays-00000.safetensors   that folder has a random name
      8f3a61c2/history.safetensors

A checkpoint is written into a new folder of files, and its manifest last: one write, after which readers see the new
checkpoint and before which they see the former one of the same step, if there is any. So a process that dies at any
moment leaves files that no manifest names, which `clean` removes. To remove a checkpoint, its manifest goes first.

Some stores list a new object late. So `steps.json` in the run's folder also names the steps; reading an object by its
name is current in every store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from runner.errors import ConfigError
from runner.host.paths import random_part
from runner.host.stores import client
from runner.host.stores.urls import ObjectPath
from runner.training.checkpoint import files, manifest
from runner.training.checkpoint.files import LARGEST_RECORD, DamagedError
from runner.training.checkpoint.reading import folder_name, read_manifest
from runner.training.checkpoint.typed import MisfitError, items, whole

STEPS = "steps.json"
_MANIFEST = re.compile(rf"step-(0\d{{8}}|[1-9]\d{{8,}})/{re.escape(manifest.NAME)}", re.ASCII)
_FILE = re.compile(r"(step-\d{9,})/([0-9a-f]{8,32})/([^/]+)", re.ASCII)

# The manifest of a checkpoint that is put aside. It no longer counts, but a person can still look at it.
_ASIDE = "aside-checkpoint.json"


def new_files_folder(folder: ObjectPath, step: int) -> ObjectPath:
    """Returns a new folder for the files of a checkpoint.

    Args:
      folder: the run's checkpoints.
      step: of the checkpoint.
    """
    return folder / folder_name(step) / random_part()


def discard(files_folder: ObjectPath) -> None:
    """Removes the files of a checkpoint that was not finished; `clean` removes what remains if that fails."""
    with suppress(OSError):
        _remove_all(files_folder, client.below(files_folder))


def commit(files_folder: ObjectPath, data: bytes, replaced: Sequence[str]) -> ObjectPath:
    """Writes the manifest of a checkpoint whose files are written, and removes the files that it replaces.

    Args:
      files_folder: the checkpoint's.
      data: the manifest.
      replaced: what `files_of` returned before, because after the write no manifest names these files any more.

    Returns:
      The folder of the checkpoint.

    Raises:
      OSError: the store can't be written. The files stay, because the manifest may have been written nonetheless.
    """
    folder = files_folder.parent
    client.write(folder / manifest.NAME, data)
    with suppress(OSError):
        _note_steps(folder.parent, added=[_step_of(folder)])
        _remove_all(folder, replaced)
    return folder


def files_of(folder: ObjectPath) -> list[str]:
    """Returns the paths of the files that the manifest of a checkpoint names; empty if it is not a valid one.

    Raises:
      OSError: the store does not answer.
    """
    try:
        content = read_manifest(folder)
    except ConfigError:
        return []
    return [f"{content.files_folder}/{name}" for name in content.files]


def _remove_all(folder: ObjectPath, paths: Iterable[str]) -> None:
    for path in paths:
        client.remove(folder / path)


def _step_of(folder: ObjectPath) -> int:
    return int(folder.name.removeprefix("step-"))


def steps(folder: ObjectPath) -> list[int]:
    """Returns the steps of a run's checkpoints in order; unfinished ones don't count.

    Raises:
      OSError: the store does not answer.
    """
    found: set[int] = set()
    for path in client.below(folder):
        match = _MANIFEST.fullmatch(path)
        if match:
            found.add(int(match[1]))
    for step in _noted_steps(folder):
        if step not in found and files.exists(folder / folder_name(step) / manifest.NAME):
            found.add(step)
    return sorted(found)


def _noted_steps(folder: ObjectPath) -> list[int]:
    """Returns the steps in `steps.json`; none if it is missing or damaged."""
    try:
        content = files.read_json(folder / STEPS, LARGEST_RECORD)
        return [whole(step, "steps") for step in items(content.get("steps"), "steps")]
    except (DamagedError, MisfitError):
        return []


def _note_steps(folder: ObjectPath, *, added: Sequence[int] = (), removed: Sequence[int] = ()) -> None:
    noted = set(_noted_steps(folder))
    changed = (noted | set(added)) - set(removed)
    if changed != noted:
        files.write_json(folder / STEPS, {"steps": sorted(changed)})


def is_ours(folder: ObjectPath) -> bool:
    """Returns whether a folder is a checkpoint and holds no other objects, so that it may be removed.

    Raises:
      OSError: the store does not answer.
    """
    expected = {manifest.NAME, *files_of(folder)}
    # An invalid manifest names no files. Then nothing shows that the folder is a checkpoint.
    return len(expected) > 1 and set(client.below(folder)) <= expected


def remove(folder: ObjectPath) -> None:
    """Removes a checkpoint that is ours.

    Raises:
      OSError: the store can't be written.
    """
    paths = files_of(folder)
    client.remove(folder / manifest.NAME)
    _note_steps(folder.parent, removed=[_step_of(folder)])
    _remove_all(folder, paths)


def set_aside(folder: ObjectPath) -> ObjectPath:
    """Renames the manifest of a checkpoint, so that it is not taken for one; returns the manifest's new path.

    Raises:
      OSError: the store can't be written.
    """
    aside = folder / _ASIDE
    # A store has no rename. The copy comes first, so a process that dies in between leaves both and loses none.
    client.copy(folder / manifest.NAME, aside)
    client.remove(folder / manifest.NAME)
    _note_steps(folder.parent, removed=[_step_of(folder)])
    return aside


def clean(folder: ObjectPath) -> None:
    """Removes the files that no manifest names: a process that died has left them.

    Raises:
      OSError: the store can't be read or written.
    """
    named: dict[str, set[str] | None] = {}
    for path in client.below(folder):
        match = _FILE.fullmatch(path)
        # A file of the user stays.
        if match is None or not manifest.is_own(match[3]):
            continue
        step_folder = match[1]
        if step_folder not in named:
            named[step_folder] = _named_folders(folder / step_folder)
        folders = named[step_folder]
        if folders is not None and match[2] not in folders:
            client.remove(folder / path)


def _named_folders(folder: ObjectPath) -> set[str] | None:
    """Returns the folders of files below a checkpoint's that a manifest names, be it aside or invalid.

    The result is None if a manifest can't be read: it may name any of them.

    Raises:
      OSError: the store does not answer.
    """
    named: set[str] = set()
    for name in (manifest.NAME, _ASIDE):
        try:
            content: dict[str, Any] = files.read_json(folder / name, manifest.LARGEST)
        except DamagedError:
            if files.exists(folder / name):
                return None
            continue
        named.add(str(content.get(manifest.FILES_FOLDER)))
    return named

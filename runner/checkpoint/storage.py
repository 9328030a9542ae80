"""The checkpoints in a run's folder, on a disk or in an object store: written at once, listed, and removed.

    step-000000300/
      checkpoint.json                     manifest: content, run, folder and digests of the files, and its own digest
      8f3a61c2/arrays-00000.safetensors   variables and optimizer state, in the shards that process 0's devices held
      8f3a61c2/history.safetensors        metrics so far

Arrays are stored under their canonical paths in safetensors files, which can be read without TensorFlow and JAX. A
variable that is sharded over a mesh is written in its shards, so no host ever needs the whole of it.

A checkpoint is written into a new folder of files, with a random name, and its manifest last. Before that write,
readers see the former checkpoint of the same step, if there is any, and after it the new one. So a process that dies
at any moment leaves files that no manifest names, which `clean` removes. To remove a checkpoint, its manifest goes
first. Only files that a valid manifest names, or that have the names of a checkpoint's files, are ever removed.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from runner.checkpoint import (
    files,
    manifest,
)
from runner.checkpoint import tensors as tensors_file
from runner.checkpoint.files import DamagedError
from runner.checkpoint.manifest import FORMAT
from runner.checkpoint.reading import (
    folder_name,
    read_manifest,
)
from runner.cluster.team import (
    ALONE,
    Team,
)
from runner.data.base import Array
from runner.engine.base import Shard
from runner.errors import ConfigError
from runner.host.paths import random_part
from runner.host.stores import cache, client
from runner.host.stores.urls import ObjectPath, Place
from runner.host.stores.urls import place as place_of

_STEP = re.compile(r"step-(0\d{8}|[1-9]\d{8,})", re.ASCII)
_FOLDER = manifest.FOLDER_NAME
_FILE = re.compile(rf"({_FOLDER.pattern})/([^/]+)", re.ASCII)
# What a process that died may leave of a small file, before its rename.
_LEFT = re.compile(r"\.unfinished-(best|run|checkpoint)\.json-\d+", re.ASCII)

# Folder -> number of the next checkpoint that this process writes there, so that the processes of a run talk about the
# same one. A folder has one writer thread.
_written: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

# What one process contributes to a manifest, as JSON: `files` and `arrays`, or `error` and `errno`.
Contribution = Mapping[str, Any]


@dataclass(frozen=True)
class Content:
    """The content of a checkpoint.

    Attributes:
      step: training steps done.
      shards: canonical path -> the shards of a variable or optimizer state, each with its place in the whole array.
      history: named arrays of the metrics so far.
      about: run, config, seed, versions, time and last metrics, as plain values.
      passing: the shards are the devices' own arrays, which are valid only until the next step.
      taken: if they are, is set when they are no longer read, at the latest when the checkpoint is written.
    """

    step: int
    shards: Mapping[str, Sequence[Shard]]
    history: Mapping[str, Array]
    about: Mapping[str, Any]
    passing: bool = False
    taken: threading.Event = field(default_factory=threading.Event)


def write(folder: Place, content: Content, team: Team = ALONE) -> Place:
    """Writes a checkpoint into a folder of checkpoints.

    Each process of a run writes its own shards. Process 0 writes everything else after that, and the manifest last.

    Args:
      folder: the run's checkpoints; created if it is missing.
      content: the content of the checkpoint.
      team: the processes of the run, all of which call this.

    Returns:
      The checkpoint's own folder.

    Raises:
      OSError: the disk of one process is full or read-only, or the store can't be written; the unfinished files have
        been removed.
    """
    # The name by which the processes exchange messages on this checkpoint.
    name = f"checkpoint {next(_written[str(folder)])} in {folder}"

    def begin() -> str:
        target = folder / folder_name(content.step)
        if not isinstance(target, ObjectPath) and files.exists(target) and not files.is_folder(target):
            raise FileExistsError(f"{target} is in the way")
        unfinished = target / random_part()
        for place in (target, unfinished):
            files.make_folder(place)
        return str(unfinished)

    # All processes write into the folder that process 0 has named.
    unfinished = place_of(team.broadcast(f"{name} begins", begin))
    is_committing = False
    try:
        own = _write_own(unfinished, content, team)
        contributions = [own] if team.count == 1 else team.all_gather(f"{name} shards", own)

        def finish() -> str:
            nonlocal is_committing
            target = unfinished.parent
            data = _write_history(unfinished, content, contributions)
            replaced = _files_of(target)
            if not isinstance(unfinished, ObjectPath):
                files.sync_folder(unfinished)
            is_committing = True
            files.write(target / manifest.NAME, data)
            with suppress(OSError):
                _remove_all(target, replaced)
            return str(target)

        return place_of(team.broadcast(f"{name} ends", finish))
    except Exception:
        # A manifest whose write failed may be in a store nonetheless, and then needs its files.
        if team.is_first and not (is_committing and isinstance(folder, ObjectPath)):
            # `clean` removes what remains if that fails.
            with suppress(OSError):
                _remove_all(unfinished.parent, [f"{unfinished.name}/{name}" for name in files.below(unfinished)])
                _remove_empty(unfinished.parent)
        raise


def _write_own(folder: Place, content: Content, team: Team) -> Contribution:
    """Writes this process's shards; returns as `_write_shards` does.

    Training waits for shards that are the devices' own. A local disk is faster than a store, so these are written
    there first, and uploaded while training continues.
    """
    if not content.passing or not isinstance(folder, ObjectPath):
        return _write_shards(folder, content, team)
    try:
        with cache.spool() as spool:
            own = _write_shards(spool, content, team)
            if isinstance(content.shards, dict):
                content.shards.clear()
            content.taken.set()
            for name in own.get("files", ()):
                client.upload(spool / name, folder / name)
        return own
    except Exception as error:
        if team.count == 1:
            raise
        return _failed(error, team)


def _failed(error: Exception, team: Team) -> Contribution:
    """Returns what the other processes, which wait for this one's entries, get instead: all fail together."""
    reason = getattr(error, "strerror", None) or error
    return {"error": f"{reason} (process {team.index})", "errno": getattr(error, "errno", None) or 0}


def _write_shards(folder: Place, content: Content, team: Team) -> Contribution:
    """Writes this process's shards; returns their entries for the manifest, or an error for process 0 to raise."""
    tensors: dict[str, Array] = {}
    arrays: dict[str, Any] = {}
    file = manifest.arrays_file(team.index)
    for path, shards in content.shards.items():
        parts: list[dict[str, Any]] = []
        for position, shard in enumerate(shards):
            number = position
            count = len(shards)
            if team.count > 1:
                number, count = _place_in_grid(shard)
            key = path if count == 1 else f"{path}@{number}"
            tensors[key] = shard.array
            parts.append({"number": number, "file": file, "key": key, "start": list(shard.start)})
        if shards:
            arrays[path] = {"shape": list(shards[0].whole), "dtype": str(shards[0].array.dtype), "parts": parts}

    written: dict[str, Any] = {}
    try:
        # Process 0's file is always there, so that a checkpoint has at least one.
        if tensors or team.is_first:
            written[file] = tensors_file.write(folder / file, tensors)
    except Exception as error:
        if team.count == 1:
            raise
        return _failed(error, team)
    return {"files": written, "arrays": arrays}


def _place_in_grid(shard: Shard) -> tuple[int, int]:
    """Returns a shard's row-major number among the shards of its array, and their count.

    A process sees only its own shards, but a mesh splits an array into a grid of equal ones.
    """
    number = 0
    shards = 1
    for start, size, whole in zip(shard.start, shard.array.shape, shard.whole, strict=True):
        # An empty dim has one shard.
        step = max(size, 1)
        count = max(whole // step, 1)
        number = number * count + start // step
        shards *= count
    return number, shards


def _write_history(folder: Place, content: Content, contributions: Sequence[Contribution]) -> bytes:
    """Writes the history, and returns the manifest of everything that the processes have written."""
    written: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for contribution in contributions:
        if "error" in contribution:
            raise OSError(contribution["errno"], contribution["error"])
        written |= contribution["files"]
        for path, entry in contribution["arrays"].items():
            merged = arrays.setdefault(path, {**entry, "parts": []})
            merged["parts"] = merged["parts"] + entry["parts"]
    for entry in arrays.values():
        ordered = sorted(entry["parts"], key=lambda part: int(part["number"]))
        # The number is the part's position in the list, and is not stored.
        entry["parts"] = [{key: part[key] for key in ("file", "key", "start")} for part in ordered]
    written[manifest.HISTORY] = tensors_file.write(folder / manifest.HISTORY, content.history)
    entries = {"format": FORMAT, "step": content.step, manifest.FILES_FOLDER: folder.name, **content.about}
    return manifest.sealed({**entries, "files": written, "arrays": arrays})


def steps(folder: Place) -> list[int]:
    """Returns the steps of a folder's checkpoints in order; unfinished ones don't count.

    Raises:
      OSError: the folder is in a store that does not answer.
    """
    found: list[int] = []
    for name in _names(folder):
        match = _STEP.fullmatch(name)
        if match and files.exists(folder / name / manifest.NAME):
            found.append(int(match[1]))
    return sorted(found)


def _names(folder: Place) -> list[str]:
    """Returns the names in a folder; none if a local one can't be read."""
    try:
        return files.names(folder)
    except OSError:
        if isinstance(folder, ObjectPath):
            raise
        return []


def place(folder: Place, step: int) -> Place:
    """Returns the folder of the checkpoint of a step."""
    return folder / folder_name(step)


def is_checkpoint(path: Place) -> bool:
    """Returns whether a folder holds, by its manifest, the checkpoint of the step in its name."""
    try:
        read_manifest(path)
    except ConfigError:
        return False
    return True


def _files_of(path: Place) -> list[str]:
    """Returns the paths of the files that a checkpoint's manifest names; none if it is not a valid one."""
    try:
        content = read_manifest(path)
    except ConfigError:
        return []
    return [f"{content.files_folder}/{name}" for name in content.files]


def remove(folder: Place, step: int) -> bool:
    """Removes a checkpoint; other files in its folder stay.

    Returns:
      Whether it was removed: what has no valid manifest stays as it is.

    Raises:
      OSError: it can't be removed, or is in a store that does not answer.
    """
    path = place(folder, step)
    named = _files_of(path)
    if not named:
        return False
    # First, so that a process that dies in between leaves no checkpoint that lacks files.
    files.remove(path / manifest.NAME)
    _remove_all(path, named)
    return True


def _remove_all(path: Place, names: Sequence[str]) -> None:
    """Removes files below a checkpoint's folder, and the folders that are empty then."""
    for folder in {name.partition("/")[0] for name in names}:
        # Through a link, files elsewhere would be removed.
        if not isinstance(path, ObjectPath) and not files.is_folder(path / folder):
            continue
        for name in names:
            if name.startswith(f"{folder}/"):
                files.remove(path / name)
    _remove_empty(path)


def _remove_empty(path: Place) -> None:
    """Removes the folders of files that are empty in a checkpoint's folder, and that folder if it is; on a disk."""
    if not isinstance(path, ObjectPath):
        for name in _names(path):
            if _FOLDER.fullmatch(name):
                files.remove_empty(path / name)
        files.remove_empty(path)


def clean(folder: Place) -> None:
    """Removes the files that no manifest names: a process that died has left them.

    Raises:
      OSError: the store can't be read or written.
    """
    for name in _names(folder):
        if _LEFT.fullmatch(name):
            files.remove(folder / name)
        elif _STEP.fullmatch(name) and (isinstance(folder, ObjectPath) or files.is_folder(folder / name)):
            _clean_step(folder / name)


def _clean_step(path: Place) -> None:
    try:
        named = str(files.read_json(path / manifest.NAME, manifest.LARGEST).get(manifest.FILES_FOLDER))
    except DamagedError:
        if files.exists(path / manifest.NAME):
            # It may name any of them.
            return
        named = ""
    left: list[str] = []
    for name in files.below(path):
        match = _FILE.fullmatch(name)
        # A file of the user stays.
        if match is not None and match[1] != named and manifest.is_own(match[2]):
            left.append(name)
        elif _LEFT.fullmatch(name):
            files.remove(path / name)
    _remove_all(path, left)


def size(folder: Place, step: int) -> int:
    """Returns the bytes of a checkpoint's files; 0 if there is none."""
    return sum(files.below(place(folder, step)).values())


def written_at(folder: Place, step: int) -> float:
    """Returns when a checkpoint was written, in seconds since 1970."""
    path = place(folder, step)
    if isinstance(path, ObjectPath):
        return client.written_at(path / manifest.NAME)
    return path.lstat().st_mtime


def remove_records(folder: Place, names: Sequence[str]) -> None:
    """Removes files of a run's folder, and the folder if it is empty then.

    Raises:
      OSError: the folder can't be written.
    """
    for name in names:
        files.remove(folder / name)
    files.remove_empty(folder)

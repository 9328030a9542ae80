"""The folder of one checkpoint on disk: written atomically, listed, and removed.

    step-000000300/
      checkpoint.json            manifest: content, run, and the digest of each file and of itself
      arrays-00000.safetensors   shards of variables and optimizer state, as the devices of process 0 held them
      history.safetensors        metrics so far

Arrays are stored under their canonical paths in safetensors files, which can be read without TensorFlow and JAX. A
variable that is sharded over a mesh is written in its shards, so no host ever needs the whole of it.

In an object store, a checkpoint is written and removed in other steps, see `runner.training.checkpoint.objects`.

A folder is removed only if it is a checkpoint by its name and its manifest, and holds no other file.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.data.base import Array
from runner.engine.base import Shard
from runner.errors import ConfigError
from runner.host.folders import remove_empty, remove_files
from runner.host.stores import cache, client
from runner.host.stores.urls import ObjectPath, Place
from runner.host.stores.urls import place as place_of
from runner.processes.team import ALONE, Team
from runner.training.checkpoint import files, manifest, objects
from runner.training.checkpoint import tensors as tensors_file
from runner.training.checkpoint.manifest import FORMAT
from runner.training.checkpoint.reading import REPLACED, files_folder, folder_name, read_manifest

_UNFINISHED = ".unfinished-"
_STEP = re.compile(r"step-(0\d{8}|[1-9]\d{8,})(?:\.replaced)?", re.ASCII)

# What a process that died may leave: a folder that was being written or removed, and a small file before its rename.
_LEFT_FOLDER = re.compile(r"\.unfinished-\d{9,}-\d+(-old)?", re.ASCII)
_LEFT_FILE = re.compile(r"\.unfinished-(best|run)\.json(-\d+)?", re.ASCII)

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

    It is written in a folder beside its final place, which is renamed when every file is on the disk, so a process
    that dies at any moment leaves the earlier checkpoints intact. Each process of a run writes its own shards. Process
    0 writes everything else after that, and the manifest last: a folder without a manifest is no checkpoint.

    Args:
      folder: the run's checkpoints; created if it is missing.
      content: the content of the checkpoint.
      team: the processes of the run, all of which call this.

    Returns:
      The checkpoint's own folder.

    Raises:
      OSError: the disk of one process is full or read-only, or the store can't be written; the unfinished folder has
        been removed.
    """
    if isinstance(folder, ObjectPath):
        return _write_objects(folder, content, team)
    unfinished = folder / f"{_UNFINISHED}{content.step:09d}-{os.getpid()}"
    name = _name(folder)

    def begin() -> str:
        _discard(unfinished)
        unfinished.mkdir(parents=True)
        return str(unfinished)

    # All processes write into the folder that process 0 has named.
    unfinished = Path(team.broadcast(f"{name} begins", begin))
    try:
        own = _write_shards(unfinished, content, team)
        contributions = [own] if team.count == 1 else team.all_gather(f"{name} shards", own)

        def finish() -> str:
            data = _write_history(unfinished, content, contributions)
            # Last, when all other files are on the disk: a folder without a manifest is no checkpoint.
            files.write_synced(unfinished / manifest.NAME, data)
            return str(_move_into_place(unfinished, folder, content.step))

        return Path(team.broadcast(f"{name} ends", finish))
    except Exception:
        if team.is_first:
            _discard(unfinished)
        raise


def _name(folder: Place) -> str:
    """Returns the name by which the processes of a run exchange messages on the next checkpoint in a folder."""
    return f"checkpoint {next(_written[str(folder)])} in {folder}"


def _write_objects(folder: ObjectPath, content: Content, team: Team) -> Place:
    """Writes a checkpoint into an object store; the rest is as in `write`."""
    name = _name(folder)
    begun = team.broadcast(f"{name} begins", lambda: str(objects.new_files_folder(folder, content.step)))
    unfinished = ObjectPath.of(begun)
    is_committing = False
    try:
        own = _upload_shards(unfinished, content, team)
        contributions = [own] if team.count == 1 else team.all_gather(f"{name} shards", own)

        def finish() -> str:
            nonlocal is_committing
            data = _write_history(unfinished, content, contributions, below_manifest=unfinished.name)
            replaced = objects.files_of(unfinished.parent)
            is_committing = True
            return str(objects.commit(unfinished, data, replaced))

        return place_of(team.broadcast(f"{name} ends", finish))
    except Exception:
        # A manifest whose write failed may be there nonetheless, and then needs its files.
        if team.is_first and not is_committing:
            objects.discard(unfinished)
        raise


def _upload_shards(folder: ObjectPath, content: Content, team: Team) -> Contribution:
    """Writes this process's shards into a store; returns as `_write_shards` does.

    Training waits for shards that are the devices' own. A local disk is faster than a store, so these are written
    there first, and uploaded while training continues.
    """
    if not content.passing:
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


def _write_history(
    folder: Place, content: Content, contributions: Sequence[Contribution], below_manifest: str = ""
) -> bytes:
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
    entries: dict[str, Any] = {"format": FORMAT, "step": content.step}
    if below_manifest:
        entries[manifest.FILES_FOLDER] = below_manifest
    entries |= {**content.about, "files": written, "arrays": arrays}
    return manifest.sealed(entries)


def _move_into_place(unfinished: Path, folder: Path, step: int) -> Path:
    """Renames a finished checkpoint; an old one of the same step stays readable until then."""
    target, replaced = _places(folder, step)
    if is_ours(target):
        _discard(replaced)
        target.rename(replaced)
    elif os.path.lexists(target):
        set_aside(target)
    unfinished.rename(target)
    # The old checkpoint goes only when the rename of the new one has reached the disk.
    files.sync_folder(folder)
    _discard(replaced)
    return target


def steps(folder: Place) -> list[int]:
    """Returns the steps of a folder's checkpoints in order; unfinished ones don't count.

    Raises:
      OSError: the folder is in a store that does not answer.
    """
    if isinstance(folder, ObjectPath):
        return objects.steps(folder)
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    found: set[int] = set()
    for name in names:
        match = _STEP.fullmatch(name)
        if match:
            found.add(int(match[1]))
    return sorted(found)


def place(folder: Place, step: int) -> Place:
    """Returns the folder of the checkpoint of a step."""
    if isinstance(folder, ObjectPath):
        return folder / folder_name(step)
    target, replaced = _places(folder, step)
    # A process may have died between the two renames of `_move_into_place`.
    if not os.path.lexists(target) and os.path.lexists(replaced):
        return replaced
    return target


def _places(folder: Path, step: int) -> tuple[Path, Path]:
    """Returns a checkpoint's folder, and its folder while another of the same step is moved into its place."""
    return folder / folder_name(step), folder / (folder_name(step) + REPLACED)


def is_checkpoint(path: Place) -> bool:
    """Returns whether a folder holds, by its manifest, the checkpoint of the step in its name."""
    try:
        read_manifest(path)
    except ConfigError:
        return False
    return True


def is_ours(path: Place) -> bool:
    """Returns whether a folder is a checkpoint and holds no other file, so that it may be removed.

    Raises:
      OSError: it is in a store that does not answer.
    """
    if isinstance(path, ObjectPath):
        return objects.is_ours(path)
    try:
        content = read_manifest(path)
        of_files = {path / manifest.NAME, *(files_folder(path, content) / name for name in content.files)}
        if content.files_folder and files.is_folder(path / content.files_folder):
            # A local copy of a checkpoint in a store.
            of_files.add(path / content.files_folder)
        return set(path.rglob("*")) <= of_files
    except (ConfigError, OSError):
        return False


def remove(folder: Place, step: int) -> bool:
    """Removes a checkpoint.

    Returns:
      Whether it was removed: a folder that is not ours stays as it is.
    """
    path = place(folder, step)
    if not is_ours(path):
        return False
    if isinstance(path, ObjectPath):
        objects.remove(path)
        return True
    # Renamed first, so that a process that dies in between leaves no checkpoint that lacks files.
    hidden = path.with_name(f"{_UNFINISHED}{step:09d}-{os.getpid()}-old")
    _discard(hidden)
    path.rename(hidden)
    _discard(hidden)
    return True


def set_aside(path: Place) -> Place:
    """Renames what is in a checkpoint's place but may not be removed, so that it is not taken for a checkpoint.

    Returns:
      The new path.
    """
    if isinstance(path, ObjectPath):
        return objects.set_aside(path)
    free = path.with_name(f"aside-{path.name}")
    count = 1
    while os.path.lexists(free):
        count += 1
        free = path.with_name(f"aside-{path.name}-{count}")
    path.rename(free)
    return free


def clean(folder: Place) -> None:
    """Removes what a process that died left unfinished, and restores a checkpoint that it was replacing."""
    if isinstance(folder, ObjectPath):
        objects.clean(folder)
        return
    if not folder.is_dir():
        return
    for left in list(folder.iterdir()):
        if _LEFT_FOLDER.fullmatch(left.name):
            _discard(left)
        elif _LEFT_FILE.fullmatch(left.name):
            unlink(left)
        elif _STEP.fullmatch(left.name) and left.name.endswith(REPLACED):
            target = left.with_name(left.name.removesuffix(REPLACED))
            if os.path.lexists(target):
                _discard(left)
            else:
                left.rename(target)


def size(folder: Place, step: int) -> int:
    """Returns the bytes of a checkpoint's files; 0 if there is none."""
    path = place(folder, step)
    if isinstance(path, ObjectPath):
        return sum(client.below(path).values())
    if not path.is_dir():
        return 0
    return sum(child.lstat().st_size for child in path.rglob("*") if child.is_file())


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
    # A folder that was copied from a store has the list of steps, too.
    names = [*names, objects.STEPS]
    if isinstance(folder, ObjectPath):
        for name in names:
            client.remove(folder / name)
        return
    remove_files(folder, names)
    remove_empty([folder])


def _discard(path: Path) -> None:
    """Removes the checkpoint's files in a folder, and the folder if it is empty then."""
    if not files.is_folder(path):
        return
    for child in path.iterdir():
        if manifest.is_files_folder(child.name):
            _discard(child)
        elif manifest.is_own(child.name):
            unlink(child)
    # A file of the user keeps the folder.
    with suppress(OSError):
        path.rmdir()


def unlink(path: Place) -> None:
    """Removes a regular file; a link, a folder or a device stays."""
    if isinstance(path, ObjectPath):
        client.remove(path)
        return
    if stat.S_ISREG(path.lstat().st_mode):
        path.unlink()

"""The checkpoints in a run's folder, on a disk or in an object store: written at once, listed, and removed.

    step-000000300/
      checkpoint.json                     manifest: content, run, folder and digests of the files, and its own digest
      8f3a61c2/arrays-00000.safetensors   variables and optimizer state, in the shards that process 0's devices held
      8f3a61c2/history.json               metrics so far, see `metric_history.to_json`

Arrays are stored under their canonical paths in safetensors files, which can be read without TensorFlow and JAX. A
variable that is sharded over a mesh is written in its shards, so no host ever needs the whole of it.

A checkpoint is written into a new folder of files, with a random name, and its manifest last. Before that write,
readers see the former checkpoint of the same step, if there is any, and after it the new one. So a process that dies
at any moment leaves folders that no manifest names, which `clean` removes. To remove a checkpoint, its manifest goes
first. Other files in a checkpoint's folder stay. The best checkpoint is the last one whose manifest says that it was.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runner.checkpoint import files, manifest, tensors
from runner.checkpoint.files import DamagedError
from runner.checkpoint.manifest import FORMAT, folder_name
from runner.checkpoint.places import ObjectPath, Place
from runner.checkpoint.places import place as place_of
from runner.cluster.team import ALONE, Team
from runner.data.base import Array
from runner.engine.base import Shard
from runner.errors import ConfigError
from runner.host.paths import random_part

_STEP = re.compile(r"step-(0\d{8}|[1-9]\d{8,})", re.ASCII)
# What a process that died may leave of a small file, before its rename.
_LEFT = re.compile(r"\.unfinished-(run|checkpoint)\.json-\d+", re.ASCII)

# Numbers the checkpoints that this process writes, so that the processes of a run talk about the same one.
_written = itertools.count()

# What one process contributes to a manifest, as JSON: `files` and `arrays`, or `error` and `errno`.
Contribution = Mapping[str, Any]


@dataclass(frozen=True)
class Content:
    """The content of a checkpoint: canonical path -> shards, the metrics so far and others as plain values.

    `passing`: the shards are the devices' own arrays, which are valid only until the next step.
    """

    step: int
    shards: Mapping[str, Sequence[Shard]]
    history: Mapping[str, object]
    about: Mapping[str, object]
    passing: bool = False


@dataclass(frozen=True)
class BestRecord:
    """What makes a checkpoint the best: a metric such as `eval/loss`, its value, and the step of the checkpoint."""

    metric: str
    value: float
    step: int


def write(folder: Place, content: Content, team: Team = ALONE) -> Place:
    """Writes a checkpoint into a run's folder; returns the checkpoint's own folder.

    Each process of the run calls this and writes its own shards. Process 0 writes everything else after that, and the
    manifest last. Raises OSError if the disk of one process or the store can't be written.
    """
    # The name by which the processes exchange messages on this checkpoint.
    name = f"checkpoint {next(_written)} in {folder}"

    def begin() -> str:
        unfinished = folder / folder_name(content.step) / random_part()
        files.make_folder(unfinished.parent)
        files.make_folder(unfinished)
        return str(unfinished)

    # All processes write into the folder that process 0 has named.
    unfinished = place_of(team.broadcast(f"{name} begins", begin))
    try:
        contributions = team.all_gather(f"{name} shards", _write_shards(unfinished, content, team))
        team.broadcast(f"{name} ends", lambda: _commit(unfinished, content, contributions))
    except Exception:
        # In a store, a manifest whose write failed may be there nonetheless, and then needs its files.
        if team.is_first and not isinstance(unfinished, ObjectPath):
            with suppress(OSError):
                files.remove_folder(unfinished)
                files.remove_empty(unfinished.parent)
        raise
    return unfinished.parent


def _write_shards(folder: Place, content: Content, team: Team) -> Contribution:
    """Writes this process's shards; returns their entries for the manifest, or an error for process 0 to raise."""
    arrays_of_file: dict[str, Array] = {}
    arrays: dict[str, Any] = {}
    file = manifest.ARRAYS.replace("00000", f"{team.index:05d}")
    for path, shards in content.shards.items():
        parts: list[dict[str, Any]] = []
        for shard in shards:
            key = path
            if shard.array.shape != shard.whole:
                key += f"@{','.join(map(str, shard.start))}"
            # An empty array has the same shard on every device.
            if key not in arrays_of_file:
                arrays_of_file[key] = shard.array
                size = list(shard.array.shape)
                parts.append({"file": file, "key": key, "start": list(shard.start), "shape": size})
        if shards:
            arrays[path] = {"shape": list(shards[0].whole), "dtype": str(shards[0].array.dtype), "parts": parts}
    written: dict[str, Any] = {}
    try:
        # Process 0's file is always there, so that a checkpoint has at least one.
        if arrays_of_file or team.is_first:
            written[file] = tensors.write(folder / file, arrays_of_file)
    except Exception as error:
        if team.count == 1:
            raise
        # The other processes wait for this one's entries, and fail with it.
        reason = getattr(error, "strerror", None) or error
        return {"error": f"{reason} (process {team.index})", "errno": getattr(error, "errno", None) or 0}
    return {"files": written, "arrays": arrays}


def _commit(folder: Place, content: Content, contributions: Sequence[Contribution]) -> None:
    """Writes the history, and then the manifest of everything that the processes have written."""
    written: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for contribution in contributions:
        if "error" in contribution:
            raise OSError(contribution["errno"], contribution["error"])
        written |= contribution["files"]
        for path, entry in contribution["arrays"].items():
            merged = arrays.setdefault(path, {**entry, "parts": []})
            merged["parts"] = merged["parts"] + entry["parts"]
    history = json.dumps(content.history).encode()
    files.write(folder / manifest.HISTORY, history)
    written[manifest.HISTORY] = {"bytes": len(history), "sha256": hashlib.sha256(history).hexdigest()}
    entries = {"format": FORMAT, "step": content.step, manifest.FILES_FOLDER: folder.name, **content.about}
    files.sync_folder(folder)
    manifest.write(folder.parent, {**entries, "files": written, "arrays": arrays})
    # The former checkpoint of this step has its files in another folder.
    with suppress(OSError):
        _clean_step(folder.parent)


def steps(folder: Place) -> list[int]:
    """Returns the steps of a folder's checkpoints in order; unfinished ones don't count."""
    found: list[int] = []
    for name in files.names(folder):
        match = _STEP.fullmatch(name)
        if match and files.exists(folder / name / manifest.NAME):
            found.append(int(match[1]))
    return sorted(found)


def place(folder: Place, step: int) -> Place:
    """Returns the folder of the checkpoint of a step."""
    return folder / folder_name(step)


def is_checkpoint(path: Place) -> bool:
    """Returns whether a folder holds, by its manifest, the checkpoint of the step in its name."""
    try:
        manifest.read(path)
    except ConfigError:
        return False
    return True


def remove(folder: Place, step: int) -> bool:
    """Removes a checkpoint; returns False for what has no valid manifest, which stays as it is."""
    path = place(folder, step)
    if not is_checkpoint(path):
        return False
    # First, so that a process that dies in between leaves no checkpoint that lacks files.
    files.remove(path / manifest.NAME)
    _clean_step(path)
    return True


def clean(folder: Place) -> None:
    """Removes what no manifest names: a process that died has left it."""
    for name in files.names(folder):
        if _LEFT.fullmatch(name):
            files.remove(folder / name)
        elif _STEP.fullmatch(name):
            _clean_step(folder / name)


def _clean_step(path: Place) -> None:
    named = ""
    if files.exists(path / manifest.NAME):
        try:
            named = str(files.read_json(path / manifest.NAME, manifest.LARGEST).get(manifest.FILES_FOLDER))
        except DamagedError:
            return  # it may name any of them
    # Through a link, files elsewhere would be removed.
    if not files.is_folder(path):
        return
    for name in files.names(path):
        if _LEFT.fullmatch(name):
            files.remove(path / name)
        elif manifest.FOLDER_NAME.fullmatch(name) and name != named:
            files.remove_folder(path / name)
    files.remove_empty(path)


def size(folder: Place, step: int) -> int:
    """Returns the bytes of a checkpoint's files; 0 if there is none."""
    try:
        return sum(entry.bytes for entry in manifest.read(place(folder, step)).files.values())
    except ConfigError:
        return 0


def read_best(folder: Place) -> BestRecord | None:
    """Returns what makes a run's best checkpoint the best; None if there is none."""
    for step in reversed(steps(folder)):
        with suppress(ConfigError):
            for metric, value in manifest.read(place(folder, step)).best.items():
                return BestRecord(metric, value, step)
    return None

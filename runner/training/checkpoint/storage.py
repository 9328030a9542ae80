"""A checkpoint on disk: a folder that appears whole or not at all, and whose every byte is checked when it is read.

    step-000000300/
      checkpoint.json            what it holds, of which run, and the digest of each file and of itself
      arrays-00000.safetensors   shards of variables and optimizer slots, as the devices of process 0 held them
      history.safetensors        metrics so far

Arrays lie under their canonical paths in safetensors files, which need neither TensorFlow nor JAX to be read. A
variable that is split over a mesh is written in its shards, so that no host puts the whole model together.

Nothing is removed that is not a checkpoint of this kind, by its folder's name and its manifest, with no file besides.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.data.base import Array
from runner.engine.base import Shard
from runner.errors import ConfigError
from runner.processes.team import ALONE, Team
from runner.training.checkpoint import files, manifest
from runner.training.checkpoint import tensors as tensors_file
from runner.training.checkpoint.files import DamagedError
from runner.training.checkpoint.lineage import Lineage
from runner.training.checkpoint.manifest import FORMAT
from runner.training.checkpoint.reading import REPLACED, Checkpoint, folder_name, read_manifest

__all__ = ["FORMAT", "Checkpoint", "Content", "DamagedError"]

_UNFINISHED = ".unfinished-"
_STEP = re.compile(r"step-(0\d{8}|[1-9]\d{8,})(?:\.replaced)?", re.ASCII)
_LEFT = re.compile(r"\.unfinished-\d{9,}-\d+(-old)?", re.ASCII)
_LEFT_FILE = re.compile(r"\.unfinished-(best|run)\.json(-\d+)?", re.ASCII)
_LEFT_BY_SAFETENSORS = re.compile(r"\.tmp\w{6}", re.ASCII)  # what earlier versions' writer wrote into, and renamed


@dataclass(frozen=True)
class Content:
    """What a checkpoint holds.

    Attributes:
      step: training steps done.
      shards: canonical path to the shards of a variable or slot, each with its place in the whole.
      history: named arrays of metrics so far.
      about: run, config, seed, versions, time and last metrics; plain values.
      went_back: see `runner.training.checkpoint.lineage`.
      passing: the shards are the devices' own, and must be written before the next step.
    """

    step: int
    shards: Mapping[str, Sequence[Shard]]
    history: Mapping[str, Array]
    about: Mapping[str, Any]
    went_back: Lineage = ()
    passing: bool = False


def write(folder: Path, content: Content, team: Team = ALONE) -> Path:
    """Writes a checkpoint into a folder of checkpoints.

    It is written beside its place and renamed when all of it is on the disk: a process that dies in the middle
    leaves the checkpoints before it as they were. Of several processes each writes its own shards, and process 0 all
    else, when the others are done.

    Args:
      folder: the run's checkpoints; made where it is not there.
      content: what to write.
      team: the processes that write it; all call this.

    Returns:
      The checkpoint's own folder.

    Raises:
      OSError: the disk of one is full, or can't be written; what was begun is gone again.
    """
    making = folder / f"{_UNFINISHED}{content.step:09d}-{os.getpid()}"
    name = f"checkpoint {next(_written)}"

    def begin() -> str:
        _discard(making)
        making.mkdir(parents=True)
        return str(making)

    making = Path(team.broadcast(f"{name} begins", begin))
    try:
        own = _saved_shards(making, content, team)
        parts = [own] if team.count == 1 else team.all_gather(f"{name} shards", own)

        def finish() -> str:
            _fill(making, content, parts)
            return str(_put_in_place(making, folder, content.step))

        return Path(team.broadcast(f"{name} ends", finish))
    except Exception:
        if team.is_first:
            _discard(making)
        raise


_written = itertools.count()
Part = Mapping[str, Any]


def _saved_shards(making: Path, content: Content, team: Team) -> Part:
    """Writes this process's shards, and returns what the manifest says of them; or why it can't, for all to know."""
    tensors = {}
    arrays = {}
    file = manifest.arrays_file(team.index)
    for path, shards in content.shards.items():
        pieces = []
        for order, shard in enumerate(shards):
            number, count = (order, len(shards)) if team.count == 1 else _number(shard)
            key = path if count == 1 else f"{path}@{number}"
            tensors[key] = shard.array
            pieces.append({"number": number, "file": file, "key": key, "start": list(shard.start)})
        if shards:
            arrays[path] = {"shape": list(shards[0].whole), "dtype": str(shards[0].array.dtype), "parts": pieces}
    try:
        written = {file: tensors_file.write(making / file, tensors)} if tensors or team.is_first else {}
    except Exception as error:
        if team.count == 1:
            raise
        code = getattr(error, "errno", None) or 0
        return {"error": f"{getattr(error, 'strerror', None) or error} (process {team.index})", "errno": code}
    return {"files": written, "arrays": arrays}


def _number(shard: Shard) -> tuple[int, int]:
    """Returns which piece of its array a shard is, row-major, and of how many: a mesh cuts all of one size."""
    sizes = [max(size, 1) for size in shard.array.shape]
    grid = [max(whole // size, 1) for whole, size in zip(shard.whole, sizes, strict=True)]
    place = [start // size for start, size in zip(shard.start, sizes, strict=True)]
    number = 0
    for at, count in zip(place, grid, strict=True):
        number = number * count + at
    return number, math.prod(grid)


def _fill(making: Path, content: Content, parts: Sequence[Part]) -> None:
    """Writes the history, and then the manifest of all that the processes have written."""
    written: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for part in parts:
        if "error" in part:
            raise OSError(part["errno"], part["error"])
        written |= part["files"]
        for path, held in part["arrays"].items():
            found = arrays.setdefault(path, {**held, "parts": []})
            found["parts"] = found["parts"] + held["parts"]
    for held in arrays.values():
        ordered = sorted(held["parts"], key=lambda piece: int(piece["number"]))
        held["parts"] = [{key: piece[key] for key in ("file", "key", "start")} for piece in ordered]
    written[manifest.HISTORY] = tensors_file.write(making / manifest.HISTORY, content.history)
    back = {manifest.WENT_BACK: content.went_back} if content.went_back else {}
    said = {"format": FORMAT, "step": content.step, **back, **content.about, "files": written, "arrays": arrays}
    files.write_synced(making / manifest.NAME, manifest.sealed(said))


def _put_in_place(making: Path, folder: Path, step: int) -> Path:
    """Renames a checkpoint into its place; one of the same step stays readable until then."""
    target, replaced = _places(folder, step)
    if is_ours(target):
        _discard(replaced)
        target.rename(replaced)
    elif os.path.lexists(target):
        set_aside(target)
    making.rename(target)
    files.sync_folder(folder)
    _discard(replaced)
    return target


def steps(folder: Path) -> list[int]:
    """Returns the steps of a folder's checkpoints, in order; one that was never finished does not count."""
    try:
        names = [_STEP.fullmatch(path.name) for path in folder.iterdir()]
    except OSError:
        return []
    return sorted({int(name[1]) for name in names if name})


def place(folder: Path, step: int) -> Path:
    """Returns where the checkpoint of a step lies."""
    target, replaced = _places(folder, step)
    # A process may have died between the two renames of `_put_in_place`.
    return replaced if not os.path.lexists(target) and os.path.lexists(replaced) else target


def _places(folder: Path, step: int) -> tuple[Path, Path]:
    """Returns where a checkpoint lies, and where while another of its step is put in its place."""
    return folder / folder_name(step), folder / (folder_name(step) + REPLACED)


def lineages(folder: Path) -> dict[int, Lineage]:
    """Returns the history that each of a folder's checkpoints belongs to.

    One that can't be read counts as of the first, so that what comes after a return behind it does not go on from it.
    """
    found: dict[int, Lineage] = {}
    for step in steps(folder):
        try:
            found[step] = manifest.read(place(folder, step)).went_back
        except ConfigError:
            found[step] = ()
    return found


def is_checkpoint(path: Path) -> bool:
    """Returns whether a folder is a checkpoint, of the step that its name says, by its manifest."""
    try:
        read_manifest(path)
    except ConfigError:
        return False
    return True


def is_ours(path: Path) -> bool:
    """Returns whether a folder is such a checkpoint, and holds nothing besides: it may be removed."""
    try:
        found = read_manifest(path)
        return {child.name for child in path.iterdir()} <= {manifest.NAME, *found.files}
    except (ConfigError, OSError):
        return False


def remove(folder: Path, step: int) -> bool:
    """Removes a checkpoint, first from sight.

    Returns:
      Whether it did: what is not ours stays as it is.
    """
    path = place(folder, step)
    if not is_ours(path):
        return False
    gone = folder / f"{_UNFINISHED}{step:09d}-{os.getpid()}-old"
    _discard(gone)
    path.rename(gone)
    _discard(gone)
    return True


def set_aside(path: Path) -> Path:
    """Gives what lies in a checkpoint's place, and may not be removed, a name by which it is not taken for one.

    Returns:
      The new name.
    """
    names = [f"aside-{path.name}", *(f"aside-{path.name}-{count}" for count in range(2, 1000))]
    free = next(one for name in names if not os.path.lexists(one := path.with_name(name)))
    path.rename(free)
    return free


def clean(folder: Path) -> None:
    """Clears what a process that died left half written, and puts back what it was about to replace."""
    for left in list(folder.iterdir()) if folder.is_dir() else []:
        if _LEFT.fullmatch(left.name):
            _discard(left)
        elif _LEFT_FILE.fullmatch(left.name):
            unlink(left)
        elif _STEP.fullmatch(left.name) and left.name.endswith(REPLACED):
            target = left.with_name(left.name.removesuffix(REPLACED))
            if os.path.lexists(target):
                _discard(left)
            else:
                left.rename(target)


def _discard(path: Path) -> None:
    """Removes a folder of ours, file by file; one with anything else in it stays, with that."""
    if not files.is_folder(path):
        return
    for child in path.iterdir():
        if manifest.is_own(child.name) or _LEFT_BY_SAFETENSORS.fullmatch(child.name):
            unlink(child)
    with suppress(OSError):  # there is more in it
        path.rmdir()


def unlink(path: Path) -> None:
    if stat.S_ISREG(path.lstat().st_mode):
        path.unlink()

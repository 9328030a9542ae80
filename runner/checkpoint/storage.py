"""A checkpoint on disk: a folder that appears whole or not at all, and whose every byte is checked when it is read.

    step-000000300/
      checkpoint.json            what it holds, of which run, and the digest of each file and of itself
      arrays-00000.safetensors   parts of variables and optimizer slots, as the devices held them
      history.safetensors        metrics so far

Arrays lie under their canonical paths in safetensors files, which need neither TensorFlow nor JAX to be read. A
variable that is split over a mesh is written in its parts, so that no host puts the whole model together.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runner.engine.base import Array, Part
from runner.errors import ConfigError

FORMAT = 1
BEST = "best.json"  # which step, by which metric
_PREFIX, _UNFINISHED = "step-", ".unfinished-"
_MANIFEST, _ARRAYS, _HISTORY = "checkpoint.json", "arrays-00000.safetensors", "history.safetensors"


@dataclass(frozen=True)
class Content:
    """What a checkpoint holds.

    Attributes:
      step: training steps done.
      parts: canonical path to the parts of a variable or slot, each with its place in the whole.
      history: named arrays of metrics so far.
      about: config, seed, position in the data, versions; plain values.
    """

    step: int
    parts: Mapping[str, Sequence[Part]]
    history: Mapping[str, Array]
    about: Mapping[str, Any]


class DamagedError(ConfigError):
    """A checkpoint whose bytes are not those that were written."""


def write(folder: Path, content: Content) -> Path:
    """Writes a checkpoint into a folder of checkpoints.

    It is written beside its place and renamed when all of it is on the disk: a process that dies in the middle
    leaves the checkpoints before it as they were.

    Args:
      folder: the run's checkpoints; made where it is not there.
      content: what to write.

    Returns:
      The checkpoint's own folder.

    Raises:
      OSError: the disk is full, or can't be written.
    """
    target = folder / f"{_PREFIX}{content.step:09d}"
    making = folder / f"{_UNFINISHED}{content.step:09d}-{os.getpid()}"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    arrays, tensors = {}, {}
    for path, parts in content.parts.items():
        places = []
        for number, part in enumerate(parts):
            key = path if len(parts) == 1 else f"{path}@{number}"
            tensors[key] = np.ascontiguousarray(part.array).reshape(part.array.shape)
            places.append({"file": _ARRAYS, "key": key, "start": list(part.start)})
        first = parts[0]
        arrays[path] = {"shape": list(first.whole), "dtype": str(first.array.dtype), "parts": places}
    files = {}
    for name, named in ((_ARRAYS, tensors), (_HISTORY, dict(content.history))):
        _save(making / name, named)
        files[name] = {"bytes": (making / name).stat().st_size, "sha256": _digest(making / name)}
    manifest = {"format": FORMAT, "step": content.step, **content.about, "files": files, "arrays": arrays}
    manifest["sha256"] = _manifest_digest(manifest)
    _write_synced(making / _MANIFEST, json.dumps(manifest, indent=1).encode())
    if target.exists():  # the same step again, after a resume from an earlier one
        remove(folder, content.step)
    making.rename(target)
    _sync_folder(folder)
    return target


def steps(folder: Path) -> list[int]:
    """Returns the steps of a folder's checkpoints, in order; one that was never finished does not count."""
    names = (path.name.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*"))
    return sorted(int(name) for name in names if name.isdigit())


def place(folder: Path, step: int) -> Path:
    """Returns where the checkpoint of a step lies."""
    return folder / f"{_PREFIX}{step:09d}"


def remove(folder: Path, step: int) -> None:
    """Removes a checkpoint, first from sight."""
    gone = folder / f"{_UNFINISHED}{step:09d}-{os.getpid()}-old"
    shutil.rmtree(gone, ignore_errors=True)
    place(folder, step).rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def clean(folder: Path) -> None:
    """Removes what a process that died left half written."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)


class Checkpoint(Mapping[str, Array]):
    """A checkpoint that was read and found whole: canonical path to array, each put together when it is asked for.

    Attributes:
      step: training steps done.
      about: config, seed, position in the data, versions; plain values.
    """

    def __init__(self, folder: Path) -> None:
        """Opens and checks a checkpoint.

        Raises:
          DamagedError: a file is missing, or its bytes have changed.
          ConfigError: a format that this version does not know.
        """
        self.folder = folder
        manifest = read_manifest(folder)
        for name, wanted in manifest["files"].items():
            _check_file(folder / name, wanted)
        self.step, self.about = int(manifest["step"]), manifest
        self._arrays: dict[str, Any] = manifest["arrays"]

    def __getitem__(self, path: str) -> Array:
        return self.read(path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def shape(self, path: str) -> tuple[int, ...]:
        """Returns the shape of a whole array, without reading it."""
        return tuple(self._arrays[path]["shape"])

    def read(self, path: str) -> Array:
        """Returns a whole array."""
        from safetensors import safe_open

        entry = self._arrays[path]
        whole: Array = np.empty(entry["shape"], entry["dtype"])
        for part in entry["parts"]:
            with safe_open(self.folder / part["file"], framework="numpy") as file:
                piece = file.get_tensor(part["key"])
            index = tuple(slice(start, start + size) for start, size in zip(part["start"], piece.shape, strict=True))
            whole[index] = piece
        return whole

    def history(self) -> dict[str, Array]:
        """Returns the metrics so far, as they were given to `write`."""
        from safetensors.numpy import load_file

        return dict(load_file(self.folder / _HISTORY))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns what a checkpoint says of itself; its arrays are not looked at.

    Raises:
      DamagedError: it is missing, or not as it was written.
      ConfigError: a format that this version does not know.
    """
    path = folder / _MANIFEST
    try:
        manifest = json.loads(path.read_text())
        known = int(manifest["format"])
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path} can't be read") from error
    if known > FORMAT:
        raise ConfigError(
            f"checkpoint {folder} is refused: it has format {known}, this version reads up to {FORMAT}; "
            "use the version of the runner that wrote it, or a newer one"
        )
    if manifest.pop("sha256", None) != _manifest_digest(manifest):
        raise DamagedError(f"{path} is not as it was written")
    return dict(manifest)


def _check_file(path: Path, wanted: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise DamagedError(f"{path} is missing")
    if path.stat().st_size != wanted["bytes"]:
        raise DamagedError(f"{path} has {path.stat().st_size:,} bytes, {wanted['bytes']:,} were written")
    if _digest(path) != wanted["sha256"]:
        raise DamagedError(f"{path} is not as it was written: its SHA-256 differs")


def _save(path: Path, arrays: dict[str, Array]) -> None:
    from safetensors.numpy import save_file

    save_file(arrays, path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes a rename last; systems that can't open a folder need no such thing."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest_digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def best(folder: Path) -> dict[str, Any] | None:
    """Returns metric, value and step of the best checkpoint; None where there is none."""
    try:
        found = json.loads((folder / BEST).read_text())
        return found if found["step"] in steps(folder) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a small file that appears whole or not at all."""
    making = path.with_name(f".unfinished-{path.name}")
    making.write_text(json.dumps(content, indent=1) + "\n")
    making.replace(path)

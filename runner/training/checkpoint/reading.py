"""A checkpoint that is read: nothing of it is taken before all of it is found to be as it was written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from runner.data.base import Array
from runner.training.checkpoint import files, manifest
from runner.training.checkpoint.files import DamagedError
from runner.training.checkpoint.manifest import Manifest, Piece, Tensor
from runner.training.checkpoint.typed import MisfitError

_MOST_MAPPED = 32 << 20  # bytes
REPLACED = ".replaced"  # behind the name of a checkpoint whose successor, of the same step, is put in its place


def folder_name(step: int) -> str:
    """Returns the name of a checkpoint's folder."""
    return f"step-{step:09d}"


class Checkpoint(Mapping[str, Array]):
    """A checkpoint that was read and found whole: canonical path to array, each put together when it is asked for.

    Attributes:
      step: training steps done.
      about: run, config, seed, versions, time and last metrics; plain values.
    """

    def __init__(self, folder: Path, *, trusted: bool = False) -> None:
        """Opens and checks a checkpoint.

        Args:
          folder: of the checkpoint.
          trusted: another process has found that its bytes are those that were written.

        Raises:
          DamagedError: a file is missing, its bytes have changed, or the manifest is not true of it.
          ConfigError: a format that this version does not know.
        """
        self.folder = folder
        found = read_manifest(folder)
        for name, wanted in found.files.items():
            _check_size(folder / name, wanted.bytes)
        tensors = {name: _tensors(folder / name) for name in found.files}
        try:
            manifest.check_tensors(found, {name: those for name, those in tensors.items() if name != manifest.HISTORY})
        except MisfitError as error:
            raise DamagedError(f"{folder} is not as it was written: {error}") from error
        for name, wanted in found.files.items() if not trusted else ():
            if files.digest(folder / name) != wanted.sha256:
                raise DamagedError(f"{folder / name} is not as it was written: its SHA-256 differs")
        self.step = found.step
        self.about = found.about
        self._arrays = dict(found.arrays)
        self._sizes = {(name, key): one.shape for name, those in tensors.items() for key, one in those.items()}
        self._bytes = {name: wanted.bytes for name, wanted in found.files.items()}
        self._open: tuple[str, Any] | None = None  # the file that was read from last
        self._mapped = 0  # bytes of it that have been read

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, path: object) -> bool:
        return path in self._arrays  # a mapping's own would read the array

    def shape(self, path: str) -> tuple[int, ...]:
        """Returns the shape of a whole array, without reading it."""
        return self._arrays[path].shape

    def dtype(self, path: str) -> str:
        """Returns the dtype of an array, as `float32`, without reading it."""
        return self._arrays[path].dtype

    def __getitem__(self, path: str) -> Array:
        """Returns a whole array.

        Raises:
          DamagedError: its file has gone, or changed, since the checkpoint was opened.
        """
        entry = self._arrays[path]
        array: Array = np.empty(entry.shape, entry.dtype)
        for piece in entry.pieces:
            part = self._read(piece, ())
            index = tuple(slice(start, start + size) for start, size in zip(piece.start, part.shape, strict=True))
            array[index] = part
        return array

    def part(self, path: str, index: tuple[slice, ...]) -> Array:
        """Returns a part of an array; no more of its files is read.

        Args:
          path: of the array.
          index: a slice a dim, of step 1.

        Raises:
          DamagedError: its file has gone, or changed, since the checkpoint was opened.
        """
        entry = self._arrays[path]
        wanted = [one.indices(size)[:2] for one, size in zip(index, entry.shape, strict=True)]
        array: Array = np.empty([stop - start for start, stop in wanted], entry.dtype)
        for piece in entry.pieces:
            spans = list(zip(piece.start, self._sizes[piece.file, piece.key], wanted, strict=True))
            common = [(max(at, low), min(at + size, high)) for at, size, (low, high) in spans]
            if any(low >= high for low, high in common):
                continue
            inner = tuple(slice(low - at, high - at) for (low, high), at in zip(common, piece.start, strict=True))
            outer = tuple(slice(low - at, high - at) for (low, high), (at, _) in zip(common, wanted, strict=True))
            array[outer] = self._read(piece, inner)
        return array

    def _read(self, piece: Piece, index: tuple[slice, ...]) -> Array:
        """Returns a part of what one file holds of an array; without slices all of it.

        The file stays open for the next, as its header is long; what was read of it counts as memory until then.
        """
        path = self.folder / piece.file
        _check_size(path, self._bytes[piece.file])  # of a shorter one the system ends the process that reads it
        if self._open is None or self._open[0] != piece.file or self._mapped > _MOST_MAPPED:
            self._open = None
            self._mapped = 0
            with _safe(path):
                self._open = piece.file, safe_open(path, framework="numpy")
        with _safe(path):
            file = self._open[1]
            part: Array = file.get_slice(piece.key)[index] if index else file.get_tensor(piece.key)
        self._mapped += part.nbytes
        return part

    def history(self) -> dict[str, Array]:
        """Returns the metrics so far, as they were given to `write`.

        Raises:
          DamagedError: its file has gone, or changed, since the checkpoint was opened.
        """
        with _safetensors(self.folder / manifest.HISTORY) as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping


def read_manifest(folder: Path) -> Manifest:
    """Returns what a checkpoint says of itself, which its folder's name must agree with; see `manifest.read`.

    Raises:
      DamagedError: it is missing, not as it was written, or of another step.
      ConfigError: a format that this version does not know.
    """
    found = manifest.read(folder)
    if folder.name.removesuffix(REPLACED) != folder_name(found.step):
        raise DamagedError(f"{folder} holds the checkpoint of step {found.step}")
    return found


@contextmanager
def _safe(path: Path) -> Iterator[None]:
    """Turns whatever the library finds wrong with a file into a `DamagedError`."""
    try:
        yield
    except Exception as error:
        raise DamagedError(f"{path} can't be read: {error}") from error


@contextmanager
def _safetensors(path: Path) -> Iterator[Any]:
    """Opens a safetensors file."""
    with files.opened(path):
        pass  # nothing but a regular file is given to a library
    with _safe(path), safe_open(path, framework="numpy") as file:
        yield file


def _tensors(path: Path) -> dict[str, Tensor]:
    with _safetensors(path) as file:
        slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
        return {key: Tensor(str(one.get_dtype()), tuple(one.get_shape())) for key, one in slices.items()}


def _check_size(path: Path, wanted: int) -> None:
    with files.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
    if size != wanted:
        raise DamagedError(f"{path} has {size:,} bytes, {wanted:,} were written")

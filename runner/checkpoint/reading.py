"""Verified checkpoints: nothing of one is used before all of its files are found to be those that were written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from runner.checkpoint import (
    files,
    manifest,
)
from runner.checkpoint.files import DamagedError
from runner.checkpoint.manifest import (
    Manifest,
    PartEntry,
    TensorHeader,
)
from runner.checkpoint.typed import MisfitError
from runner.data.base import Array
from runner.host.stores import cache
from runner.host.stores.urls import ObjectPath, Place

# Bytes read from an open file before it is opened again. What was read stays mapped, and counts as memory, until the
# file is closed; opening costs the parsing of its header. Opening for each part took four minutes for 800 million
# parameters in many shards, this takes 24 s.
_MAX_MAPPED = 32 << 20


def folder_name(step: int) -> str:
    """Returns the name of a checkpoint's folder."""
    return f"step-{step:09d}"


class Checkpoint(Mapping[str, Array]):
    """A verified checkpoint: canonical path -> array, each put together from its parts when it is asked for.

    Attributes:
      folder: the folder of the checkpoint.
      step: training steps done.
      about: run, config, seed, versions, time and last metrics, as plain values.
    """

    def __init__(self, folder: Place, *, trusted: bool = False) -> None:
        """Opens and verifies a checkpoint.

        The files of one in an object store are read from their local copies, see `runner.host.stores.cache`.

        Args:
          folder: the folder of the checkpoint.
          trusted: skips the SHA-256 of the files, because another process of the run has verified them.

        Raises:
          DamagedError: a file is missing or corrupted, or disagrees with the manifest.
          ConfigError: this version does not know the format.
          OSError: the store does not answer.
        """
        self.folder = folder
        content = read_manifest(folder)
        self._files_folder = folder / content.files_folder
        self._files = dict(content.files)
        # The local copies of objects, by name.
        self._copies: dict[str, Path] = {}
        # From cheap to expensive: sizes, headers, and only then the digests, which read every byte.
        for name, entry in content.files.items():
            _check_size(self._local(name, trusted=trusted), entry.bytes)
        headers = {name: _headers(self._local(name, trusted=True)) for name in content.files}
        of_arrays = dict(headers)
        del of_arrays[manifest.HISTORY]
        try:
            manifest.check_tensors(content, of_arrays)
        except MisfitError as error:
            raise DamagedError(f"{folder} is invalid: {error}") from error
        # The copies of objects were compared with their digests above.
        if not trusted and not isinstance(folder, ObjectPath):
            for name, entry in content.files.items():
                path = self._local(name, trusted=True)
                if files.digest(path) != entry.sha256:
                    raise DamagedError(f"{path} is corrupted (SHA-256 mismatch)")
        self.step = content.step
        self.about = content.about
        self._arrays = dict(content.arrays)
        self._headers = headers
        # The safetensors file that was read from last, by name, and the bytes that were read from it.
        self._open: tuple[str, Any] | None = None
        self._mapped = 0

    def _local(self, name: str, *, trusted: bool) -> Path:
        """Returns the path of a file; that of an object is its local copy, which is made if there is none.

        Args:
          name: of the file.
          trusted: does not compare an existing copy with its digest again.
        """
        path = self._files_folder / name
        if not isinstance(path, ObjectPath):
            return path
        copy = self._copies.get(name)
        if copy is not None and copy.exists():
            return copy
        entry = self._files[name]
        try:
            copy = cache.fetch(path, entry.sha256, entry.bytes, trusted=trusted)
        except FileNotFoundError:
            raise DamagedError(f"{path} is missing") from None
        except cache.MismatchError as error:
            raise DamagedError(str(error)) from None
        self._copies[name] = copy
        return copy

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, path: object) -> bool:
        # The one inherited from Mapping would read the array.
        return path in self._arrays

    def shape(self, path: str) -> tuple[int, ...]:
        """Returns the shape of a whole array, without reading it."""
        return self._arrays[path].shape

    def dtype(self, path: str) -> str:
        """Returns NumPy's name of an array's dtype, such as `float32`, without reading the array."""
        return self._arrays[path].dtype

    def __getitem__(self, path: str) -> Array:
        """Returns a whole array.

        Raises:
          DamagedError: its file was removed or has changed since the checkpoint was opened.
        """
        entry = self._arrays[path]
        array: Array = np.empty(entry.shape, entry.dtype)
        for part in entry.parts:
            values = self._read(part, ())
            stop = np.add(part.start, values.shape)
            array[tuple(map(slice, part.start, stop))] = values
        return array

    def part(self, path: str, index: tuple[slice, ...]) -> Array:
        """Returns a region of an array; no more of its files is read.

        Args:
          path: the path of the array.
          index: one slice per dim, with step 1.

        Raises:
          DamagedError: its file was removed or has changed since the checkpoint was opened.
        """
        entry = self._arrays[path]
        # Per dim the start and stop of the region, in the whole array.
        region: list[tuple[int, int]] = []
        sizes: list[int] = []
        for dim_slice, size in zip(index, entry.shape, strict=True):
            start, stop, _ = dim_slice.indices(size)
            region.append((start, stop))
            sizes.append(stop - start)
        array: Array = np.empty(sizes, entry.dtype)
        for part in entry.parts:
            part_shape = self._headers[part.file][part.key].shape
            in_part: list[slice] = []
            in_region: list[slice] = []
            for part_start, part_size, (start, stop) in zip(part.start, part_shape, region, strict=True):
                # The overlap of this part with the region, which is empty if low >= high.
                low = max(part_start, start)
                high = min(part_start + part_size, stop)
                if low >= high:
                    break
                in_part.append(slice(low - part_start, high - part_start))
                in_region.append(slice(low - start, high - start))
            else:
                array[tuple(in_region)] = self._read(part, tuple(in_part))
        return array

    def _read(self, part: PartEntry, index: tuple[slice, ...]) -> Array:
        """Returns a region of one part of an array; with an empty index the whole part."""
        path = self._local(part.file, trusted=True)
        # The files are memory-mapped: if one has become shorter, the system kills the process that reads beyond it.
        _check_size(path, self._files[part.file].bytes)
        if self._open is None or self._open[0] != part.file or self._mapped > _MAX_MAPPED:
            self._open = None
            self._mapped = 0
            with _reading(path):
                self._open = part.file, safe_open(path, framework="numpy")
        with _reading(path):
            file = self._open[1]
            values: Array = file.get_slice(part.key)[index] if index else file.get_tensor(part.key)
        self._mapped += values.nbytes
        return values

    def history(self) -> dict[str, Array]:
        """Returns the metrics so far, as they were passed to `storage.write`.

        Raises:
          DamagedError: the file was removed or has changed since the checkpoint was opened.
        """
        with _opened_tensors(self._local(manifest.HISTORY, trusted=True)) as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping


def read_manifest(folder: Place) -> Manifest:
    """Returns the manifest of a checkpoint, whose step must be that of the folder's name; see `manifest.read`.

    Raises:
      DamagedError: the manifest is missing, corrupted, invalid, or of another step.
      ConfigError: this version does not know its format.
    """
    content = manifest.read(folder)
    if folder.name != folder_name(content.step):
        raise DamagedError(f"{folder} holds the checkpoint of step {content.step}")
    return content


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns any error of the safetensors library into a `DamagedError`."""
    try:
        yield
    except Exception as error:
        raise DamagedError(f"{path} can't be read: {error}") from error


@contextmanager
def _opened_tensors(path: Path) -> Iterator[Any]:
    """Opens a safetensors file."""
    # The library would follow links and open devices, so the path is checked first.
    with files.opened(path):
        pass
    with _reading(path), safe_open(path, framework="numpy") as file:
        yield file


def _headers(path: Path) -> dict[str, TensorHeader]:
    """Returns dtype and shape of every tensor of a file by key, without reading their values."""
    headers: dict[str, TensorHeader] = {}
    with _opened_tensors(path) as file:
        for key in file.keys():  # noqa: SIM118 - not a mapping
            tensor = file.get_slice(key)
            headers[key] = TensorHeader(str(tensor.get_dtype()), tuple(tensor.get_shape()))
    return headers


def _check_size(path: Path, expected: int) -> None:
    with files.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
    if size != expected:
        raise DamagedError(f"{path} has {size:,} bytes, but {expected:,} were written")

"""Verified checkpoints: nothing of one is used before all of its files are found to be those that were written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from runner.checkpoint import files, manifest
from runner.checkpoint.files import DamagedError
from runner.checkpoint.manifest import PartEntry
from runner.checkpoint.metric_history import MetricHistory, from_json
from runner.data.base import Array
from runner.host.stores import client
from runner.host.stores.urls import ObjectPath, Place

# Bytes read from an open file before it is opened again. What was read stays mapped, and counts as memory, until the
# file is closed; opening costs the parsing of its header. Opening for each part took four minutes for 800 million
# parameters in many shards, this takes 24 s.
_MAX_MAPPED = 32 << 20


class Checkpoint(Mapping[str, Array]):
    """A verified checkpoint: canonical path -> array, each put together from its parts when it is asked for.

    Attributes:
      folder: the folder of the checkpoint.
      step: training steps done.
      about: run, config, seed, versions, time and last metrics, as plain values.
    """

    def __init__(self, folder: Place, *, trusted: bool = False) -> None:
        """Opens and verifies a checkpoint; the files of one in a store are read from local copies.

        `trusted` skips the SHA-256 of the files, because another process of the run has verified them.

        Raises:
          DamagedError: a file is missing or corrupted, or disagrees with the manifest.
          ConfigError: this version does not know the format.
          OSError: the store does not answer.
        """
        self.folder = folder
        content = manifest.read(folder)
        self.step = content.step
        self.about = content.about
        self._files_folder = folder / content.files_folder
        self._files = content.files
        self._arrays = dict(content.arrays)
        # From cheap to expensive: sizes, headers, and only then the digests, which read every byte.
        paths = {name: self._local(name) for name in content.files}
        self._headers = {name: _headers(path) for name, path in paths.items() if name != manifest.HISTORY}
        manifest.check_tensors(folder, content, self._headers)
        # The local copies of objects were compared with their digests when they were made.
        if not trusted and not isinstance(folder, ObjectPath):
            for name, path in paths.items():
                if files.digest(path) != content.files[name].sha256:
                    raise DamagedError(f"{path} is corrupted (SHA-256 mismatch)")
        # The safetensors file that was read from last, by name, and the bytes that were read from it.
        self._open: tuple[str, Any] | None = None
        self._mapped = 0

    def _local(self, name: str) -> Path:
        """Returns the path of a file of the right size; that of an object is its local copy."""
        path = self._files_folder / name
        entry = self._files[name]
        if isinstance(path, ObjectPath):
            try:
                return client.fetch(path, entry.sha256, entry.bytes)
            except FileNotFoundError:
                raise DamagedError(f"{path} is missing") from None
            except client.MismatchError as error:
                raise DamagedError(str(error)) from None
        with files.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
        if size != entry.bytes:
            raise DamagedError(f"{path} has {size:,} bytes, but {entry.bytes:,} were written")
        return path

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
        return self.part(path, tuple(slice(None) for _ in self.shape(path)))

    def part(self, path: str, index: tuple[slice, ...]) -> Array:
        """Returns a region of an array (one slice per dim, with step 1); no more of its files is read."""
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
            _, part_shape = self._headers[part.file][part.key]
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
        """Returns a region of one part of an array."""
        if self._open is None or self._open[0] != part.file or self._mapped > _MAX_MAPPED:
            self._open = None
            self._mapped = 0
            path = self._local(part.file)
            with _reading(path):
                self._open = part.file, safe_open(path, framework="numpy")
        with _reading(self._files_folder / part.file):
            file = self._open[1]
            values: Array = file.get_slice(part.key)[index] if index else file.get_tensor(part.key)
        self._mapped += values.nbytes
        return values

    def history(self) -> MetricHistory:
        """Returns the metrics so far; raises DamagedError if the file has none."""
        path = self._local(manifest.HISTORY)
        with _reading(path):
            return from_json(json.loads(path.read_bytes()))


@contextmanager
def _reading(path: Place) -> Iterator[None]:
    """Turns any error of reading a verified file into a `DamagedError`."""
    try:
        yield
    except Exception as error:
        raise DamagedError(f"{path} can't be read: {error}") from error


def _headers(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns dtype and shape of every tensor of a file by key, without reading their values."""
    headers: dict[str, tuple[str, tuple[int, ...]]] = {}
    with _reading(path), safe_open(path, framework="numpy") as file:
        for key in file.keys():  # noqa: SIM118 - not a mapping
            tensor = file.get_slice(key)
            headers[key] = str(tensor.get_dtype()), tuple(tensor.get_shape())
    return headers

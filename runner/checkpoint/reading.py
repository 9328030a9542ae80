"""Verified checkpoints: nothing of one is used before all of its files are found to be those that were written."""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from io import BufferedRandom, BufferedReader
from typing import Any

import numpy as np
from safetensors import safe_open

from runner.checkpoint import files, manifest
from runner.checkpoint.files import DamagedError
from runner.checkpoint.manifest import PartEntry
from runner.checkpoint.metric_history import MetricHistory, from_json
from runner.checkpoint.places import ObjectPath, Place
from runner.data.base import Array

# Bytes read from a mapped file before it is mapped again. What was read stays mapped, and counts as memory, until the
# file is closed; opening costs the parsing of its header. Opening for each part took four minutes for 800 million
# parameters in many shards, this takes 24 s.
_MAX_MAPPED = 32 << 20


class Checkpoint(Mapping[str, Array]):
    """A verified checkpoint: canonical path -> array, each put together from its parts when it is asked for.

    Its files stay open, so what is read is what was verified, whatever happens to the folder.

    Attributes:
      step: training steps done.
      about: run, config, seed, versions and data, as plain values.
    """

    def __init__(self, folder: Place, *, trusted: bool = False) -> None:
        """Opens and verifies a checkpoint, and copies the files of one in a store; raises as `manifest.read` does.

        `trusted` skips the SHA-256 of local files, because another process of the run has verified them.
        """
        self.folder = folder
        content = manifest.read(folder)
        self.step = content.step
        self.about = content.about
        self._arrays = content.arrays
        self._files: dict[str, BufferedReader | BufferedRandom] = {}
        is_verified = trusted and not isinstance(folder, ObjectPath)
        with ExitStack() as stack:
            for name, entry in content.files.items():
                path = folder / content.files_folder / name
                file = stack.enter_context(files.opened(path, entry.bytes))
                size = os.fstat(file.fileno()).st_size
                if size != entry.bytes:
                    raise DamagedError(f"{path} has {size:,} bytes, but {entry.bytes:,} were written")
                if not is_verified and hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                    raise DamagedError(f"{path} is corrupted (SHA-256 mismatch)")
                self._files[name] = file
            weakref.finalize(self, stack.pop_all().close)
        # The safetensors file that was read from last, by name, and the bytes that were read from it.
        self._open: tuple[str, Any] | None = None
        self._mapped = 0

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
        return self.part(path, (slice(None),) * len(self.shape(path)))

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
            in_part: list[slice] = []
            in_region: list[slice] = []
            for part_start, part_size, (start, stop) in zip(part.start, part.shape, region, strict=True):
                # The overlap of this part with the region, which is empty if low >= high.
                low = max(part_start, start)
                high = min(part_start + part_size, stop)
                if low >= high:
                    break
                in_part.append(slice(low - part_start, high - part_start))
                in_region.append(slice(low - start, high - start))
            else:
                array[tuple(in_region)] = self._read(part, entry.dtype, tuple(in_part))
        return array

    def _read(self, part: PartEntry, dtype: str, index: tuple[slice, ...]) -> Array:
        """Returns a region of one part of an array."""
        with self._reading(part.file):
            if self._open is None or self._open[0] != part.file or self._mapped > _MAX_MAPPED:
                self._open = None
                self._mapped = 0
                # By its descriptor: the copy of an object has no name.
                path = f"/dev/fd/{self._files[part.file].fileno()}"
                self._open = part.file, safe_open(path, framework="numpy")
            tensor = self._open[1].get_slice(part.key)
            if tuple(tensor.get_shape()) != part.shape or tensor.get_dtype() != manifest.DTYPES[dtype]:
                raise ValueError(f"{part.key} is another array than the manifest says")
            values: Array = tensor[index] if index else self._open[1].get_tensor(part.key)
        self._mapped += values.nbytes
        return values

    def history(self) -> MetricHistory:
        """Returns the metrics so far; raises DamagedError if the file has none."""
        file = self._files[manifest.HISTORY]
        with self._reading(manifest.HISTORY):
            file.seek(0)
            return from_json(json.load(file))

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Turns any error of reading a verified file into a `DamagedError`."""
        try:
            yield
        except Exception as error:
            raise DamagedError(f"{self.folder / name} can't be read: {error}") from error

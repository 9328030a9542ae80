"""Writes safetensors files array by array, so that no more than one is copied, and hashes them as they are written.

The library's own writer takes all arrays of a file at once, which must then be in the host's memory together.
The format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from runner.training.checkpoint.files import NO_SURPRISE
from runner.training.checkpoint.manifest import DTYPES

_ALIGNED = 8  # bytes, that the header's length is a multiple of


def write(path: Path, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a new file that is on the disk when this returns.

    Args:
      path: of the file.
      arrays: by key, with `shape` and `dtype`; each is brought to the host by NumPy when its turn comes.

    Returns:
      What a manifest says of the file: its size in bytes and its SHA-256.

    Raises:
      OSError: something is there already, or the disk is full.
    """
    # The widest elements first, so that all lie at multiples of their size.
    order = sorted(arrays, key=lambda key: (-np.dtype(arrays[key].dtype).itemsize, key))
    head: dict[str, Any] = {}
    end = 0
    for key in order:
        shape = [int(size) for size in arrays[key].shape]
        dtype = np.dtype(arrays[key].dtype)
        begin = end
        end = end + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        head[key] = {"dtype": DTYPES[dtype.name], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    digest = hashlib.sha256()
    size = 0
    # What the user lets others read is told by the folder.
    mode = stat.S_IMODE(path.parent.stat().st_mode) & 0o666
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_SURPRISE, mode)
    with os.fdopen(handle, "wb") as file:
        path.chmod(mode)
        begun: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text]
        for piece in chain(begun, (_bytes_of(arrays[key]) for key in order)):
            file.write(piece)
            digest.update(piece)
            size += memoryview(piece).nbytes
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _bytes_of(array: Any) -> memoryview:
    """Returns an array's bytes, row-major and little-endian, without a copy where it lies so on this host."""
    held = np.asarray(array)
    if held.dtype.byteorder == ">":
        held = held.astype(held.dtype.newbyteorder("<"))
    found: memoryview = np.ascontiguousarray(held).reshape(-1).view(np.uint8).data
    return found

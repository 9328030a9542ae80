"""Streaming writer of safetensors files: one array in memory at a time, hashed while it is written.

The library's own writer takes all arrays of a file at once, which must then fit in the host's memory together.
The format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from runner.checkpoint import files
from runner.checkpoint.manifest import DTYPES
from runner.checkpoint.places import Place

# The length of the header is a multiple of this, so that the arrays after it are aligned for every dtype.
_ALIGNMENT = 8

# Bytes that are written at a time, so that an upload never copies a whole array.
_PIECE = 4 << 20


def write(path: Place, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a new file that is on the disk, or in its store, when this returns; returns its size and SHA-256.

    Each array has `shape` and `dtype`; NumPy copies it to the host when its turn comes.
    """
    # The widest elements first, so that each array starts at a multiple of its element size.
    order = sorted(arrays, key=lambda key: (-np.dtype(arrays[key].dtype).itemsize, key))
    digest = hashlib.sha256()
    size = 0

    def pieces() -> Iterator[memoryview]:
        nonlocal size
        for chunk in _chunks(arrays, order):
            for start in range(0, chunk.nbytes, _PIECE):
                piece = chunk[start : start + _PIECE]
                digest.update(piece)
                size += piece.nbytes
                yield piece

    files.write_pieces(path, pieces())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _chunks(arrays: Mapping[str, Any], order: Sequence[str]) -> Iterator[memoryview]:
    """Yields the parts of a file: the header's length, the header, and each array."""
    header = _header(arrays, order)
    yield memoryview(len(header).to_bytes(8, "little"))
    yield memoryview(header)
    for key in order:
        yield _bytes_of(arrays[key])


def _header(arrays: Mapping[str, Any], order: Sequence[str]) -> bytes:
    """Returns the JSON header: dtype, shape and byte offsets of every array, padded with spaces."""
    entries: dict[str, Any] = {}
    end = 0
    for key in order:
        shape = list(map(int, arrays[key].shape))
        dtype = np.dtype(arrays[key].dtype)
        begin = end
        end = begin + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        entries[key] = {"dtype": DTYPES[dtype.name], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % _ALIGNMENT)


def _bytes_of(array: Any) -> memoryview:
    """Returns an array's bytes, row-major and little-endian, without a copy if the host has them in this order."""
    on_host = np.asarray(array)
    if on_host.dtype.byteorder == ">":
        on_host = on_host.astype(on_host.dtype.newbyteorder("<"))
    data: memoryview = np.ascontiguousarray(on_host).reshape(-1).view(np.uint8).data
    return data

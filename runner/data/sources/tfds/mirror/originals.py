"""MNIST's and Fashion-MNIST's original files: digests, and TFDS's order."""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runner.data.base import Array
from runner.errors import DataError

# sha256 of the decompressed IDX files. Their md5 are those that the publishers and many copies state, such as
# 6bbc9ace... and f4a8712d... for MNIST's training images and Fashion-MNIST's.
DIGESTS: Mapping[str, Mapping[str, str]] = {
    "mnist": {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
}

# Builder -> the version whose order of examples `in_tfds_order` gives. Tests compare it with what TFDS prepares.
ORDERED: Mapping[str, str] = {"mnist": "3.0.1"}

# Split -> prefix of its files.
_PREFIXES = {"train": "train", "test": "t10k"}
# Bytes before the data of an IDX file: a magic number, and one big-endian int32 per dim.
_IMAGE_HEADER_BYTES = 16
_LABEL_HEADER_BYTES = 8


def verify(name: str, contents: Mapping[str, bytes], label: str) -> None:
    """Compares decompressed files with their public digests.

    Args:
      name: a key of `DIGESTS`.
      contents: decompressed files by name.
      label: their origin, for the error.

    Raises:
      DataError: a file is missing or has another digest.
    """
    for file, expected in DIGESTS[name].items():
        actual = hashlib.sha256(contents.get(file, b"")).hexdigest()
        if actual != expected:
            raise DataError(
                f"{file} from the {label} is corrupted (sha256 {actual[:12]}…, expected {expected[:12]}…) and is not "
                f"used; prepare {name} elsewhere and set dataset.data_dir, or use dataset=digits"
            )


def write(contents: Mapping[str, bytes], folder: Path) -> None:
    """Writes decompressed files gzipped and named as the TFDS builders expect them."""
    for file, content in contents.items():
        (folder / f"{file}.gz").write_bytes(gzip.compress(content, compresslevel=1, mtime=0))


def read(name: str, folder: Path) -> dict[str, bytes] | None:
    """Reads the files that `write` wrote, and verifies them.

    Args:
      name: a key of `DIGESTS`.
      folder: the folder of the four `.gz` files.

    Returns:
      Decompressed files by name; None if one is missing or corrupted.
    """
    contents = {}
    try:
        for file in DIGESTS[name]:
            contents[file] = gzip.decompress((folder / f"{file}.gz").read_bytes())
        verify(name, contents, f"folder {folder}")
    except (OSError, EOFError, zlib.error, DataError):
        return None
    return contents


def in_tfds_order(contents: Mapping[str, bytes]) -> dict[str, dict[str, Array]]:
    """Returns the examples of MNIST's files as TFDS prepares them, without TFDS.

    TFDS encodes each image as PNG, writes it, reads it again and decodes it, which takes 20 s of CPU time. The result
    has the same pixels in another order: sorted by the md5 of the split's name and the example's number.

    Args:
      contents: decompressed files by name.

    Returns:
      Split -> `image`, uint8 (N, 28, 28, 1), and `label`, int32 (N,).
    """
    splits: dict[str, dict[str, Array]] = {}
    for split, prefix in _PREFIXES.items():
        pixels = np.frombuffer(contents[f"{prefix}-images-idx3-ubyte"], np.uint8, offset=_IMAGE_HEADER_BYTES)
        labels = np.frombuffer(contents[f"{prefix}-labels-idx1-ubyte"], np.uint8, offset=_LABEL_HEADER_BYTES)
        hashes = [hashlib.md5(f"{split}{number}".encode()).digest() for number in range(len(labels))]
        order = sorted(range(len(labels)), key=hashes.__getitem__)
        splits[split] = {"image": pixels.reshape(-1, 28, 28, 1)[order], "label": labels[order].astype(np.int32)}
    return splits


def to_idx(array: npt.NDArray[np.uint8]) -> bytes:
    """Returns an array in MNIST's IDX format.

    It is a magic number, the dims as big-endian int32, then the bytes.

    Args:
      array: uint8, of any rank.

    Returns:
      The file's content.
    """
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()

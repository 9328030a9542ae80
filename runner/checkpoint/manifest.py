"""Schema of a checkpoint's manifest, `checkpoint.json`: typed, complete, and limited to the checkpoint's own folder.

A digest shows that a file has changed; it does not show who wrote it. So the content of a manifest is a claim, and
each part of it is compared with the files before anything is read, or memory for it allocated.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

from runner.checkpoint.files import (
    DamagedError,
    is_folder,
    read_json,
)
from runner.checkpoint.typed import MisfitError
from runner.checkpoint.typed import read as read_typed
from runner.data.vocabulary import Vocabulary
from runner.errors import ConfigError
from runner.host.stores.urls import ObjectPath, Place

# Files of format 3 were beside the manifest.
FORMAT = 4
NAME = "checkpoint.json"
ARRAYS = "arrays-00000.safetensors"
HISTORY = "history.safetensors"

# Bytes. A manifest of this size names half a million array parts, more than any model here is split into.
LARGEST = 64 << 20

# What the checkpoint records of the data that the run was trained on.
ENCODING = "encoding"
CONSTANTS = "constants"
DIGEST = "data_sha256"

# The folder of the files below that of the manifest. So a checkpoint of the same step is written beside the one that
# it replaces, and the manifest, which is written last, exchanges them.
FILES_FOLDER = "files_folder"
FOLDER_NAME = re.compile(r"[0-9a-f]{8,32}", re.ASCII)

_ARRAYS_FILE = re.compile(r"arrays-[0-9]{5}\.safetensors")

# NumPy's name of a dtype -> the name in a safetensors file, for what `runner.checkpoint.tensors` can write.
DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "bfloat16": "BF16",
}


@dataclass(frozen=True)
class TensorHeader:
    """A tensor of a safetensors file according to the file's header.

    Attributes:
      dtype: safetensors' name of the dtype, such as `F32`.
      shape: of the tensor.
    """

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint.

    Attributes:
      bytes: its size.
      sha256: its digest, in hexadecimal.
    """

    bytes: int
    sha256: str


@dataclass(frozen=True)
class PartEntry:
    """A part of an array: a shard as one device held it.

    Attributes:
      file: name of the safetensors file that holds it.
      key: of the tensor in that file.
      start: index of its first element in the whole array, one number per dim.
    """

    file: str
    key: str
    start: tuple[int, ...]


@dataclass(frozen=True)
class ArrayEntry:
    """An array, put together from its parts.

    Attributes:
      shape: of the whole array.
      dtype: NumPy's name, such as `float32`.
      parts: together they cover each element once.
    """

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[PartEntry, ...]


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint needs of `checkpoint.json`, of the right types; `about` is all of it.

    Attributes:
      step: training steps done.
      files_folder: the folder of the files below that of the manifest.
      files: by name, exactly those that hold the arrays and the history.
      arrays: by canonical path.
      run: id of the run.
      config: resolved.
      seed: of the run.
      versions: of the libraries.
      saved_at: when it was saved.
      metrics: the last ones.
      encoding: how the run's data became numbers, see `runner.data.base.Encoding`.
      constants: what the task computed from its training data.
      data_sha256: of the training data.
      about: the whole content as plain values.
    """

    step: int
    files_folder: str
    files: dict[str, FileEntry]
    arrays: dict[str, ArrayEntry]
    run: str
    config: dict[str, Any]
    seed: int
    versions: dict[str, str]
    saved_at: str
    metrics: dict[str, float]
    encoding: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, list[float]] = field(default_factory=dict)
    data_sha256: str = ""
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Encoding:
    """The types of an encoding's entries; words of the data may have any characters."""

    categories: dict[str, list[Any]] = field(default_factory=dict)
    mean: dict[str, list[float]] = field(default_factory=dict)
    deviation: dict[str, list[float]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    vocabulary: dict[str, Any] | None = None


def arrays_file(process: int) -> str:
    """Returns the name of the file that a process writes its shards into; process 0 always writes one."""
    return f"arrays-{process:05d}.safetensors"


def is_own(name: str) -> bool:
    """Returns whether a file of that name is part of a checkpoint."""
    return name in (NAME, HISTORY) or _ARRAYS_FILE.fullmatch(name) is not None


def sealed(content: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a manifest, with its own digest in it.

    Raises:
      OSError: the manifest is too large to be read again.
    """
    data = json.dumps({**content, "sha256": _digest(content)}, indent=1).encode()
    if len(data) > LARGEST:
        raise OSError(f"{NAME} would have {len(data):,} bytes, more than the {LARGEST:,} that can be read")
    return data


def read(folder: Place) -> Manifest:
    """Returns the manifest of a checkpoint; the files of its arrays are not looked at.

    Raises:
      DamagedError: the manifest is missing, corrupted or invalid.
      ConfigError: this version does not know its format.
    """
    path = folder / NAME
    if not isinstance(folder, ObjectPath) and not is_folder(folder):
        raise DamagedError(f"{folder} is not a folder")
    content = read_json(path, LARGEST)
    # The format comes first: another one may have another digest and other keys.
    file_format = content.get("format")
    if not isinstance(file_format, int):
        raise DamagedError(f"{path} is invalid: format must be an integer")
    if file_format != FORMAT:
        raise ConfigError(
            f"checkpoint {folder}: has format {file_format}, but this version of the runner reads format "
            f"{FORMAT}; use the version that wrote it"
        )
    if content.pop("sha256", None) != _digest(content):
        raise DamagedError(f"{path} is corrupted (SHA-256 mismatch)")
    try:
        return _checked(read_typed(Manifest, content, "it"), content)
    except MisfitError as error:
        raise DamagedError(f"{path} is invalid: {error}") from error


def _digest(content: Mapping[str, Any]) -> str:
    # With sorted keys, so that the digest does not depend on their order in the file.
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checked(claim: Manifest, content: dict[str, Any]) -> Manifest:
    """Returns a manifest whose entries agree with each other; raises MisfitError."""
    # Process 0's file is there even if all its shards are other processes'.
    used_files = {HISTORY, ARRAYS}
    for path, array in claim.arrays.items():
        _check_array(path, array)
        used_files.update(part.file for part in array.parts)
    if set(claim.files) != used_files:
        raise MisfitError(f"files must be {', '.join(sorted(used_files))}, which hold its arrays and its history")
    if not FOLDER_NAME.fullmatch(claim.files_folder):
        raise MisfitError(f"{FILES_FOLDER} must be a hexadecimal number")
    encoding = read_typed(_Encoding, claim.encoding, ENCODING)
    if not all(isinstance(word, str) for words in encoding.categories.values() for word in words):
        raise MisfitError(f"{ENCODING}.categories must be strings")
    if encoding.vocabulary is not None:
        try:
            Vocabulary.from_json(encoding.vocabulary)
        except ValueError as error:
            raise MisfitError(f"{ENCODING}.vocabulary is invalid: {error}") from error
    for table in (encoding.mean, encoding.deviation, claim.constants):
        if not all(math.isfinite(number) for numbers in table.values() for number in numbers):
            raise MisfitError("what it learned from its data must be finite numbers")
    return replace(claim, about=content)


def _check_array(path: str, array: ArrayEntry) -> None:
    if array.dtype not in DTYPES:
        raise MisfitError(f"arrays.{path}.dtype must be one of {', '.join(DTYPES)}")
    if not all(_ARRAYS_FILE.fullmatch(part.file) for part in array.parts):
        raise MisfitError(f"arrays.{path}.parts must be in arrays files in the checkpoint's own folder")
    keys = [f"{path}@{index}" for index in range(len(array.parts))]
    if len(array.parts) == 1:
        keys = [path]
    if not array.parts or [part.key for part in array.parts] != keys:
        raise MisfitError(f"arrays.{path}.parts must name the tensors {path}, or {path}@0 and so on")


def check_tensors(manifest: Manifest, tensors: Mapping[str, Mapping[str, TensorHeader]]) -> None:
    """Checks that the files hold the parts of every array, and that these cover each of its elements exactly once.

    Args:
      manifest: the claim.
      tensors: what the files hold: file name -> key -> header.

    Raises:
      MisfitError: names the first array that does not agree.
    """
    unclaimed: set[tuple[str, str]] = set()
    for file, headers in tensors.items():
        unclaimed.update(zip(repeat(file), headers, strict=False))
    for path, array in manifest.arrays.items():
        boxes: list[Box] = []
        for part in array.parts:
            header = tensors[part.file].get(part.key)
            if header is None:
                raise MisfitError(f"{part.file} lacks {part.key}")
            if header.dtype != DTYPES[array.dtype]:
                raise MisfitError(f"{part.key} is {header.dtype} in {part.file}, but {array.dtype} in {NAME}")
            if (part.file, part.key) not in unclaimed:
                raise MisfitError(f"{part.key} is part of two arrays")
            unclaimed.remove((part.file, part.key))
            boxes.append((part.start, header.shape))
        if not covers(array.shape, boxes):
            raise MisfitError(f"the parts of {path} don't cover each of its elements once")
    if unclaimed:
        _, key = min(unclaimed)
        raise MisfitError(f"{NAME} does not name {key}")


Box = tuple[tuple[int, ...], tuple[int, ...]]


def covers(shape: tuple[int, ...], boxes: Sequence[Box]) -> bool:
    """Returns whether boxes cover each element of an array exactly once.

    Args:
      shape: of the array.
      boxes: start and size of each box, one number per dim.
    """
    for start, size in boxes:
        if not len(start) == len(size) == len(shape):
            return False
        if any(begin + count > most for begin, count, most in zip(start, size, shape, strict=True)):
            return False
    # Boxes inside the array that have as many elements as it and don't overlap cover it; counting needs no memory.
    elements = sum(math.prod(size) for _, size in boxes)
    return elements == math.prod(shape) and not _overlap(len(shape), boxes)


def _overlap(rank: int, boxes: Sequence[Box]) -> bool:
    """Returns whether two boxes share an element.

    A sweep along one dim: each box is compared only with those that reach into its first row, so a large array of many
    shards is checked in far fewer comparisons than one per pair.
    """
    if rank == 0 or len(boxes) < 2:
        return len(boxes) > 1
    # Along the dim with the most different starts, so that few boxes are open together.
    starts = list(zip(*(start for start, _ in boxes), strict=True))
    dim = max(range(rank), key=lambda candidate: len(set(starts[candidate])))
    nonempty = [box for box in boxes if math.prod(box[1])]
    nonempty.sort(key=lambda box: box[0][dim])
    open_boxes: list[Box] = []
    for start, size in nonempty:
        still_open: list[Box] = []
        for other_start, other_size in open_boxes:
            if other_start[dim] + other_size[dim] <= start[dim]:
                continue
            if _intersect((start, size), (other_start, other_size)):
                return True
            still_open.append((other_start, other_size))
        open_boxes = [*still_open, (start, size)]
    return False


def _intersect(first: Box, second: Box) -> bool:
    return all(
        begin < other_begin + other_count and other_begin < begin + count
        for begin, count, other_begin, other_count in zip(*first, *second, strict=True)
    )

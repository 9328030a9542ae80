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
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from runner.data.vocabulary import Vocabulary
from runner.errors import ConfigError
from runner.host.stores.urls import ObjectPath, Place
from runner.training.checkpoint.files import DamagedError, is_folder, read_json
from runner.training.checkpoint.typed import MisfitError, items, mapping, number, text, whole

# A folder of format 2 could hold two histories, after a run had gone back to an earlier step.
FORMAT = 3
NAME = "checkpoint.json"
ARRAYS = "arrays-00000.safetensors"
HISTORY = "history.safetensors"

# Bytes. A manifest of this size names half a million array parts, more than any model here is split into.
LARGEST = 64 << 20

# What the checkpoint records of the data that the run was trained on.
ENCODING = "encoding"
CONSTANTS = "constants"
DIGEST = "data_sha256"

# In an object store, the folder of the files below that of the manifest. So a checkpoint of the same step is written
# beside the one that it replaces, and the manifest, which is written last, exchanges them.
FILES_FOLDER = "files_folder"
_FILES_FOLDER = re.compile(r"[0-9a-f]{8,32}", re.ASCII)

_ABOUT = ("run", "config", "seed", "versions", "saved_at", "metrics")
_ARRAYS_FILE = re.compile(r"arrays-[0-9]{5}\.safetensors")

# NumPy's name of a dtype -> the name in a safetensors file, for what `runner.training.checkpoint.tensors` can write.
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
    """The content of `checkpoint.json`.

    Attributes:
      step: training steps done.
      files: by name, exactly those that hold the arrays and the history.
      arrays: by canonical path.
      about: the whole content as plain values, with run, config, seed, versions, time and last metrics.
      files_folder: the folder of the files below that of the manifest; empty: the same, as in a local folder that is
        no copy from a store.
    """

    step: int
    files: Mapping[str, FileEntry]
    arrays: Mapping[str, ArrayEntry]
    about: Mapping[str, Any]
    files_folder: str = ""


def arrays_file(process: int) -> str:
    """Returns the name of the file that a process writes its shards into; process 0 always writes one."""
    return f"arrays-{process:05d}.safetensors"


def is_own(name: str) -> bool:
    """Returns whether a file of that name is part of a checkpoint."""
    return name in (NAME, HISTORY) or _ARRAYS_FILE.fullmatch(name) is not None


def is_files_folder(name: str) -> bool:
    """Returns whether a folder of that name may hold the files of a checkpoint in a store, or of a copy of it."""
    return _FILES_FOLDER.fullmatch(name) is not None


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
    try:
        # The format comes first: another one may have another digest and other keys.
        file_format = whole(content.get("format"), "format")
        if file_format != FORMAT:
            raise ConfigError(
                f"checkpoint {folder}: has format {file_format}, but this version of the runner reads format "
                f"{FORMAT}; use the version that wrote it"
            )
        if content.pop("sha256", None) != _digest(content):
            raise DamagedError(f"{path} is corrupted (SHA-256 mismatch)")
        return _parse(content)
    except MisfitError as error:
        raise DamagedError(f"{path} is invalid: {error}") from error


def _digest(content: Mapping[str, Any]) -> str:
    # With sorted keys, so that the digest does not depend on their order in the file.
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _parse(content: dict[str, Any]) -> Manifest:
    mapping(content, "it", ("format", "step", "files", "arrays", *_ABOUT))
    text(content["run"], "run")
    text(content["saved_at"], "saved_at")
    whole(content["seed"], "seed")
    mapping(content["config"], "config")
    _check_learned(content)
    for name, value in mapping(content["versions"], "versions").items():
        text(value, f"versions.{name}")
    for name, value in mapping(content["metrics"], "metrics").items():
        number(value, f"metrics.{name}")

    files: dict[str, FileEntry] = {}
    for name, value in mapping(content["files"], "files").items():
        files[name] = _file_entry(value, f"files.{name}")
    arrays: dict[str, ArrayEntry] = {}
    for path, value in mapping(content["arrays"], "arrays").items():
        arrays[path] = _array_entry(path, value)
    # Process 0's file is there even if all its shards are other processes'.
    used_files = {HISTORY, ARRAYS}
    for array in arrays.values():
        used_files.update(part.file for part in array.parts)
    if set(files) != used_files:
        raise MisfitError(f"files must be {', '.join(sorted(used_files))}, which hold its arrays and its history")
    files_folder = text(content.get(FILES_FOLDER, ""), FILES_FOLDER)
    if files_folder and not is_files_folder(files_folder):
        raise MisfitError(f"{FILES_FOLDER} must be a hexadecimal number")
    return Manifest(whole(content["step"], "step"), files, arrays, content, files_folder)


def _check_learned(content: Mapping[str, Any]) -> None:
    """Checks what the run learned from its training data; checkpoints of an earlier version lack it."""
    text(content.get(DIGEST, ""), DIGEST)
    encoding = mapping(content.get(ENCODING, {}), ENCODING)
    for name, words in mapping(encoding.get("categories", {}), f"{ENCODING}.categories").items():
        where = f"{ENCODING}.categories.{name}"
        for word in items(words, where):
            if not isinstance(word, str):
                raise MisfitError(f"{where} must be strings")
    if "vocabulary" in encoding:
        try:
            Vocabulary.from_json(mapping(encoding["vocabulary"], f"{ENCODING}.vocabulary"))
        except ValueError as error:
            raise MisfitError(f"{ENCODING}.vocabulary is invalid: {error}") from error
    for name, length in mapping(encoding.get("lengths", {}), f"{ENCODING}.lengths").items():
        whole(length, f"{ENCODING}.lengths.{name}")
    _check_numbers(encoding.get("mean", {}), f"{ENCODING}.mean")
    _check_numbers(encoding.get("deviation", {}), f"{ENCODING}.deviation")
    _check_numbers(content.get(CONSTANTS, {}), CONSTANTS)


def _check_numbers(table: object, where: str) -> None:
    """Checks a mapping of names to lists of finite numbers."""
    for name, values in mapping(table, where).items():
        for value in items(values, f"{where}.{name}"):
            number(value, f"{where}.{name}", finite=True)


def _file_entry(value: object, where: str) -> FileEntry:
    entry = mapping(value, where, ("bytes", "sha256"), exactly=True)
    return FileEntry(whole(entry["bytes"], f"{where}.bytes"), text(entry["sha256"], f"{where}.sha256"))


def _array_entry(path: str, value: object) -> ArrayEntry:
    where = f"arrays.{text(path, 'the name of an array')}"
    entry = mapping(value, where, ("shape", "dtype", "parts"), exactly=True)
    if text(entry["dtype"], f"{where}.dtype") not in DTYPES:
        raise MisfitError(f"{where}.dtype must be one of {', '.join(DTYPES)}")
    parts: list[PartEntry] = []
    for index, part in enumerate(items(entry["parts"], f"{where}.parts")):
        parts.append(_part_entry(part, f"{where}.parts[{index}]"))
    keys = [f"{path}@{index}" for index in range(len(parts))]
    if len(parts) == 1:
        keys = [path]
    if not parts or [part.key for part in parts] != keys:
        raise MisfitError(f"{where}.parts must name the tensors {path}, or {path}@0 and so on")
    return ArrayEntry(_numbers(entry["shape"], f"{where}.shape"), entry["dtype"], tuple(parts))


def _part_entry(value: object, where: str) -> PartEntry:
    entry = mapping(value, where, ("file", "key", "start"), exactly=True)
    file = text(entry["file"], f"{where}.file")
    if not _ARRAYS_FILE.fullmatch(file):
        raise MisfitError(f"{where}.file must be an arrays file in the checkpoint's own folder")
    return PartEntry(file, text(entry["key"], f"{where}.key"), _numbers(entry["start"], f"{where}.start"))


def _numbers(value: object, where: str) -> tuple[int, ...]:
    return tuple(whole(item, where) for item in items(value, where))


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

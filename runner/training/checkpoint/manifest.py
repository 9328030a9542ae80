"""What a checkpoint says of itself, as a schema: typed, complete, and of nothing outside its own folder.

A digest shows that a file has changed; it does not show who wrote it. So a manifest is taken for no more than a claim,
each part of which is held against the files before anything is read, or memory for it taken.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.data.vocabulary import Vocabulary
from runner.errors import ConfigError
from runner.training.checkpoint.files import DamagedError, is_folder, read_json
from runner.training.checkpoint.lineage import Lineage
from runner.training.checkpoint.typed import MisfitError, items, mapping, number, text, whole

FORMAT = 2  # 1 named no metrics in its history, see `runner.training.past`
NAME = "checkpoint.json"
ARRAYS = "arrays-00000.safetensors"
HISTORY = "history.safetensors"
LARGEST = 64 << 20  # bytes of a manifest: half a million parts
WENT_BACK = "went_back"
# of the data that the run was trained on
ENCODING = "encoding"
CONSTANTS = "constants"
DIGEST = "data_sha256"
_ABOUT = ("run", "config", "seed", "versions", "saved_at", "metrics")
_ARRAYS_FILE = re.compile(r"arrays-[0-9]{5}\.safetensors")
# As NumPy and as safetensors call them; what `runner.training.checkpoint.storage` can write.
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
class Tensor:
    """An array in a safetensors file, by its header: the file's own word for its dtype, and its shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class File:
    """A file of a checkpoint: its size in bytes, and its digest."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Piece:
    """A part of an array: where it lies, and where it begins in each dim of the whole."""

    file: str
    key: str
    start: tuple[int, ...]


@dataclass(frozen=True)
class Whole:
    """An array: what its parts make up."""

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself.

    Attributes:
      step: training steps done.
      files: by name, exactly those that the arrays and the history lie in.
      arrays: by canonical path.
      went_back: see `runner.training.checkpoint.lineage`.
      about: all of it, as plain values: run, config, seed, versions, time and last metrics besides.
    """

    step: int
    files: Mapping[str, File]
    arrays: Mapping[str, Whole]
    went_back: Lineage
    about: Mapping[str, Any]


def arrays_file(process: int) -> str:
    """Returns the name of the file that a process writes its shards into; process 0's is always there."""
    return f"arrays-{process:05d}.safetensors"


def is_own(name: str) -> bool:
    """Returns whether a file of that name is part of a checkpoint."""
    return name in (NAME, HISTORY) or _ARRAYS_FILE.fullmatch(name) is not None


def sealed(content: Mapping[str, Any]) -> bytes:
    """Returns a manifest's bytes, its own digest in it.

    Raises:
      OSError: it is too large to be read again.
    """
    data = json.dumps({**content, "sha256": _digest(content)}, indent=1).encode()
    if len(data) > LARGEST:
        raise OSError(f"its {NAME} has {len(data):,} bytes, and at most {LARGEST:,} are read")
    return data


def read(folder: Path) -> Manifest:
    """Returns what a checkpoint says of itself; its arrays are not looked at.

    Raises:
      DamagedError: it is missing, or not as it was written.
      ConfigError: a format that this version does not know.
    """
    path = folder / NAME
    if not is_folder(folder):
        raise DamagedError(f"{folder} is not a folder")
    found = read_json(path, LARGEST)
    try:
        known = whole(found.get("format"), "format")
        if known > FORMAT:
            raise ConfigError(
                f"checkpoint {folder}: it has format {known}, this version reads up to {FORMAT}; "
                "use the version of the runner that wrote it, or a newer one"
            )
        if found.pop("sha256", None) != _digest(found):
            raise DamagedError(f"{path} is not as it was written")
        return _parse(found)
    except MisfitError as error:
        raise DamagedError(f"{path} is not as it was written: {error}") from error


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _parse(found: dict[str, Any]) -> Manifest:
    mapping(found, "it", ("format", "step", "files", "arrays", *_ABOUT))
    if not 1 <= found["format"] <= FORMAT:
        raise MisfitError(f"format must be 1 to {FORMAT}")
    text(found["run"], "run")
    text(found["saved_at"], "saved_at")
    whole(found["seed"], "seed")
    mapping(found["config"], "config")
    _check_learned(found)
    for name, value in mapping(found["versions"], "versions").items():
        text(value, f"versions.{name}")
    for name, value in mapping(found["metrics"], "metrics").items():
        number(value, f"metrics.{name}")
    files = {name: _file(value, f"files.{name}") for name, value in mapping(found["files"], "files").items()}
    arrays = {name: _whole_array(name, value) for name, value in mapping(found["arrays"], "arrays").items()}
    used = {piece.file for array in arrays.values() for piece in array.pieces} | {HISTORY, ARRAYS}
    if set(files) != used:
        raise MisfitError(f"files must be {', '.join(sorted(used))}, where its arrays and its history lie")
    return Manifest(whole(found["step"], "step"), files, arrays, _lineage(found.get(WENT_BACK, [])), found)


def _check_learned(found: Mapping[str, Any]) -> None:
    """Checks what a checkpoint says of the data that its run was trained on; an earlier version says nothing."""
    text(found.get(DIGEST, ""), DIGEST)
    encoding = mapping(found.get(ENCODING, {}), ENCODING)
    for name, words in mapping(encoding.get("categories", {}), f"{ENCODING}.categories").items():
        for word in items(words, f"{ENCODING}.categories.{name}"):
            if not isinstance(word, str):
                raise MisfitError(f"{ENCODING}.categories.{name} must be texts")
    if "vocabulary" in encoding:
        try:
            Vocabulary.from_json(mapping(encoding["vocabulary"], f"{ENCODING}.vocabulary"))
        except ValueError as error:
            raise MisfitError(f"{ENCODING}.vocabulary is broken: {error}") from error
    tables = [(f"{ENCODING}.{key}", encoding.get(key, {})) for key in ("mean", "deviation")]
    for where, table in (*tables, (CONSTANTS, found.get(CONSTANTS, {}))):
        for name, values in mapping(table, where).items():
            for value in items(values, f"{where}.{name}"):
                number(value, f"{where}.{name}", finite=True)


def _file(value: object, where: str) -> File:
    entry = mapping(value, where, ("bytes", "sha256"), exactly=True)
    return File(whole(entry["bytes"], f"{where}.bytes"), text(entry["sha256"], f"{where}.sha256"))


def _whole_array(path: str, value: object) -> Whole:
    where = f"arrays.{text(path, 'the name of an array')}"
    entry = mapping(value, where, ("shape", "dtype", "parts"), exactly=True)
    if text(entry["dtype"], f"{where}.dtype") not in DTYPES:
        raise MisfitError(f"{where}.dtype must be one of {', '.join(DTYPES)}")
    parts = items(entry["parts"], f"{where}.parts")
    pieces = tuple(_piece(part, f"{where}.parts[{number}]") for number, part in enumerate(parts))
    keys = [path] if len(pieces) == 1 else [f"{path}@{number}" for number in range(len(pieces))]
    if not pieces or [piece.key for piece in pieces] != keys:
        raise MisfitError(f"{where}.parts must name the tensors {path}, or {path}@0 and so on")
    return Whole(_numbers(entry["shape"], f"{where}.shape"), entry["dtype"], pieces)


def _piece(value: object, where: str) -> Piece:
    entry = mapping(value, where, ("file", "key", "start"), exactly=True)
    name = text(entry["file"], f"{where}.file")
    if not _ARRAYS_FILE.fullmatch(name):
        raise MisfitError(f"{where}.file must be a file of arrays in the checkpoint's own folder")
    return Piece(name, text(entry["key"], f"{where}.key"), _numbers(entry["start"], f"{where}.start"))


def _numbers(value: object, where: str) -> tuple[int, ...]:
    return tuple(whole(one, where) for one in items(value, where))


def _lineage(value: object) -> Lineage:
    found = [_numbers(one, WENT_BACK) for one in items(value, WENT_BACK)]
    generations = [one[0] for one in found if len(one) == 2]
    if len(generations) != len(found) or generations != sorted(set(generations)):
        raise MisfitError(f"{WENT_BACK} must be pairs of numbers in order")
    return tuple((one[0], one[1]) for one in found)


def check_tensors(manifest: Manifest, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Checks that the parts of every array are there, and cover each of its elements exactly once.

    Args:
      manifest: what is claimed.
      tensors: by file of arrays and key, what is there.

    Raises:
      MisfitError: names the array where that is not so.
    """
    left = {(file, key) for file, named in tensors.items() for key in named}
    for path, array in manifest.arrays.items():
        boxes = []
        for piece in array.pieces:
            tensor = tensors[piece.file].get(piece.key)
            if tensor is None:
                raise MisfitError(f"{piece.file} lacks {piece.key}")
            if tensor.dtype != DTYPES[array.dtype]:
                raise MisfitError(f"{piece.key} is of {tensor.dtype} in {piece.file}, and {array.dtype} by {NAME}")
            if (piece.file, piece.key) not in left:
                raise MisfitError(f"{piece.key} is part of two arrays")
            left.remove((piece.file, piece.key))
            boxes.append((piece.start, tensor.shape))
        if not covers(array.shape, boxes):
            raise MisfitError(f"the parts of {path} don't cover each of its elements once")
    if left:
        raise MisfitError(f"{NAME} does not name {sorted(left)[0][1]}")


Box = tuple[tuple[int, ...], tuple[int, ...]]


def covers(shape: tuple[int, ...], boxes: Sequence[Box]) -> bool:
    """Returns whether boxes cover each element of an array exactly once.

    Args:
      shape: of the array.
      boxes: start and size of each, one number a dim.
    """
    for start, size in boxes:
        if not len(start) == len(size) == len(shape):
            return False
        if any(begin + count > most for begin, count, most in zip(start, size, shape, strict=True)):
            return False
    # As many elements as there are, and none twice.
    return sum(math.prod(size) for _, size in boxes) == math.prod(shape) and not _overlap(len(shape), boxes)


def _overlap(rank: int, boxes: Sequence[Box]) -> bool:
    """Returns whether two boxes share an element; each is held against those that reach into its first row."""
    if rank == 0 or len(boxes) < 2:
        return len(boxes) > 1
    # Along the dim that they are cut in most, so that few reach into each other's rows.
    dim = max(range(rank), key=lambda one: len({start[one] for start, _ in boxes}))
    open_boxes: list[Box] = []
    for start, size in sorted((box for box in boxes if math.prod(box[1])), key=lambda box: box[0][dim]):
        open_boxes = [(at, count) for at, count in open_boxes if at[dim] + count[dim] > start[dim]]
        if any(_meet((start, size), other) for other in open_boxes):
            return True
        open_boxes.append((start, size))
    return False


def _meet(one: Box, other: Box) -> bool:
    return all(
        a < b + width and b < a + length
        for a, length, b, width in zip(one[0], one[1], other[0], other[1], strict=True)
    )

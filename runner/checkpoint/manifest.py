"""Schema of a checkpoint's manifest, `checkpoint.json`.

A digest shows that a file has changed; it does not show who wrote it. So what a manifest says of arrays is checked
before memory is allocated, and it names files in the checkpoint's own folder only.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

from runner.checkpoint import files
from runner.checkpoint.files import DamagedError
from runner.checkpoint.places import Place
from runner.errors import ConfigError

FORMAT = 6
NAME = "checkpoint.json"
ARRAYS = "arrays-00000.safetensors"
HISTORY = "history.json"

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

_ARRAYS_FILE = re.compile(r"arrays-[0-9]{5}\.safetensors", re.ASCII)

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
class FileEntry:
    """Size and SHA-256 of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class PartEntry:
    """A shard: its file, the key of its tensor there, the index of its first element in the array, and its shape."""

    file: str
    key: str
    start: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ArrayEntry:
    """An array, put together from its parts; `dtype` is NumPy's name."""

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[PartEntry, ...]

    @property
    def is_covered(self) -> bool:
        """Whether the parts are in the array, and have as many elements."""
        elements = 0
        for part in self.parts:
            if not len(part.start) == len(part.shape) == len(self.shape):
                return False
            for start, size, whole in zip(part.start, part.shape, self.shape, strict=True):
                if not 0 <= start <= start + size <= whole:
                    return False
            elements += math.prod(part.shape)
        return elements == math.prod(self.shape) and self.dtype in DTYPES


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint needs of `checkpoint.json`, of the right types; `about` is all of it.

    `best` has the metric, and its value, by which the checkpoint was the best when it was written.
    """

    format: int
    step: int
    files_folder: str
    files: dict[str, FileEntry]
    arrays: dict[str, ArrayEntry]
    run: str
    config: dict[str, Any]
    seed: int
    versions: dict[str, str]
    best: dict[str, float] = field(default_factory=dict)
    encoding: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, list[float]] = field(default_factory=dict)
    data_sha256: str = ""
    about: dict[str, Any] = field(default_factory=dict)


def folder_name(step: int) -> str:
    """Returns the name of a checkpoint's folder."""
    return f"step-{step:09d}"


def write(folder: Place, content: dict[str, Any]) -> None:
    """Writes the manifest of a checkpoint; raises OSError, also if it is too large to be read again."""
    data = json.dumps(files.sealed(content), indent=1).encode()
    if len(data) > LARGEST:
        raise OSError(f"{NAME} would have {len(data):,} bytes, more than the {LARGEST:,} that can be read")
    files.write(folder / NAME, data)


def read(folder: Place) -> Manifest:
    """Returns a checkpoint's manifest; raises DamagedError, or ConfigError for a format that this version lacks."""
    path = folder / NAME
    if not files.is_folder(folder):
        raise DamagedError(f"{folder} is not a folder")
    content = files.read_json(path, LARGEST)
    # The format comes first: another one may have another digest and other keys.
    file_format = content.get("format")
    if isinstance(file_format, int) and file_format != FORMAT:
        raise ConfigError(
            f"checkpoint {folder}: has format {file_format}, but this version of the runner reads format "
            f"{FORMAT}; use the version that wrote it"
        )
    content = files.unsealed(content, path)
    claim = files.as_record(Manifest, content, path)
    used_files = {HISTORY, ARRAYS}  # process 0's file is there even if all its shards are other processes'
    for name, array in claim.arrays.items():
        used_files.update(part.file for part in array.parts)
        if not array.is_covered:
            raise DamagedError(f"{path} is invalid: the parts of {name} don't cover it")
    are_own = all(name == HISTORY or _ARRAYS_FILE.fullmatch(name) for name in used_files)
    if set(claim.files) != used_files or not are_own or not FOLDER_NAME.fullmatch(claim.files_folder):
        raise DamagedError(f"{path} is invalid: it must name the files of its arrays, in its own folder")
    if folder.name != folder_name(claim.step):
        raise DamagedError(f"{folder} holds the checkpoint of step {claim.step}")
    return replace(claim, about=content)

"""Files of each split: a file, a folder of files, shards as Hugging Face names them, or a glob."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from runner.data.base import in_split_order
from runner.data.checks_source import matches
from runner.errors import DataError, invalid

Files = TypeVar("Files")
# Other names of a split.
_ALIASES = {"val": "validation", "valid": "validation"}
# Names that mean a split which is not trained on.
_EVALUATION_NAMES = {"test", "validation", *_ALIASES}
# A file of a split that Hugging Face's libraries wrote in parts, such as train-00000-of-00002.parquet.
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}(-[0-9a-f]+)?")
# A file with results of the library `datasets`, such as cache-0a1b2c_00000_of_00002.arrow.
_CACHE = re.compile(r"cache-.*\.arrow")


def find(path: str, suffixes: Sequence[str]) -> dict[str, list[Path]]:
    """Returns the files of each split, sorted by name.

    The splits of a folder are its subfolders if one is called `train`; else its files if one is (`train.txt`); else
    the shards at any depth, as Hugging Face names them (`data/train-00000-of-00002.parquet`). Otherwise, and for a
    glob, all files are the split `train`.
    """
    matched = matches(path)
    if len(matched) != 1 or not matched[0].is_dir():
        return {"train": list(matched)}
    root = matched[0]
    all_files = _files_below(root, suffixes)
    if not all_files:
        raise DataError(f"{root.absolute()} has no file with the suffix {', '.join(suffixes)}")

    folders: dict[str, list[Path]] = {}
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            files = _files_below(folder, suffixes)
            if files:
                folders[folder.name] = files
    own_files = _by_split_name(file for file in all_files if file.parent == root)
    shards = _by_split_name(file for file in all_files if _SHARD.fullmatch(file.stem))

    found: dict[str, list[Path]] | None = None
    for candidate in (folders, own_files, shards):
        if "train" in candidate:
            found = candidate
            break
    evaluation_names = sorted(_EVALUATION_NAMES & {*folders, *own_files, *shards})
    if found is None:
        if evaluation_names:
            problem = f"has the splits {', '.join(evaluation_names)}, but no split train"
            fix = "name the training files or their folder train, or use a glob, whose files are one split"
            raise invalid("dataset.path", path, problem=problem, fix=fix)
        return {"train": list(all_files)}

    for name in evaluation_names:
        if name not in found:
            kind = "files"
            if found is folders:
                kind = "folders"
            problem = f"train is read from {kind}, but {name} is not"
            fix = f"store {name} as {kind} too, or use a glob, whose files are one split"
            raise invalid("dataset.path", path, problem=problem, fix=fix)
    return canonical_splits(found, root)


def canonical_splits(files_by_name: Mapping[str, Files], root: Path) -> dict[str, Files]:
    """Returns the files by canonical split name: train, validation and test first."""
    splits: dict[str, Files] = {}
    for name, files in sorted(files_by_name.items()):
        split = _ALIASES.get(name, name)
        if split in splits:
            raise DataError(
                f"{root.absolute()} has two of validation, val and valid, which all mean the split validation; "
                "keep one of them"
            )
        splits[split] = files
    return in_split_order(splits)


def is_cache(file: Path) -> bool:
    """Returns whether the library `datasets` wrote a file next to its data, such as the result of a `map`."""
    return _CACHE.fullmatch(file.name) is not None


def _by_split_name(files: Iterable[Path]) -> dict[str, list[Path]]:
    by_name: dict[str, list[Path]] = {}
    for file in files:
        name = file.stem
        shard = _SHARD.fullmatch(name)
        if shard:
            name = shard[1]
        by_name.setdefault(name, []).append(file)
    return by_name


def _files_below(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    files = []
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not is_hidden and path.suffix.lower() in suffixes and not is_cache(path) and path.is_file():
            files.append(path)
    return files

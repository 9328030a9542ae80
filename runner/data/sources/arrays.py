"""`arrays`: a user's own tables and arrays: a .npz, .npy, .csv or .parquet file, or a folder of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data import tables
from runner.data.base import Array, Encoding, in_order
from runner.data.checks import TABLES
from runner.data.cut import Whole
from runner.data.encode import Column, Words, check_lengths, cleaned, encode, shown
from runner.data.sources import parsed
from runner.data.sources.parsed import Parsed
from runner.errors import ConfigError, DataError, did_you_mean, invalid

_OTHER_NAMES = {"val": "validation", "valid": "validation"}


def load(config: DatasetConfig, encoding: Encoding | None = None) -> Whole:
    """Loads a file, or a folder of files.

    A folder's splits are its folders (`train/`), else its files (`train.csv`), where one is called train; else all
    its files are one split `train`. Files of one split are joined row by row in the order of their names, but for
    .npy files, each of which is one array.

    Args:
      config: of which `path` names it, and `features` the columns that are taken.
      encoding: of the run that the data is read for; None: words are numbered here.

    Raises:
      ConfigError: there is no such column.
      DataError: a file can't be read, or holds what no array can.
    """
    assert config.path is not None
    path = Path(config.path).expanduser()
    files = _files(path)
    whole = _kept(files, config, encoding) if _is_worth_keeping(files) else _parsed(files, config, encoding)
    categories = dict(whole.categories)
    return Whole(
        name=path.absolute().name,
        version="",
        splits=dict(whole.splits),
        digest=_digest(files),
        source=str(path),
        encoding=Encoding(categories) if encoding is None else replace(encoding, categories=categories),
    )


def _is_worth_keeping(files: Mapping[str, Sequence[Path]]) -> bool:
    """Returns whether the files are text, and so much of it that parsing it at each start costs something."""
    there = [file for group in files.values() for file in group]
    if any(file.suffix.lower() != ".csv" for file in there):
        return False
    try:
        return sum(file.stat().st_size for file in there) >= parsed.SMALLEST
    except OSError:  # reading it names it
        return False


def _kept(files: dict[str, list[Path]], config: DatasetConfig, encoding: Encoding | None) -> Parsed:
    there = [file for group in files.values() for file in group]
    try:
        before = parsed.stats(there)
        # The digest of the data leaves out what does not change it, as the name of a single file of a split.
        names = {split: [file.name for file in group] for split, group in files.items()}
        known = None if encoding is None else encoding.categories
        key = [_digest(files), list(names.items()), config.features, known]
    except OSError:
        return _parsed(files, config, encoding)
    return parsed.parsed(
        parsed.folder(),
        key,
        lambda: _parsed(files, config, encoding),
        lambda: parsed.stats(there) == before,
    )


def _parsed(files: dict[str, list[Path]], config: DatasetConfig, encoding: Encoding | None) -> Parsed:
    splits = {}
    where = {}
    for split, group in files.items():
        where[split] = str(group[0]) if len(group) == 1 else str(group[0].parent)
        splits[split] = _group(group, config.features, where[split])
    for name in config.features or ():
        if all(cleaned(name) not in columns for columns in splits.values()):
            raise _refuse_feature(name, files)
    sources, used = encode(splits, where, encoding)
    return Parsed(sources, used.categories)


def _refuse_feature(name: str, files: dict[str, list[Path]]) -> ConfigError:
    there = list(dict.fromkeys(one for group in files.values() for file in group for one in tables.names(file)))
    return invalid(
        "dataset.features",
        name,
        problem=f"the columns there are {shown(there)}",
        fix=did_you_mean(name, there, f"write dataset.features=[{','.join(there[:2])}]"),
    )


def _files(path: Path) -> dict[str, list[Path]]:
    """Returns each split's files."""
    if path.is_file():
        return {"train": [path]}
    folders = {
        one.name: _tables(one) for one in sorted(path.iterdir()) if one.is_dir() and not one.name.startswith(".")
    }
    own = _tables(path)
    if folders.get("train"):
        found = {name: group for name, group in folders.items() if group}
    elif any(file.stem == "train" for file in own):
        found = {}
        for file in own:
            found.setdefault(file.stem, []).append(file)
    else:
        found = {"train": own} if own else {}
    if not found:
        raise DataError(f"{path.absolute()} holds no file that ends in {', '.join(TABLES)}")
    named: dict[str, list[Path]] = {}
    for name, group in found.items():
        split = _OTHER_NAMES.get(name, name)
        if split in named:
            raise DataError(f"{path.absolute()} has two of validation, val and valid, which mean one; drop one")
        named[split] = group
    return {split: named[split] for split in in_order(sorted(named))}


def _tables(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.suffix.lower() in TABLES and not one.name.startswith("."))


def _group(files: Sequence[Path], wanted: Sequence[str] | None, where: str) -> dict[str, Column]:
    """Reads the files of one split."""
    columns: dict[str, Column] = {}
    rows: list[tuple[Path, dict[str, Column]]] = []
    for file in files:
        found = tables.read(file, wanted)
        if file.suffix.lower() == ".npy":
            columns |= found
        else:
            if found:
                check_lengths(found, str(file))
            rows.append((file, found))
    for file, found in rows[1:]:
        if set(found) != set(rows[0][1]):
            differs = sorted(set(found) ^ set(rows[0][1]))
            raise DataError(f"{file} and {rows[0][0]} are read as one, and only one of them has {shown(differs)}")
    for name in rows[0][1] if rows else ():
        if name in columns:
            raise DataError(f"{where}: {name!r} is in {rows[0][0].name} and in {name}.npy; rename one of them")
        columns[name] = _joined([(file, found[name]) for file, found in rows], name)
    if columns:
        check_lengths(columns, where)
    elif wanted is None:
        raise DataError(f"{where} holds no arrays")
    return columns


def _joined(pieces: Sequence[tuple[Path, Column]], name: str) -> Column:
    if len(pieces) == 1:
        return pieces[0][1]
    words = [piece for _, piece in pieces if isinstance(piece, Words)]
    if not words:
        plain: list[Array] = [piece for _, piece in pieces if not isinstance(piece, Words)]
        for (file, _), piece in zip(pieces, plain, strict=True):
            if piece.shape[1:] != plain[0].shape[1:]:
                raise DataError(f"{file}, {name}: {list(piece.shape[1:])} an example, and others differ from it")
        return np.concatenate(plain)
    if len(words) < len(pieces):
        file = next(file for file, piece in pieces if not isinstance(piece, Words))
        raise DataError(f"{file}, {name} holds numbers, and words in other files")
    values = list(dict.fromkeys(value for one in words for value in one.values))
    places = {value: place for place, value in enumerate(values)}
    codes = [np.array([places[value] for value in one.values])[one.codes] for one in words]
    return Words(values, np.concatenate(codes))


def _digest(files: dict[str, list[Path]]) -> str:
    """Hashes the files' bytes, by split; names matter where several files are one split."""
    total = hashlib.sha256()
    for split, group in sorted(files.items()):
        for file in group:
            with file.open("rb") as opened:
                content = hashlib.file_digest(opened, "sha256").hexdigest()
            name = file.name if len(group) > 1 or file.suffix == ".npy" else file.suffix
            total.update(f"{split} {name} {content}\n".encode())
    return total.hexdigest()

"""`arrays`: a user's tables and arrays (.npz, .npy, .csv, .parquet)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data import places, ragged, tables
from runner.data.base import Array, ArraySource, Encoding, FullDataset
from runner.data.checks_source import TABLE_SUFFIXES
from runner.data.encode import Column, StringColumn, check_lengths, cleaned, encode, join_names
from runner.data.ragged import Ragged
from runner.data.sources.split_names import canonical_splits
from runner.errors import ConfigError, DataError, did_you_mean, invalid

# Split -> its files.
Files = Mapping[str, Sequence[Path]]


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Loads a file, or a folder of files.

    The splits of a folder are its subfolders if one is called `train`, else its files if one is (`train.csv`); else
    all files are the split `train`. Files of one split are concatenated row by row in the order of their names, except
    .npy files, each of which is one array.

    Args:
      config: its `path` is the file or folder, and its `features` select columns.
      encoding: of the run that the data is read for; None: strings get their numbers here.

    Raises:
      ConfigError: there is no such column.
      DataError: a file can't be read, or has values that no array can represent.
    """
    assert config.path is not None
    path = places.local(config.path)
    files = _find_files(path)
    splits, used = _parse(files, config, encoding)
    return FullDataset(
        name=path.absolute().name,
        version="",
        splits=splits,
        digest=_digest(files),
        source=places.shown(config.path),
        encoding=used,
    )


def location(config: DatasetConfig) -> str:
    """Returns the file or folder."""
    assert config.path is not None
    return places.location(config.path)


def _find_files(path: Path) -> dict[str, list[Path]]:
    """Returns the files of each split."""
    if path.is_file():
        return {"train": [path]}
    folders: dict[str, list[Path]] = {}
    for folder in sorted(path.iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            files = _list_tables(folder)
            if files:
                folders[folder.name] = files
    own_files = _list_tables(path)
    found: dict[str, list[Path]] = {}
    if "train" in folders:
        found = folders
    elif any(file.stem == "train" for file in own_files):
        for file in own_files:
            found.setdefault(file.stem, []).append(file)
    elif own_files:
        found = {"train": own_files}
    if not found:
        raise DataError(f"{path.absolute()} has no file with the suffix {', '.join(TABLE_SUFFIXES)}")
    return canonical_splits(found, path)


def _list_tables(folder: Path) -> list[Path]:
    files = []
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() in TABLE_SUFFIXES and not file.name.startswith("."):
            if not file.is_file():
                raise DataError(f"{file} is not a file; rename or remove it")
            files.append(file)
    return files


def _all_files(files: Files) -> list[Path]:
    return list(chain.from_iterable(files.values()))


def _parse(files: Files, config: DatasetConfig, encoding: Encoding | None) -> tuple[dict[str, ArraySource], Encoding]:
    """Returns the arrays of each split, and how they were encoded."""
    pad = config.pad or {}
    columns: dict[str, dict[str, Column | Ragged]] = {}
    where = {}
    for split, split_files in files.items():
        where[split] = str(split_files[0])
        if len(split_files) > 1:
            where[split] = str(split_files[0].parent)
        columns[split] = _read_split(split_files, config, where[split])
    for name in config.features or ():
        if all(cleaned(name) not in split_columns for split_columns in columns.values()):
            raise _unknown_feature(name, files)
    for split, split_columns in columns.items():
        ragged.check_names(pad, split_columns)
        for name in pad:
            if not isinstance(split_columns[name], Ragged):
                raise DataError(
                    f"{where[split]}, {name} is not a column of lists, which dataset.pad is for; remove it there, or "
                    "save the lists in a .parquet file"
                )
    recorded = encoding.lengths if encoding else {}
    arrays, lengths = ragged.padded(columns, pad, config.pad_length, recorded, pack=config.pack)
    sources, used = encode(arrays, where, encoding)
    return sources, replace(used, lengths=lengths)


def _unknown_feature(name: str, files: Files) -> ConfigError:
    known = list(dict.fromkeys(chain.from_iterable(map(tables.names, _all_files(files)))))
    return invalid(
        "dataset.features",
        name,
        problem=f"unknown column (the columns: {join_names(known)})",
        fix=did_you_mean(name, known, f"set dataset.features=[{','.join(known[:2])}]"),
    )


def _read_split(files: Sequence[Path], config: DatasetConfig, where: str) -> dict[str, Column | Ragged]:
    """Reads the files of one split.

    A .npy file is one array, and all others are pieces of one table.
    """
    features = config.features
    columns: dict[str, Column | Ragged] = {}
    pieces: list[tuple[Path, dict[str, Column | Ragged]]] = []
    for file in files:
        file_columns = tables.read(file, features, config.pad or ())
        if file.suffix.lower() == ".npy":
            columns |= file_columns
            continue
        if file_columns:
            check_lengths(file_columns, str(file))
        pieces.append((file, file_columns))
    if pieces:
        first_file, first_columns = pieces[0]
        _check_same_columns(pieces)
        for name in first_columns:
            if name in columns:
                raise DataError(f"{where}: {name!r} is in {first_file.name} and in {name}.npy; rename one of them")
            columns[name] = _concatenate([(file, piece[name]) for file, piece in pieces], name)
    if columns:
        check_lengths(columns, where)
    elif features is None:
        raise DataError(f"{where} has no arrays")
    return columns


def _check_same_columns(pieces: Sequence[tuple[Path, Mapping[str, Column | Ragged]]]) -> None:
    first_file, first_columns = pieces[0]
    for file, columns in pieces[1:]:
        different = sorted(set(columns) ^ set(first_columns))
        if different:
            raise DataError(
                f"{file} and {first_file} are read as one table, but only one of them has {join_names(different)}; "
                "give them the same columns"
            )


def _concatenate(pieces: Sequence[tuple[Path, Column | Ragged]], name: str) -> Column | Ragged:
    """Concatenates a column of several files."""
    if len(pieces) == 1:
        return pieces[0][1]
    sequences: list[Array] = []
    strings: list[StringColumn] = []
    arrays: list[Array] = []
    for file, piece in pieces:
        if isinstance(piece, Ragged):
            sequences += piece.sequences
            continue
        if isinstance(piece, StringColumn):
            strings.append(piece)
            continue
        arrays.append(piece)
        if piece.shape[1:] != arrays[0].shape[1:]:
            raise DataError(
                f"{file}, {name}: shape {list(piece.shape[1:])} per example, but {list(arrays[0].shape[1:])} in "
                f"{pieces[0][0]}; all files need one shape"
            )
    if sequences:
        if arrays or strings:
            file = next(file for file, piece in pieces if not isinstance(piece, Ragged))
            raise DataError(
                f"{file}, {name} has values of one shape, but sequences in other files; use one kind in all files"
            )
        return Ragged(sequences)
    if not strings:
        return np.concatenate(arrays)
    if arrays:
        file = next(file for file, piece in pieces if not isinstance(piece, StringColumn))
        raise DataError(f"{file}, {name} has numbers, but strings in other files; use one kind in all files")
    return _concatenate_strings(strings)


def _concatenate_strings(columns: Sequence[StringColumn]) -> StringColumn:
    code_of: dict[str, int] = {}
    for column in columns:
        for value in column.values:
            code_of.setdefault(value, len(code_of))
    codes = []
    for column in columns:
        new_codes = np.array([code_of[value] for value in column.values])
        codes.append(new_codes[column.codes])
    return StringColumn(list(code_of), np.concatenate(codes))


def _digest(files: Files) -> str:
    """Hashes the files' bytes, by split."""
    total = hashlib.sha256()
    for split, split_files in sorted(files.items()):
        for file in split_files:
            with file.open("rb") as opened:
                content = hashlib.file_digest(opened, "sha256").hexdigest()
            name = file.suffix
            if len(split_files) > 1 or file.suffix == ".npy":
                # The name decides the order of the rows, or is the array's name.
                name = file.name
            total.update(f"{split} {name} {content}\n".encode())
    return total.hexdigest()

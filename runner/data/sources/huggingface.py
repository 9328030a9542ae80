"""`huggingface`: datasets of Hugging Face that are on this machine, as Arrow or Parquet files.

PyArrow reads the files. The library `datasets` is not needed, no code of a dataset is executed, and nothing is
downloaded.

    pictures/dataset_dict.json, pictures/train/state.json, ...     saved by `DatasetDict.save_to_disk`
    pictures/state.json, pictures/data-00000-of-00001.arrow        saved by `Dataset.save_to_disk`
    pictures/data/train-00000-of-00002.parquet, ...                a repository of the Hub
    pictures/pictures-train.arrow, pictures/dataset_info.json      the library's cache of a dataset
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from runner.config.schema_data import DatasetConfig
from runner.data import places
from runner.data.base import Encoding, FullDataset
from runner.data.checks_source import ARROW_SUFFIXES, PARQUET_SUFFIXES
from runner.data.sources import split_files, stored_tables
from runner.data.sources.arrow_table import ArrowTable, from_parquet
from runner.data.sources.split_names import canonical_splits
from runner.errors import DataError, invalid

# Written by `save_to_disk`: the splits of a dataset, and the files of a split.
_SPLITS = "dataset_dict.json"
_STATE = "state.json"
# Written into the library's cache: among others the names of the splits.
_INFO = "dataset_info.json"
# Metadata of a schema with the features of its columns.
_FEATURES = b"huggingface"
# Characters of a library's error that a message shows.
_MAX_REASON = 300


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Scans the files, if they changed, and returns their sources.

    Args:
      config: its `path` is the folder or file, and its `features` select columns.
      encoding: of the run that the data is read for; None: strings get their numbers here.

    Raises:
      ConfigError: there is no such column; images have several sizes; the folder has several configurations.
      DataError: a file can't be read, or has values that no array can represent.
    """
    assert config.path is not None
    path = places.local(config.path)
    arrow = _arrow_files(path)
    files: dict[str, list[ArrowTable]] = {}
    if arrow:
        for split, paths in arrow.items():
            files[split] = [ArrowTable(file, file) for file in paths]
    else:
        found = split_files.find(config.path, PARQUET_SUFFIXES)
        _check_configurations(config, found)
        for split, paths in found.items():
            files[split] = list(map(from_parquet, paths))
    classes = {table.path: _classes(table.schema) for tables in files.values() for table in tables}
    return stored_tables.load(files, config, encoding, classes)


def location(config: DatasetConfig) -> str:
    """Returns the folder or file."""
    assert config.path is not None
    return places.location(config.path)


def _arrow_files(path: Path) -> Mapping[str, Sequence[Path]]:
    """Returns the Arrow files of each split; empty if there are none."""
    if path.is_file():
        is_arrow = path.suffix.lower() in ARROW_SUFFIXES
        return {"train": [path]} if is_arrow else {}
    if (path / _SPLITS).is_file():
        names = _read_json(path / _SPLITS).get("splits", [])
        return canonical_splits({str(name): _saved_files(path / str(name)) for name in names}, path)
    if (path / _STATE).is_file():
        return {"train": _saved_files(path)}
    if all(split_files.is_cache(file) for file in path.rglob("*.arrow")):
        return {}
    if (path / _INFO).is_file():
        return canonical_splits(_cached_files(path), path)
    return split_files.find(str(path), ARROW_SUFFIXES)


def _saved_files(folder: Path) -> list[Path]:
    """Returns the files of a split that `save_to_disk` wrote, in order."""
    entries = _read_json(folder / _STATE).get("_data_files", [])
    # Only the file's name, so that a manipulated record can't name a file outside the folder.
    files = [folder / Path(str(entry["filename"])).name for entry in entries if "filename" in entry]
    if not files:
        raise DataError(f"{folder / _STATE} lists no files; save the dataset again with save_to_disk")
    return files


def _cached_files(folder: Path) -> dict[str, list[Path]]:
    """Returns the files of each split in the library's cache, `<dataset>-<split>[-00000-of-00002].arrow`."""
    files: dict[str, list[Path]] = {}
    for split in _read_json(folder / _INFO).get("splits") or {}:
        name = re.compile(rf".*-{re.escape(split)}(-\d{{5}}-of-\d{{5}})?\.arrow")
        matching = [file for file in sorted(folder.glob("*.arrow")) if name.fullmatch(file.name)]
        if matching:
            files[str(split)] = matching
    if not files:
        raise DataError(f"{folder} has no Arrow file of the splits that {_INFO} lists; save it with save_to_disk")
    return files


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} can't be read: {' '.join(str(error).split())[:_MAX_REASON]}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} has no JSON object; save the dataset again with save_to_disk")
    return content


def _check_configurations(config: DatasetConfig, files: Mapping[str, Sequence[Path]]) -> None:
    """Rejects a repository with several configurations, whose files would be read as one."""
    for paths in files.values():
        folders = sorted({str(file.parent) for file in paths})
        if len(folders) > 1:
            raise invalid(
                "dataset.path",
                config.path,
                problem=f"has the same split in several folders ({', '.join(folders[:3])})",
                fix=f"set dataset.path={folders[0]}",
            )


def _classes(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Returns the names of the classes of each column with class labels."""
    metadata = schema.metadata or {}
    try:
        features = json.loads(metadata.get(_FEATURES, b"{}"))["info"]["features"]
        classes = {}
        for name, feature in features.items():
            if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel" and feature.get("names"):
                classes[str(name)] = tuple(map(str, feature["names"]))
        return classes
    except (ValueError, KeyError, TypeError, AttributeError):
        # A file of another program: its labels are numbers without names.
        return {}

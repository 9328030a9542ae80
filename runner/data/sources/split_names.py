"""Names of splits in a user's folder: aliases, and their order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from runner.data.base import ordered_splits
from runner.errors import DataError

Files = TypeVar("Files")

ALIASES = {"val": "validation", "valid": "validation"}


def canonical_splits(files_by_name: Mapping[str, Files], root: Path) -> dict[str, Files]:
    """Returns the files by canonical split name: train, validation and test first.

    Args:
      files_by_name: by the name of a folder or file.
      root: the user's folder, for the error.

    Raises:
      DataError: two names mean the same split.
    """
    splits: dict[str, Files] = {}
    for name, files in files_by_name.items():
        split = ALIASES.get(name, name)
        if split in splits:
            raise DataError(
                f"{root.absolute()} has two of validation, val and valid, which all mean the split validation; "
                "keep one of them"
            )
        splits[split] = files
    return {split: splits[split] for split in ordered_splits(sorted(splits))}

"""Folders of prepared data: written once and atomically, under a lock."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from runner.config.schema_data import DatasetConfig
from runner.errors import DataError
from runner.host import stages
from runner.host.folders import remove_empty, remove_files
from runner.host.lock import locked

# Written last, so a folder that has this file is complete.
META = "meta.json"
Value = TypeVar("Value")


def report_progress(text: str) -> None:
    """Prints a progress line on stderr."""
    stages.leave_line()
    print(f"dataset: {text}", file=sys.stderr, flush=True)


def data_dir(config: DatasetConfig) -> Path:
    """Returns the folder of prepared data: `dataset.data_dir`, else $TFDS_DATA_DIR, else ~/tensorflow_datasets."""
    folder = config.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(folder).expanduser().absolute()


def load_or_write(
    folder: Path,
    suffixes: Sequence[str],
    read: Callable[[Path], Value | None],
    write: Callable[[Path], None],
    what: str,
) -> Value:
    """Returns the content of a folder, which `write` fills first if `read` returns None.

    `write` creates `META` and files of the `suffixes` in a new folder, which is then renamed in one step. `what` names
    the content while a process waits for another one.
    """
    # Without the lock: the folder appears in one step, so it is complete if it can be read.
    content = read(folder)
    if content is not None:
        return content
    try:
        with locked(folder.with_name(f"{folder.name}.lock"), report_progress, what):
            # Another process may have written it while this one waited.
            content = read(folder)
            if content is None:
                _write(folder, suffixes, write)
                content = read(folder)
    except OSError as error:
        raise DataError(
            f"{folder.parent} can't be written ({error.strerror or error}); free disk space, or set dataset.data_dir "
            "to another folder"
        ) from error
    if content is None:
        raise DataError(f"{folder} was written, but can't be read; delete that folder")
    return content


def _write(folder: Path, suffixes: Sequence[str], write: Callable[[Path], None]) -> None:
    # Only the holder of the lock writes here, so an existing partial folder is of a run that was killed.
    partial = folder.with_name(f".partial-{folder.name}")
    remove(partial, suffixes)
    # A folder that can't be read has another format or is corrupted.
    remove(folder, suffixes)
    partial.mkdir(parents=True)
    try:
        write(partial)
    except Exception:
        # A disk that is full gets its space back.
        remove(partial, suffixes)
        raise
    partial.replace(folder)


def remove(folder: Path, suffixes: Sequence[str]) -> None:
    """Deletes the files with some suffixes, and the folder, which must have no others."""
    names = [META]
    for suffix in suffixes:
        for file in folder.glob(f"*.{suffix}"):
            names.append(file.name)
    remove_files(folder, names)
    remove_empty([folder])
    if folder.exists():
        raise DataError(f"{folder} already exists and was not created by a run; move or delete it")

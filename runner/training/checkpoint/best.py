"""The record of a run's best checkpoint: which step, by which metric."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.training.checkpoint import files, storage
from runner.training.checkpoint.files import LARGEST_RECORD, DamagedError
from runner.training.checkpoint.reading import read_manifest
from runner.training.checkpoint.typed import MisfitError, mapping, number, text, whole

NAME = "best.json"


def read(folder: Path) -> dict[str, Any] | None:
    """Returns metric, value and step of the best checkpoint; None where there is none.

    Raises:
      DamagedError: what it says is not so; without the file, there is none.
    """
    path = folder / NAME
    if not os.path.lexists(path):
        return None
    try:
        found = mapping(files.read_json(path, LARGEST_RECORD), "it", ("metric", "value", "step"))
        metric = text(found["metric"], "metric")
        value = number(found["value"], "value")
        step = found["step"]
        if whole(step, "step") not in storage.steps(folder):
            raise MisfitError(f"there is no checkpoint of step {step}")
        with suppress(DamagedError):  # which whoever opens that checkpoint is told
            if read_manifest(storage.place(folder, step)).about["metrics"].get(metric) != value:
                raise MisfitError(f"the checkpoint of step {step} has another {metric}")
    except MisfitError as error:
        raise DamagedError(f"{path} is not as it was written: {error}") from error
    return found


def write(folder: Path, record: Mapping[str, Any]) -> None:
    """Notes which checkpoint is the best; it has been written.

    Raises:
      OSError: the disk is full, or can't be written.
    """
    files.write_json(folder / NAME, record)


def forget(folder: Path) -> None:
    """Notes that there is no best checkpoint any more: it is about to go, or to be replaced."""
    with suppress(FileNotFoundError):
        storage.unlink(folder / NAME)

"""Defaults that have changed: a resumed run keeps the values that it began with."""

from __future__ import annotations

import math

from runner.model import gpt_options
from runner.optim.adam import adam_learning_rate
from runner.training.checkpoint import storage
from runner.training.checkpoint.files import DamagedError
from runner.training.checkpoint.reading import read_manifest
from runner.training.checkpoint.runs import SavedRun


def overrides(run: SavedRun, step: int | None) -> dict[str, str]:
    """Returns the overrides that keep values which were defaults when a run began, and have changed since.

    A recorded command line doesn't name a default. Until release 0.1.0 Adam's rate was 0.01 for every model, and a
    deep `model=gpt` was not scanned, which gives its variables other paths.

    Args:
      run: the run.
      step: the step of the checkpoint; None: the newest.

    Returns:
      Key -> value, as they are typed; empty if the checkpoint can't be read.
    """
    steps = storage.steps(run.folder)
    try:
        if step is None:
            step = steps[-1]
        config = read_manifest(storage.place(run.folder, step)).about["config"]
        optimizer = config["optimizer"]
        model = config["model"]
        builder = model["_target_"]
        rate = float(optimizer["learning_rate"])
    except (DamagedError, IndexError, KeyError, TypeError, ValueError):
        # What can't be read is reported where the run is opened.
        return {}
    kept: dict[str, str] = {}
    # The recorded config does not tell whether a value was typed. That doesn't matter where the value is today's
    # default. A typed one is on the recorded command line too, and the caller leaves this override out.
    if optimizer["name"] == "adam" and 0.0 < rate < math.inf and rate != adam_learning_rate(builder):
        kept["optimizer.learning_rate"] = repr(rate)
    if builder == gpt_options.TARGET and model.get("scan") is False:
        kept["model.scan"] = "false"
    return kept

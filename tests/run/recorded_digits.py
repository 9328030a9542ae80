"""The digits as a user's own data, in a process that writes down which examples each step is given.

`dataset=custom dataset._target_=tests.run.recorded_digits.load` imports this module in every process of a run. It
wraps `runner.training.feed.training`: before a device call's batches are copied to the devices, their rows are added
to a file of the process in `RECORDED_ORDER`, a folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from runner.data.base import ROW, WEIGHT, Array
from runner.engine.base import HostBatches, PlacedBatches
from runner.training import feed

FOLDER = "RECORDED_ORDER"
Place = Callable[[HostBatches], PlacedBatches]
# Step, from 1 -> row of the batch -> digest of the example.
Order = dict[int, dict[int, str]]


def load() -> dict[str, dict[str, Array]]:
    """Returns the splits: image float32 (8, 8, 1) in 0 to 1, label int64."""
    digits = load_digits()
    images = (digits.images[..., None] / 16).astype(np.float32)
    # No image is all zeros, which marks the examples of other processes.
    train = {"image": images[:1437], "label": digits.target[:1437]}
    return {"train": train, "test": {"image": images[1437:], "label": digits.target[1437:]}}


def read(folder: Path) -> Order:
    """Returns the examples of every step; what a later attempt does again replaces what was recorded before."""
    lines = [json.loads(line) for path in folder.iterdir() for line in path.read_text().splitlines()]
    order: Order = {}
    for line in sorted(lines, key=lambda line: float(line["time"])):
        order.setdefault(line["step"], {}).update({int(row): digest for row, digest in line["rows"].items()})
    return {step: order[step] for step in sorted(order)}


def digest(order: Order) -> str:
    """Returns the SHA-256 of the examples of all steps in their order."""
    whole = hashlib.sha256()
    for step, rows in order.items():
        whole.update(f"{step} {[rows[row] for row in sorted(rows)]}".encode())
    return whole.hexdigest()


def _rows(arrays: Mapping[str, Array], position: int) -> dict[int, str]:
    """Returns the digests of the examples of one batch that this process has; the others are zeros."""
    rows: dict[int, str] = {}
    for row, image in enumerate(arrays["image"][position]):
        if image.any():
            rows[row] = hashlib.sha256(image.tobytes() + arrays["label"][position][row].tobytes()).hexdigest()[:16]
    return rows


def _record(batches: HostBatches, train: feed.Examples, first: int) -> None:
    arrays = batches.arrays
    if ROW in arrays:
        indices = arrays[ROW][: batches.steps].astype(np.int64)
        arrays = replace(train, cached=False, share=None).read(0, indices, arrays[WEIGHT][: batches.steps]).arrays
    with (Path(os.environ[FOLDER]) / str(os.getpid())).open("a") as file:
        for position in range(batches.steps):
            line = {"step": first + position + 1, "time": time.time(), "rows": _rows(arrays, position)}
            file.write(json.dumps(line) + "\n")


def _recorded(original: Callable[..., feed.Batches]) -> Callable[..., feed.Batches]:
    def training(
        config: Any, train: feed.Examples, per_epoch: int, total: int, chosen: Any, place: Place,
        start: int = 0, *others: Any, **named: Any,
    ) -> feed.Batches:  # fmt: skip
        taken = start

        def recorded_place(batches: HostBatches) -> PlacedBatches:
            nonlocal taken
            _record(batches, train, taken)
            taken += batches.steps
            return place(batches)

        return original(config, train, per_epoch, total, chosen, recorded_place, start, *others, **named)

    return training


if FOLDER in os.environ:
    feed.training = _recorded(feed.training)

"""Trains rows with Keras's own `compile` and `fit`: `python -m tests.parity.stock keras FOLDER NAME ...`.

It imports nothing of the runner but the order of examples. Per row it writes `NAME.start.npz`, the weights before
training, and `NAME.keras.npz`: the history by Keras's names, and the final weights.
"""

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from tests.parity.row import BATCH, EPOCHS, SEED, Program, Row
from tests.parity.rows import ROWS


def train(row: Row, keras: Any, folder: Path) -> None:
    """Trains one row and writes its files."""
    keras.utils.set_random_seed(SEED)
    program = row.program(keras)
    np.savez(folder / f"{row.name}.start.npz", *program.model.get_weights())
    program.model.compile(**program.compile)
    found = {name: np.array(values) for name, values in _fit(row, program).items()}
    for index, weight in enumerate(program.model.get_weights()):
        found[f"weights/{index}"] = weight
    np.savez(folder / f"{row.name}.keras.npz", **found)  # type: ignore[arg-type]


def _fit(row: Row, program: Program) -> dict[str, list[float]]:
    """Returns the history of `fit`."""
    splits = {name: program.before(arrays) for name, arrays in row.data().items()}
    arguments: dict[str, Any] = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    if "validation_split" not in program.fit:
        arguments["validation_data"] = tuple(part for part in row.given(splits["test"]) if part is not None)
    arguments |= program.fit
    if not row.shuffles:
        x, y, weight = row.given(splits["train"])
        return dict(program.model.fit(x, y, sample_weight=weight, **arguments).history)
    from runner.data.base import Draw

    history: dict[str, list[float]] = {}
    for epoch in range(EPOCHS):
        order = Draw(SEED, epoch).order(len(splits["train"]["label"]))
        x, y, weight = row.given({name: array[order] for name, array in splits["train"].items()})
        arguments |= {"initial_epoch": epoch, "epochs": epoch + 1}
        for name, values in program.model.fit(x, y, sample_weight=weight, **arguments).history.items():
            history.setdefault(name, []).extend(values)
    return history


def main() -> None:
    keras = importlib.import_module(sys.argv[1])
    folder = Path(sys.argv[2])
    os.chdir(folder)  # for what a program writes itself
    for name in sys.argv[3:]:
        try:
            train(ROWS[name], keras, folder)
        except Exception:
            (folder / f"{name}.keras.txt").write_text(traceback.format_exc())


if __name__ == "__main__":
    main()

"""Trains rows with the runner's command: `python -m tests.parity.runs MESH FOLDER NAME ...`.

One process runs the command for each row. Per run it writes `NAME.MESH.npz` in Keras's names: what the run
has recorded, and the final weights; or `NAME.MESH.txt`, the line with which the command ended.
"""

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import runner
from runner.checkpoint.reading import Checkpoint
from runner.cli import app
from runner.layout.paths import ema_path
from tests import stores
from tests.parity.row import COMMON, OPTIMIZER, Row
from tests.parity.rows import ROWS

# The paths of the last model's weights, in the order of `get_weights`.
_paths: list[str] = []


def load(row: str) -> Any:
    """The data of a row, as `dataset._target_`."""
    return ROWS[row].data()


def build(keras: Any, inputs: Any, outputs: Any, row: str) -> Any:
    """The model of a row with the weights that Keras's own training starts from, as `model._target_`."""
    del inputs, outputs
    model = ROWS[row].program(keras).model
    with np.load(f"{row}.start.npz") as start:
        model.set_weights(list(start.values()))
    _paths[:] = _named(model, keras)
    return model


def _named(model: Any, keras: Any) -> list[str]:
    if keras.__name__ == "tf_keras":
        from runner.engine.dtensor.adapters.paths import named_variables

        return list(named_variables(model))
    from runner.engine.jax.names import Names

    return list(Names(model).variables)


def train(row: Row, mesh: str) -> None:
    """Runs the command for a row, and writes its file into the current directory."""
    name = f"{row.name}.{mesh}"
    sys.argv[:] = [
        "runner",
        *overrides(row),
        *f"mesh={mesh} tracking.run_name={name} hydra.run.dir=runs/{name}".split(),
    ]
    os.environ.pop("HYDRA_FULL_ERROR", None)  # the command before has set it
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = app.run_command("runner.cli.train")
    if code:
        lines = [line for line in errors.getvalue().splitlines() if line.startswith("error: ")]
        Path(f"{name}.txt").write_text(f"exit code {code}: {lines[-1] if lines else errors.getvalue()}")
        return
    np.savez(f"{name}.npz", **recorded(row, name))  # type: ignore[arg-type]


def overrides(row: Row) -> list[str]:
    """The command line of a row, without its mesh."""
    own = [f"engine={row.engine}", "dataset=custom", f"dataset._target_={__name__}.load", f"+dataset.row={row.name}"]
    own += ["model=custom", f"model._target_={__name__}.build", f"+model.row={row.name}"]
    if not any(override.startswith("optimizer=") for override in row.overrides):
        own += OPTIMIZER
    return [*own, "dataset.holdout=0", *COMMON, *row.overrides]


def recorded(row: Row, name: str) -> dict[str, np.ndarray]:
    """What a run has recorded, by Keras's names, and its weights."""
    opened = runner.open_run(name)
    points = opened.metrics
    keras_names = {ours: keras for keras, ours in row.metrics.items()}
    found = {}
    if "learning_rate" in points:
        found["learning_rate"] = points["learning_rate"][points["train/epoch_loss"].notna()].to_numpy()
    for place, prefix in (("train/epoch_", ""), ("eval/", "val_")):
        for logged in points:
            if logged.startswith(place):
                metric = logged.removeprefix(place)
                found[prefix + keras_names.get(metric, metric)] = points[logged].dropna().to_numpy()
    folder = Path("outputs/checkpoints") / opened.run_id
    taken = max(folder.glob("step-*"))
    if row.takes == "best":
        taken = max(path for path in folder.glob("step-*") if Checkpoint(path).about.get("best"))
    arrays = Checkpoint(taken)
    prefix = "net/" if "task=step" in row.overrides else ""  # the attribute of `own_step.Step`
    for index, path in enumerate(prefix + path for path in _paths):
        average = ema_path(path)
        found[f"weights/{index}"] = arrays[average if average in arrays else path]
    return found


def main() -> None:
    _, mesh, folder, *names = sys.argv
    os.chdir(folder)
    os.environ["MLFLOW_TRACKING_URI"] = stores.store_in(Path.cwd())
    for name in names:
        train(ROWS[name], mesh)


if __name__ == "__main__":
    # Under its own name, so that the builder, which the runner imports by name, is in the same module.
    from tests.parity import runs

    runs.main()

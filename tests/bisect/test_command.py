"""Planted differences between two recorded runs, which bisect must find at the right step and variable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.bisect import command
from runner.data.sampler import train_plan
from tests import forks

ROOT = Path(__file__).parents[2]
LIBRARIES = {"jax": "jax", "keras_dtensor": "tensorflow"}
BATCH, STEPS, SIZE = 16, 30, 160
CODE = """
def build(keras, input_shape, num_classes, scale=1.0, first=1.0):
    inputs = keras.Input(input_shape)
    start = keras.initializers.VarianceScaling(first, seed=1)
    x = keras.layers.Dense(12, activation="relu", kernel_initializer=start, name="d1")(inputs)
    x = keras.layers.Rescaling(scale, name="scale")(x)
    x = keras.layers.Dense(num_classes, kernel_initializer=keras.initializers.VarianceScaling(seed=2), name="d2")(x)
    return keras.Model(inputs, x)
"""
BASE = [
    *("dataset=arrays", "dataset.standardize=false", f"dataset.batch_size={BATCH}", "dataset.holdout=0"),
    *("model=custom", "model._target_=planted.build", "+model.scale=1.0", "+model.first=1.0", "mesh=batch2"),
    *(f"trainer.steps={STEPS}", "trainer.evaluate_every_steps=30", "trainer.log_every_steps=5"),
    *("trainer.checkpoint.every_steps=10", "trainer.checkpoint.keep=9", "trainer.progress=none", "tracking=none"),
    "optimizer.schedule={name: piecewise, boundaries: [17], factors: [1.0, 1.0]}",
]


@dataclass(frozen=True)
class Planted:
    """A difference between two runs, or a NaN in one.

    Attributes:
      kind: of the cause.
      step: at which the runs part; None: that of the changed example's first batch.
      layer: that is named; None: any.
      variable: that is named; None: any.
      overrides: of the other run.
      changes: of the other run's examples: name -> all values of row `ROW`; of a label, another class.
      is_nan: whether one run is searched for a NaN, with these changes in it.
      engine: of the runs.
    """

    kind: str
    step: int | None
    layer: str | None = None
    variable: str | None = None
    overrides: tuple[str, ...] = ()
    changes: dict[str, float] = field(default_factory=dict)
    is_nan: bool = False
    engine: str = "jax"


ROW = 77
PLANTED = {
    # The correction for the first steps makes the update the same, except for its epsilon and rounding.
    "the optimizer's key": Planted("update", 1, variable="d1/kernel", overrides=("optimizer.beta_2=0.99",)),
    # As in Keras, the rate of a boundary is still the one before it, and step 19 has 18 steps before it.
    "a rate from step 19 on": Planted("update", 19, overrides=("optimizer.schedule.factors=[1.0,0.5]",)),
    "an example's label": Planted("batch", None, changes={"label": 1}),
    "an example's image": Planted("batch", None, changes={"image": 0.25}),
    "a layer's scale": Planted("layer", 1, "scale", overrides=("model.scale=1.001",)),
    "a layer's start": Planted("start", 0, "d1", "d1/kernel", overrides=("model.first=1.01",)),
    "the loss": Planted("loss", 1, overrides=("task.label_smoothing=0.1",), engine="keras_dtensor"),
    "the clipping": Planted("update", 1, overrides=("optimizer.clip.global_norm=0.01",)),
    # The gradient is finite in float32, and its square is not.
    "an update that overflows": Planted(
        "update", None, "d1", "optimizer/v/d1/kernel", changes={"image": 3e38}, is_nan=True
    ),
}


def run(folder: Path, *arguments: str, engine: str, code: int = 0) -> str:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{folder}", "XDG_CACHE_HOME": str(folder)}
    line = [sys.executable, "-m", *arguments]
    done = forks.run(line, library=LIBRARIES[engine], cwd=folder, env=environment, timeout=600)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def write_data(folder: Path, name: str, changes: dict[str, float]) -> None:
    draw = np.random.default_rng(5)
    arrays = {"image": draw.normal(size=(SIZE, 6)).astype(np.float32), "label": draw.integers(0, 3, SIZE)}
    for key, value in changes.items():
        row = arrays[key][ROW]
        arrays[key][ROW] = (row + 1) % 3 if key == "label" else np.full(6, value)
    place = folder / name
    place.mkdir()
    np.savez(place / "train.npz", **arrays)
    np.savez(place / "test.npz", **{key: array[:32] for key, array in arrays.items()})


def first_step_of_the_row() -> int:
    plan = train_plan(SIZE, batch_size=BATCH, seed=1337, epoch=0)
    (steps, _) = np.nonzero(plan.indices == ROW)
    return int(steps[0]) + 1


@pytest.mark.nightly
@pytest.mark.parametrize("name", list(PLANTED))
def test_a_planted_difference_is_found_at_its_step_and_variable(tmp_path: Path, name: str) -> None:
    planted = PLANTED[name]
    engine = planted.engine
    (tmp_path / "planted.py").write_text(CODE)
    write_data(tmp_path, "first", planted.changes if planted.is_nan else {})
    write_data(tmp_path, "second", planted.changes)
    first = [*BASE, f"engine={engine}", "dataset.path=first", "hydra.run.dir=one"]
    if planted.is_nan:
        run(tmp_path, "runner", *first, "trainer.on_nan=continue", engine=engine)
        references = ["run=one"]
    else:
        run(tmp_path, "runner", *first, engine=engine)
        second = [*BASE, f"engine={engine}", "dataset.path=second", "hydra.run.dir=two", *planted.overrides]
        run(tmp_path, "runner", *second, engine=engine)
        references = ["run=one", "against=two"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    line = [sys.executable, "-m", "runner.bisect", *references]
    done = subprocess.run(
        line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (tmp_path / "outputs" / "bisects").glob("*/bisect.json")
    result: dict[str, Any] = json.loads(file.read_text())
    step = first_step_of_the_row() if planted.step is None else planted.step
    assert (result["kind"], result["step"]) == (planted.kind, step), done.stdout
    if planted.layer is not None:
        assert result["layer"] == planted.layer
    if planted.variable is not None:
        assert result["variable"] == planted.variable
    if planted.kind == "batch":
        assert result["rows"] == [ROW]
        assert result["array"] == next(iter(planted.changes))
    assert len(result["examples"]) == BATCH
    for override in planted.overrides:
        key = override.partition("=")[0]
        assert any(changed.startswith(key) for changed in result["configs"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "run=null: runner.bisect needs a recorded run; set run=<run id>"),
        (["run=latest", "tolerance=2"], "tolerance=2: must be a number from 0 to 1; set tolerance=0.001"),
        (["run=latest", "step=3"], "step: unknown flag"),
        (["run=nothing"], "run=nothing: no run left a checkpoint in"),
    ],
)
def test_an_invalid_command_line_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main([*arguments, f"folder={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert len(error.strip().splitlines()) == 1

"""Recorded steps of real runs, computed again: bit for bit on the same mesh, within rounding on another."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.commands import ran

pytestmark = pytest.mark.nightly

BASE = [
    *("dataset=digits", "dataset.batch_size=48", "mesh=batch2", "optimizer.learning_rate=0.005", "tracking=none"),
    *("optimizer.schedule.name=cosine", "optimizer.schedule.warmup_steps=5", "optimizer.clip.global_norm=0.5"),
    *("trainer.log_every_steps=4", "trainer.checkpoint.every_steps=15", "trainer.checkpoint.keep=99"),
    *("trainer.checkpoint.best=null", "trainer.progress=none"),
]
# A run by epochs whose learning rate falls at plateaus, and one by steps with dropout and augmentation.
RUNS = {
    "epochs": [
        *("trainer.epochs=2", "trainer.evaluate_every_steps=10"),
        "optimizer.schedule.plateau={metric: eval/loss, patience: 1, min_delta: 10}",
    ],
    "steps": [
        *("trainer.steps=60", "trainer.evaluate_every_steps=25", "model=convnet", "dataset.augment=[{name: flip}]")
    ],
}


def run(folder: Path, module: str, *overrides: str, engine: str, code: int = 0) -> str:
    done = ran(folder, module, *overrides, library=forks.OF_ENGINE[engine], code=code, XDG_CACHE_HOME=str(folder))
    return done.stdout + done.stderr


def replayed(folder: Path, step: int, *overrides: str, engine: str, code: int = 0) -> dict[str, Any]:
    where = folder / f"replay-{step}-{len(overrides)}"
    chosen = ["run=latest", f"step={step}", f"hydra.run.dir={where}", *overrides]
    run(folder, "runner.verify", *chosen, engine=engine, code=code)
    content: dict[str, Any] = json.loads((where / "step.json").read_text())
    return content


@pytest.mark.parametrize("engine", forks.OF_ENGINE)
@pytest.mark.parametrize("length", list(RUNS))
def test_recorded_steps_are_computed_again_bit_for_bit(tmp_path: Path, engine: str, length: str) -> None:
    run(tmp_path, "runner", f"engine={engine}", *BASE, *RUNS[length], engine=engine)
    # In the middle of a window, at the end of one, at checkpoints, in both epochs; five of each run.
    for step in (3, 15, 28, 45, 58):
        content = replayed(tmp_path, step, engine=engine)
        assert content["equal"], content
        assert content["start"] == max(start for start in (0, 15, 30, 45) if start < step)
        assert content["compared_metrics"] > 0
        # With its optimizer state.
        assert (content["compared_variables"] > 4) == (step in (15, 45) or (step == 58 and length == "epochs"))
        assert len(content["examples"]) == 48


def test_another_mesh_agrees_within_rounding_and_another_seed_does_not(tmp_path: Path) -> None:
    # Without batch normalization: the gradient of a bias before it is only rounding, which Adam makes full steps of.
    run(tmp_path, "runner", "engine=jax", *BASE, *RUNS["epochs"], engine="jax")
    content = replayed(tmp_path, 30, "mesh=batch4", engine="jax")
    assert set(content["differences"]) == {"mesh.axes.batch"}
    worst = next(check for check in content["differing"] if check["kind"] == "variable")
    assert 0 < worst["difference"] < 1e-4 * worst["scale"]
    # A changed seed is another order of examples, and a record that was changed does not go unnoticed.
    assert "error: trainer.seed=7" in run(
        tmp_path, "runner.verify", "run=latest", "step=30", "trainer.seed=7", engine="jax", code=2
    )
    content = replayed(tmp_path, 30, "optimizer.learning_rate=0.006", engine="jax")
    worst = next(check for check in content["differing"] if check["kind"] == "variable")
    assert worst["difference"] > 1e-3 * worst["scale"]


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        # The correction for the first steps makes the update the same, except for its epsilon and rounding.
        (["optimizer.beta_2=0.99"], "the runs part in step 1; first variable: d1/kernel"),
        # As in Keras, the rate of a boundary is still the one before it, and step 19 has 18 steps before it.
        (["optimizer.schedule.factors=[1.0,0.5]"], "the runs part in step 19; first variable: d1/"),
        (["model.seed_of_test=2"], "the runs part before the first step: they begin with different values"),
        ([], "the runs do not part: their common metrics and checkpoints up to step 30 are equal"),
    ],
)
def test_the_first_step_at_which_two_runs_part_is_found(tmp_path: Path, overrides: list[str], found: str) -> None:
    (tmp_path / "planted.py").write_text(
        "def build(keras, input_shape, num_classes, seed_of_test=1):\n"
        "    start = keras.initializers.GlorotUniform(seed=seed_of_test)\n"
        "    layers = keras.layers\n"
        "    inputs = keras.Input(input_shape)\n"
        "    x = layers.Dense(12, 'relu', kernel_initializer=start, name='d1')(layers.Flatten()(inputs))\n"
        "    return keras.Model(inputs, layers.Dense(num_classes, name='d2')(x))\n"
    )
    base = [
        *("engine=jax", "dataset=digits", "mesh=batch2", "model=custom", "model._target_=planted.build"),
        *("+model.seed_of_test=1", "trainer.steps=30", "trainer.log_every_steps=5", "tracking=none"),
        *("trainer.checkpoint.every_steps=10", "trainer.checkpoint.keep=9", "trainer.progress=none"),
        "optimizer.schedule={name: piecewise, boundaries: [17], factors: [1.0, 1.0]}",
    ]
    run(tmp_path, "runner", *base, "hydra.run.dir=one", engine="jax")
    run(tmp_path, "runner", *base, *overrides, "hydra.run.dir=two", engine="jax")
    assert found in run(tmp_path, "runner.verify", "run=one", "against=two", engine="jax")

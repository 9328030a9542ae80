"""Teachers from a preset of KerasHub, and from a recorded run that was not exported."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forks
from tests.stores import store_in
from tests.verify.test_verify import command

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
MODULE = """
import jax
from keras import ops


def build(keras, inputs, outputs):
    tensors = {name: keras.Input(spec.shape, dtype="int32", name=name) for name, spec in inputs.items()}
    x = keras.layers.Embedding(256, 8, name="table")(tensors["tokens"])
    x = keras.layers.GlobalAveragePooling1D(name="mean")(x)
    return keras.Model(tensors, keras.layers.Dense(3, name="head")(x))


class Step:
    def build(self, keras, inputs, teachers):
        self.teacher = teachers["big"]
        self.net = build(keras, inputs, None)
        self.adam = keras.optimizers.Adam(1e-3)
        self.adam.build(self.net.trainable_variables)

    def losses(self, state, trainable, batch):
        inputs = {name: batch[name] for name in ("tokens", "segments")}
        taught, _ = self.teacher.stateless_call(*state["big"], inputs, training=False)
        outputs, _ = self.net.stateless_call(trainable, state["net"].non_trainable, inputs)
        return ops.sum(ops.square(outputs - taught), axis=-1)

    def train_step(self, state, batch, rng):
        def mean(trainable):
            loss = self.losses(state, trainable, batch)
            return ops.sum(loss * batch["weight"]) / ops.sum(batch["weight"]), loss

        gradients, loss = jax.grad(mean, has_aux=True)(state["net"].trainable)
        trainable, slots = self.adam.stateless_apply(state["adam"], gradients, state["net"].trainable)
        return {**state, "net": state["net"]._replace(trainable=trainable), "adam": slots}, {"loss": loss}

    def evaluate(self, state, batch, rng):
        return {"loss": self.losses(state, state["net"].trainable, batch)}


def loss(ops, outputs, batch):
    return ops.cross_entropy(ops.softmax(batch["big"]), outputs)
"""
CUSTOM = ["engine=jax", "task=custom", "task._target_=taught.loss", "verify.steps=4", "mesh=batch4_model2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder with the module of the loss and the student."""
    (tmp_path / "taught.py").write_text(MODULE)
    return tmp_path


def resumed(folder: Path, epochs: int) -> subprocess.CompletedProcess[str]:
    """Resumes the run of a folder."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    environment["MLFLOW_TRACKING_URI"] = store_in(folder)
    arguments = [sys.executable, "-m", "runner", "resume=latest", f"trainer.epochs={epochs}"]
    return forks.run(arguments, library="jax", cwd=folder, env=environment, timeout=300)


@pytest.mark.skipif(importlib.util.find_spec("keras_hub") is None, reason="needs the extra hub")
def test_a_preset_is_a_teacher_of_a_loss_and_of_a_step(folder: Path) -> None:
    worker = [sys.executable, "-m", "tests.run.preset_worker", "make", str(folder)]
    done = forks.run(worker, library="jax", cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    data = ["dataset=arrays", "dataset.path=sentences.npz", "dataset.batch_size=16", "mesh=batch4_model2"]
    data += ["+task.teachers.big=bert", "layout=fsdp_megatron", "engine=jax"]
    loss = [*data, "model=custom", "model._target_=taught.build", "task=custom", "task._target_=taught.loss"]
    done = command(folder, *loss, "verify.steps=4", "tracking=none")
    assert "verified: 4 steps" in done.stdout
    step = [*data, "task=step", "task._target_=taught.Step"]
    command(folder, *step, "tracking=none", module="runner.plan")
    sizes = re.search(
        r"frozen models \(task.teachers\) \| (\S+) KiB \| (\S+) KiB", (folder / "run/plan.md").read_text()
    )
    assert sizes is not None
    # Most of it is sharded over all of the 8 devices.
    assert 6 < float(sizes[1]) / float(sizes[2]) < 8
    command(folder, *step, "trainer.epochs=1", "trainer.steps_per_epoch=3", module="runner")
    # Another file of the preset is another teacher; its tokenizer is not read.
    (folder / "bert" / "tokenizer.json").write_text("{}")
    assert resumed(folder, 2).returncode == 0
    config = json.loads((folder / "bert" / "task.json").read_text())
    (folder / "bert" / "task.json").write_text(json.dumps(config, indent=1))
    done = resumed(folder, 3)
    assert done.returncode == 2
    assert "task.teachers.big=bert: the file is not the one that the run began with" in done.stderr


def test_a_run_that_was_not_exported_is_a_teacher(folder: Path) -> None:
    digits = ["engine=jax", "dataset=digits", "model=mlp", "dataset.batch_size=32", "trainer.epochs=1", "mesh=batch2"]
    command(folder, *digits, module="runner")
    (run,) = (path.name for path in (folder / "outputs" / "checkpoints").iterdir() if path.is_dir())
    data = ["dataset=digits", "model=mlp", "model.hidden=[16]", "task.units=10", "dataset.batch_size=32"]
    done = command(folder, *data, *CUSTOM, f"+task.teachers.big={run}", "tracking=none")
    assert "verified: 4 steps" in done.stdout
    assert (folder / "outputs" / "exports" / run / "model.keras").is_file()

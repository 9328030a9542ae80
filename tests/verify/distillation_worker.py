"""Distills a preset of KerasHub on a mesh, with stock Keras, and on an engine whose teacher moves.

Usage: python -m tests.verify.distillation_worker OUT.json FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from runner.config.schema import LayoutConfig, ModelConfig, RuleConfig, RunConfig, VerifyConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, ArraySpec
from runner.engine import make_engine, registry
from runner.engine.base import Engine, HasTeachers, HostBatches
from runner.optim.stock import stock_optimizer
from runner.task.base import DataSpec
from runner.task.registry import make_task
from tests.configs import with_keys
from tests.engine import cases
from tests.run import preset_worker
from tests.verify import teacher_mutants

AXES = {"batch": 4, "model": 2}
STEPS, BATCH, PADDED = 6, 16, 5
ROW = (preset_worker.T,)
CLASSES = tuple(map(str, range(preset_worker.CLASSES)))
ARRAYS = {
    "tokens": ArraySpec(ROW, "int32"),
    "segments": ArraySpec(ROW, "int32"),
    "label": ArraySpec((), "int32", names=CLASSES),
}
RULES = [RuleConfig("big/.*/(query|key|value)/kernel", ["batch", "model", None], optional=True)]
OPTIONS = {"temperature": 2.0, "student_loss_weight": 0.3, "label_smoothing": 0.0, "class_weights": None}


def build(keras: Any, inputs: Mapping[str, ArraySpec]) -> Any:
    """Builds the student."""
    tensors = {name: keras.Input(spec.shape, dtype="int32", name=name) for name, spec in inputs.items()}
    x = keras.layers.Embedding(preset_worker.V, 8, name="table")(tensors["tokens"])
    x = keras.layers.GlobalAveragePooling1D(name="mean")(x)
    return keras.Model(tensors, keras.layers.Dense(len(CLASSES), name="head")(x))


def config(preset: Path) -> RunConfig:
    """Returns the config of a run."""
    options = OPTIONS | {"top_k": None, "classes": None}
    task = TaskConfig("distillation", target=["label"], teachers={"big": str(preset)}, options=options)
    keys = {
        "task": task,
        "model": ModelConfig(f"{__spec__.name}.build", {}),
        "layout": LayoutConfig(rules=RULES),
        "engine.name": "jax",
        "engine.compilation_cache": False,
        "dataset.batch_size": BATCH,
        "verify": VerifyConfig(steps=STEPS),
    }
    return with_keys(cases.config(AXES, cases.OPTIMIZERS["adam"]), keys)


def spec(made: RunConfig) -> DataSpec:
    """Returns what an engine is built for."""
    return DataSpec(ARRAYS, make_task(made.task, ARRAYS))


def batches(folder: Path) -> HostBatches:
    """Returns the sentences as batches; the last step's end is padding."""
    with np.load(folder / "sentences.npz") as file:
        arrays = {name: file[name][: STEPS * BATCH].reshape(STEPS, BATCH, *file[name].shape[1:]) for name in ARRAYS}
    weight = np.ones((STEPS, BATCH), np.float32)
    weight[-1, -PADDED:] = 0
    return HostBatches({**arrays, WEIGHT: weight}, weight, STEPS)


def part(given: HostBatches, start: int, stop: int) -> HostBatches:
    """Returns some of the steps."""
    arrays = {name: array[start:stop] for name, array in given.arrays.items()}
    return HostBatches(arrays, given.weights[start:stop], stop - start)


def built(made: RunConfig) -> Engine:
    """Returns the engine on the mesh."""
    engine = make_engine(made, spec(made), STEPS)
    engine.build()
    return engine


def stock(made: RunConfig, folder: Path) -> tuple[list[float], dict[str, Any], float]:
    """Trains with Keras's `Distiller`, and compares the teacher with KerasHub's own model.

    Returns:
      The losses of each step, the student's weights by path, and the largest difference of the teacher's logits.
    """
    import keras
    import keras_hub

    from runner.engine.jax.adapter import Keras3Factory
    from runner.engine.jax.teachers import read_teachers

    data = spec(made)
    student = Keras3Factory(made.model, data, made.trainer.seed).build()
    (teacher,) = read_teachers(data.task).values()
    # The default of `loss` is the name of a function, for which Keras 3.15 takes no softmax of the logits.
    distiller = keras.distillation.Distiller(
        teacher,
        student,
        distillation_losses=keras.distillation.LogitsDistillation(
            temperature=OPTIONS["temperature"], loss=keras.losses.KLDivergence()
        ),
        student_loss_weight=OPTIONS["student_loss_weight"],
    )
    labels_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    distiller.compile(optimizer=stock_optimizer(made.optimizer, STEPS, keras), loss=labels_loss)
    given = batches(folder)
    losses = []
    for step in range(STEPS):
        real = given.arrays[WEIGHT][step] > 0
        x = {name: given.arrays[name][step][real] for name in ("tokens", "segments")}
        distiller.reset_metrics()
        logs = distiller.train_on_batch(x, given.arrays["label"][step][real], return_dict=True)
        losses.append(float(logs["loss"]))
    own = keras_hub.models.TextClassifier.from_preset(str(folder / "bert"), preprocessor=None)
    tokens, segments = (given.arrays[name][0] for name in ("tokens", "segments"))
    its_inputs = {"token_ids": tokens, "padding_mask": segments, "segment_ids": np.zeros_like(tokens)}
    expected = np.asarray(own(its_inputs, training=False))
    taught = np.asarray(teacher({"tokens": tokens, "segments": segments}, training=False))
    weights = {variable.path: np.asarray(variable.value) for variable in student.weights}
    return losses, weights, float(np.abs(taught - expected).max())


def on_mesh(made: RunConfig, folder: Path) -> dict[str, Any]:
    """Trains an engine, and another one that is resumed half-way."""
    engine, given = built(made), batches(folder)
    assert isinstance(engine, HasTeachers)
    before = engine.teacher_state()
    read = engine.train_steps(engine.place(given), 0).read()
    evaluated = engine.evaluate([part(given, STEPS - 1, STEPS)])
    first, second = built(made), built(made)
    first.train_steps(first.place(part(given, 0, 3)), 0).read()
    second.load_state(first.state())
    second.train_steps(second.place(part(given, 3, STEPS)), 3).read()
    assert isinstance(second, HasTeachers)
    state = engine.state()
    after, resumed = engine.teacher_state(), second.teacher_state()
    return {
        "losses": [float(value) for value in read.sums["loss"] / read.weight],
        "metrics": sorted(evaluated.metrics),
        "moved": [path for path in before if not np.array_equal(before[path], after[path])],
        "moved after a resume": [path for path in before if not np.array_equal(before[path], resumed[path])],
        "resumed otherwise": [path for path in state if not np.array_equal(state[path], second.state()[path])],
        "specs": {path: str(info.spec) for path, info in engine.teacher_variables().items()},
        "state": {path: np.asarray(value) for path, value in state.items()},
    }


def verdicts(made: RunConfig, folder: Path) -> dict[str, Any]:
    """Returns the verdict on a sound engine, and on one whose teacher moves."""
    from runner.engine.jax.engine import JaxEngine

    sound = JaxEngine.train_steps

    def moving(self: Any, *given: Any) -> Any:
        self._teachers = {path: 1.001 * value for path, value in self._teachers.items()}
        return sound(self, *given)

    judge = teacher_mutants.Judge(made, spec(made), batches(folder))
    found = {"sound": judge.verdict()}
    with mock.patch.object(JaxEngine, "train_steps", moving):
        found["moves"] = judge.verdict()
    return found


def main() -> None:
    """Writes what was compared."""
    out, folder = map(Path, sys.argv[1:])
    registry.load(with_keys(cases.config(AXES), {"engine.name": "jax"}))
    from runner.engine.jax import mesh
    from runner.model import keras_hub

    # Before Keras makes JAX's devices, of which there would be one.
    mesh.configure(cases.config(AXES).mesh)
    keras_hub.load()
    preset_worker.make(folder)
    made = config(folder / "bert")
    found = on_mesh(made, folder)
    state = found.pop("state")
    found["stock losses"], weights, found["difference of the teacher"] = stock(made, folder)
    found["differences"] = {path: float(np.abs(state[path] - value).max()) for path, value in weights.items()}
    out.write_text(json.dumps(found | verdicts(made, folder)))


if __name__ == "__main__":
    main()

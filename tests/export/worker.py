"""Exports models of several tasks and inputs, without a run: `python -m tests.export.worker ENGINE FOLDER`.

Prints JSON: name -> what was loaded again -> answer -> [largest difference, largest value].
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from runner import arrays
from runner.config.schema import EngineConfig, ModelConfig, TaskConfig
from runner.data.base import Array, ArraySpec, Encoding
from runner.engine import make_engine, registry
from runner.task.base import DataSpec, named_outputs
from runner.task.registry import make_task
from runner.train.export.check import check
from runner.train.export.signature import Served
from runner.train.export.write import SAVED_MODEL, loaded_keras, write_model
from tests.configs import with_keys
from tests.engine import cases

COUNT = 600  # more than one batch of the loaded export


@dataclass(frozen=True)
class Case:
    """Examples, their specs, what is to be learned of them, how they became numbers, and by which builder."""

    arrays: Mapping[str, Array]
    specs: Mapping[str, ArraySpec]
    task: TaskConfig
    encoding: Encoding = field(default_factory=Encoding)
    builder: str = ""


def two(keras: Any, inputs: Mapping[str, ArraySpec]) -> Any:
    """Returns a model of two outputs, a tuple."""
    x = keras.Input(inputs["x"].shape)
    hidden = keras.layers.Dense(6, "tanh", name="d0")(x)
    return keras.Model(x, (keras.layers.Dense(4, name="d1")(hidden), keras.layers.Dense(3, name="d2")(hidden)))


def squares(ops: Any, outputs: Any, batch: Any) -> Any:
    """Loss of both outputs."""
    del batch
    return sum(ops.mean(ops.square(output), axis=-1) for output in outputs)


def made() -> dict[str, Case]:
    """Returns the cases by name."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (COUNT, 8, 8, 1)).astype(np.uint8)
    image_spec = ArraySpec((8, 8, 1), "uint8", ("height", "width", "channel"))
    label, names = rng.integers(0, 10, COUNT).astype(np.int32), tuple(map(str, range(10)))
    vector, price = rng.normal(size=(COUNT, 5)).astype(np.float32), rng.normal(size=COUNT).astype(np.float32)
    year = (2000 + rng.normal(0, 7, COUNT)).astype(np.float32)
    both = {"image": image, "vector": vector, "price": price}
    specs = {"image": image_spec, "vector": ArraySpec((5,), "float32"), "price": ArraySpec((), "float32")}
    tags = {"vector": vector, "tags": (rng.random((COUNT, 4)) > 0.5).astype(np.float32)}
    table = {"year": year, "vector": vector, "price": price}
    table_specs = {"year": ArraySpec((), "float32"), "vector": specs["vector"], "price": specs["price"]}
    encoding = Encoding(mean={"year": (2000.3712345,)}, deviation={"year": (7.7,)})
    classes = rng.integers(0, 3, COUNT).astype(np.int32)
    own = TaskConfig("custom", ["label"], options={"target": "tests.export.worker.squares", "units": 4})
    return {
        "two outputs": Case(
            {"x": vector, "label": classes},
            {"x": specs["vector"], "label": ArraySpec((), "int32", names=("a", "b", "c"))},
            own,
            builder="tests.export.worker.two",
        ),
        "classes": Case(
            {"image": image, "label": label}, {"image": image_spec, "label": ArraySpec((), "int32", names=names)},
            TaskConfig(),
        ),
        "two inputs": Case(both, specs, TaskConfig("regression", target=["price"])),
        "labels": Case(
            tags, {"vector": specs["vector"], "tags": ArraySpec((4,), "float32", names=("a", "b", "c", "d"))},
            TaskConfig("multilabel", target=["tags"]),
        ),
        "standardized": Case(table, table_specs, TaskConfig("regression", target=["price"]), encoding),
    }  # fmt: skip


def exported(engine: str, folder: Path) -> Iterator[tuple[str, dict[str, dict[str, list[float]]]]]:
    """Yields each case's name and how its export compares with the model that was written."""
    registry.prepare(replace(cases.config({"batch": 1}), engine=EngineConfig(name=engine)))
    registry.load(engine)
    for name, case in made().items():
        config = cases.config({"batch": 1}, hidden=[16])
        config = with_keys(config, {"engine.name": engine})
        if case.builder:
            config = with_keys(config, {"model": ModelConfig(case.builder, {})})
        task = make_task(case.task, case.specs)
        served = Served(DataSpec(task.arrays, task), case.encoding)
        plain = make_engine(config, served.spec, 1).plain_model(_weights(engine, config, served.spec))
        inputs = task.inputs(arrays.of(np), served.standardized(case.arrays))
        given = named_outputs(plain.model(inputs, training=False))
        outputs = {key: np.asarray(output) for key, output in given.items()}
        target = folder / name.replace(" ", "_")
        target.mkdir()
        assert write_model(plain, served, target, convert=False, tensorflow=True) is None
        loaded, _ = loaded_keras(plain, target)
        run = outputs.get("outputs", outputs)
        found = check(target / SAVED_MODEL, loaded, served, case.arrays, run, folder / "log")
        yield (
            name,
            {
                file: {key: [each.largest, each.scale] for key, each in compared.items()}
                for file, compared in found.items()
            },
        )


def _weights(engine: str, config: cases.RunConfig, data: DataSpec) -> dict[str, Array]:
    """Returns weights other than those that the model begins with."""
    rng = np.random.default_rng(1)
    if engine == "jax":
        from runner.engine.jax.adapter import Keras3Factory
        from runner.engine.jax.names import Names

        variables = Names(Keras3Factory(config.model, data, 0).build()).variables
        shapes = {path: tuple(variable.shape) for path, variable in variables.items()}
    else:
        from runner.engine.dtensor.adapters import make_adapter

        adapter = make_adapter(engine, config.model, data, config.trainer.seed)
        shapes = {path: tuple(variable.shape) for path, variable in adapter.variables(adapter.plain()).items()}
    return {path: rng.normal(0, 0.3, shape).astype(np.float32) for path, shape in shapes.items()}


if __name__ == "__main__":
    print(json.dumps(dict(exported(sys.argv[1], Path(sys.argv[2])))))

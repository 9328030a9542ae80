"""Compares a part of the table in a process of its own, for virtual devices can't change within one.

Usage: python -m tests.layers.worker PART prints JSON: what differs from stock Keras, or is not rejected as the table
says. `python -m tests.layers.worker names` prints the classes of `keras.layers`.

Several calls are one model, whose program is compiled once: inputs -> a weight on each number -> the call -> flattened
-> two units. The weight in front shows the gradient by the input, entry by entry.
"""

import inspect
import json
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np

from runner.config.schema import OptimizerConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec
from runner.engine import make_engine, registry
from runner.engine.base import HostBatches
from runner.engine.jax import devices
from runner.engine.jax.adapter import Keras3Factory
from runner.engine.jax.names import Names
from runner.errors import ConfigError
from runner.layout.paths import is_variable, slot_path
from runner.task.base import LOSS, DataSpec
from runner.task.registry import make_task
from tests.configs import with_keys
from tests.engine import cases as engine_cases
from tests.layers.table import PARTS, Case, Tensor

BATCH, STEPS, RATE, MOMENTUM, UNITS = 8, 2, 0.01, 0.9, 2
TOGETHER = 12  # calls a model
# Relative to an array's largest number, or to what it moved by. A wrong sign, or a mask or a row amiss, is off by 1%
# and more. In bfloat16 a sum has some 16 roundings of half an ulp of its largest term, and a bias's gradient more.
FLOAT32, BFLOAT16 = 1e-4, 0.1
# Of the largest array, where a gradient is zero in mathematics.
ZERO = 0.01
Arrays = dict[str, Array]


class Weighted(keras.layers.Layer):
    def build(self, shape: Sequence[int | None]) -> None:
        self.scale = self.add_weight(shape=tuple(shape[1:]), initializer="ones", name="scale")
        self.shift = self.add_weight(shape=tuple(shape[1:]), initializer="zeros", name="shift")

    def call(self, inputs: Any) -> Any:
        return inputs * self.scale + self.shift


def build(inputs: Mapping[str, ArraySpec], num_classes: int, part: str, first: int, last: int) -> Any:
    del num_classes
    given = {name: keras.Input(spec.shape, dtype=spec.dtype, name=name) for name, spec in inputs.items()}
    branches = []
    for number, case in enumerate(PARTS[part][first:last]):
        tensors = {}
        for letter, tensor in zip("xyz", case.inputs, strict=False):
            x = given[f"{letter}{number}"]
            tensors[letter] = x if tensor.kind.isdecimal() else Weighted()(x)
        called = eval(case.call, {"L": keras.layers, "K": keras, **tensors})
        flat = [keras.layers.Flatten()(keras.ops.cast(each, "float32")) for each in jax.tree.leaves(called)]
        joined = flat[0] if len(flat) == 1 else keras.layers.Concatenate()(flat)
        branches.append(keras.layers.Dense(UNITS)(joined))
    outputs = branches[0] if len(branches) == 1 else keras.layers.Concatenate()(branches)
    return keras.Model(given if len(given) > 1 else next(iter(given.values())), outputs)


def drawn(tensor: Tensor, name: str) -> Array:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    size = (BATCH, *tensor.shape)
    if tensor.kind.isdecimal():
        return rng.integers(0, int(tensor.kind), size).astype(np.int32)
    return (rng.uniform(0.02, 0.98, size) if tensor.kind == "unit" else rng.normal(size=size)).astype(np.float32)


class Setup:
    """Some calls of a part as one model: what is built and fed."""

    def __init__(self, part: str, first: int, last: int) -> None:
        cases = PARTS[part][first:last]
        self.arrays: Arrays = {
            f"{letter}{number}": drawn(tensor, f"{case.call} {letter}")
            for number, case in enumerate(cases)
            for letter, tensor in zip("xyz", case.inputs, strict=False)
        }
        specs = {name: ArraySpec(array.shape[1:], str(array.dtype)) for name, array in self.arrays.items()}
        width = UNITS * len(cases)
        specs["target"] = ArraySpec((width,), "float32")
        self.target = np.random.default_rng(1).normal(size=(BATCH, width)).astype(np.float32)
        self.data = DataSpec(specs, make_task(TaskConfig("regression", ["target"]), specs))
        optimizer = OptimizerConfig("sgd", RATE, momentum=MOMENTUM, nesterov=False)
        options = {"part": part, "first": first, "last": last}
        made = engine_cases.config({"batch": 4, "model": 2}, optimizer, f"{__spec__.name}.build", **options)
        keys = {"engine.name": "jax", "engine.compilation_cache": False, "dataset.batch_size": BATCH}
        self.config: RunConfig = with_keys(made, keys)


def generic(initial: Mapping[str, Array]) -> Arrays:
    """Returns starting values off kinks and symmetric starts: no bias is 0, no scale 1; a variance stays positive."""
    found = {}
    for path, value in initial.items():
        rng = np.random.default_rng(zlib.crc32(path.encode()))
        if value.dtype.kind != "f":
            found[path] = value
        elif re.search("variance|stddev", path):
            found[path] = (value * rng.uniform(0.5, 1.5, value.shape)).astype(value.dtype)
        else:
            found[path] = (value + 0.2 * rng.normal(size=value.shape)).astype(value.dtype)
    return found


def stock(setup: Setup) -> Arrays:
    """Trains stock Keras on one device: its layers, optimizer and constraints, jitted as its trainer does.

    Returns:
      `start/<path>`, `final/<path>`, `gradient0/<path>` and so on, `loss`, and `outputs` before training.
    """
    seed = setup.config.trainer.seed
    model = Keras3Factory(setup.config.model, setup.data, seed).build()
    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    optimizer.build(model.trainable_variables)
    paths = {id(variable): path for path, variable in Names(model).variables.items()}
    start = generic({paths[id(v)]: np.asarray(v.value) for v in model.weights if id(v) in paths})
    loss_of = keras.losses.MeanSquaredError()
    inputs = setup.arrays if len(setup.arrays) > 1 else next(iter(setup.arrays.values()))
    trained, others = model.trainable_variables, model.non_trainable_variables

    def loss(weights: Any, rest: Any) -> Any:
        outputs, rest, added = model.stateless_call(weights, rest, inputs, training=True, return_losses=True)
        return loss_of(setup.target, outputs) + sum(added), rest

    @jax.jit
    def train(weights: Any, rest: Any, kept: Any) -> Any:
        (value, rest), gradients = jax.value_and_grad(loss, has_aux=True)(weights, rest)
        weights, kept = optimizer.stateless_apply(kept, gradients, weights)
        return value, gradients, weights, rest, kept

    @jax.jit
    def predict(weights: Any, rest: Any) -> Any:
        return model.stateless_call(weights, rest, inputs, training=False)[0]

    weights, rest = ([start.get(paths.get(id(v), ""), v.value) for v in held] for held in (trained, others))
    kept = [variable.value for variable in optimizer.variables]
    found = {f"start/{path}": value for path, value in start.items()}
    found["outputs"] = np.asarray(predict(weights, rest))
    losses = []
    for number in range(STEPS):
        value, gradients, weights, rest, kept = train(weights, rest, kept)
        losses.append(float(value))
        named = zip(trained, gradients, strict=True)
        found |= {f"gradient{number}/{paths[id(v)]}": np.asarray(gradient) for v, gradient in named}
    pairs = [*zip(trained, weights, strict=True), *zip(others, rest, strict=True)]
    found |= {f"final/{paths[id(v)]}": np.asarray(value) for v, value in pairs if id(v) in paths}
    return found | {"loss": np.asarray(losses)}


def on_mesh(setup: Setup, start: Arrays) -> Arrays:
    """Trains the engine, and returns what `stock` does.

    A step's gradient is read from the momentum that it leaves, v' = momentum * v - rate * gradient: so it is that of
    the program that trains.
    """
    engine = make_engine(setup.config, setup.data, STEPS)
    engine.build()
    own = engine.state()
    assert {path for path in own if is_variable(path)} == set(start)
    engine.load_state({path: start.get(path, np.zeros_like(value)) for path, value in own.items()})
    weights = np.ones((1, BATCH), np.float32)
    arrays = {name: array[None] for name, array in setup.arrays.items()}
    batch = HostBatches(arrays | {"target": setup.target[None], WEIGHT: weights}, weights, 1)
    found: Arrays = {"outputs": engine.evaluate([batch], keep_outputs=True).outputs}
    losses = []
    before: dict[str, Any] = dict.fromkeys(engine.trainable, 0.0)
    for number in range(STEPS):
        metrics = engine.train_steps(engine.place(batch), number).read()
        losses.append(float(metrics.sums[LOSS][0] / metrics.weight[0]))
        state = engine.state()
        after = {path: state[slot_path("momentum", path)].astype(np.float64) for path in engine.trainable}
        found |= {f"gradient{number}/{path}": (MOMENTUM * before[path] - after[path]) / RATE for path in after}
        before = after
    return found | {f"final/{path}": state[path] for path in start} | {"loss": np.asarray(losses)}


def differences(found: Arrays, expected: Arrays, tolerance: float) -> list[str]:
    assert set(found) == {key for key in expected if not key.startswith("start/")}
    sizes = {}
    for key in found:
        before = expected[key.replace("final/", "start/", 1)].astype(np.float64) if key.startswith("final/") else 0.0
        sizes[key] = _size(expected[key].astype(np.float64) - before)
    off = []
    for key, value in found.items():
        alike = max(size for other, size in sizes.items() if other.startswith("final/") == key.startswith("final/"))
        rounding = 8.0 * 2.0**-23 * _size(expected[key])
        allowed = tolerance * (sizes[key] + ZERO * alike) + rounding
        ratio = _size(value.astype(np.float64) - expected[key].astype(np.float64)) / allowed
        if not ratio <= 1:
            off.append(f"{key}: {ratio:.3g} tolerances")
    return off


def _size(value: Any) -> float:
    return float(np.max(np.abs(np.asarray(value, np.float64)), initial=0.0))


def refusal(setup: Setup) -> str:
    """Returns the line that rejects a call; empty: it is taken."""
    try:
        make_engine(setup.config, setup.data, STEPS).build()
    except ConfigError as error:
        return str(error)
    return ""


def compared(part: str) -> list[str]:
    wrong = []
    for kind, cases in _alike(PARTS[part]):
        setup = Setup(part, cases[0], cases[-1] + 1)
        calls = [PARTS[part][number].call for number in cases]
        try:
            if kind == "refused":
                said = refusal(setup)
                off = [] if PARTS[part][cases[0]].refused in said and said else [f"said {said!r}"]
            else:
                expected = stock(setup)
                start = {key.removeprefix("start/"): v for key, v in expected.items() if key.startswith("start/")}
                off = differences(on_mesh(setup, start), expected, BFLOAT16 if kind == "bfloat16" else FLOAT32)
        except Exception as error:
            off = [f"{type(error).__name__}: {error}"[:1000]]
        wrong += [f"{each}, in {calls}" for each in off]
    return wrong


def _alike(cases: Sequence[Case]) -> list[tuple[str, list[int]]]:
    found: list[tuple[str, list[int]]] = []
    for number, case in enumerate(cases):
        kind = "refused" if case.refused else "bfloat16" if case.is_bfloat16 else "float32"
        if not found or found[-1][0] != kind or kind == "refused" or len(found[-1][1]) == TOGETHER:
            found.append((kind, []))
        found[-1][1].append(number)
    return found


def classes() -> list[str]:
    found = {}
    for name, value in inspect.getmembers(keras.layers, inspect.isclass):
        if issubclass(value, keras.layers.Layer) and (value not in found or value.__name__ == name):
            found[value] = name
    return sorted(found.values())


def main() -> None:
    if sys.argv[1] == "names":
        print(json.dumps(classes()))
        return
    config = Setup(sys.argv[1], 0, 1).config
    registry.prepare(config)
    registry.load(config.engine.name)
    devices.make_mesh(config.mesh)  # before stock Keras makes one device
    print(json.dumps(compared(sys.argv[1])))


if __name__ == "__main__":
    # Under its own name, so that the builder, which the runner imports by name, is in the same module.
    from tests.layers import worker

    worker.main()

"""Losses, gradients, metrics and totals of the cases in one library and in its Keras, or in TensorFlow on a mesh.

`python -m tests.task.worker <library> <out.npz> ["mesh" or ""]`
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from runner import arrays
from runner.data.base import WEIGHT
from tests.task import cases
from tests.task.functions import CALLS

Arrays = dict[str, np.ndarray]


def of_case(case: cases.Case, ops: arrays.Arrays, outputs: Any, batch: Any) -> dict[str, Any]:
    task = case.task
    loss = task.loss(ops, outputs, batch)
    real = ops.where(ops.greater(batch[WEIGHT], 0.0), loss, ops.zeros_like(loss))
    found = {"loss": loss, "sum": ops.sum(real)}
    found |= {f"metric {name}": value for name, value in task.metrics(ops, outputs, batch).items()}
    return found | {f"total {name}": value for name, value in task.totals(ops, outputs, batch).items()}


def jax_numbers(case: cases.Case) -> Arrays:
    jax, jnp = importlib.import_module("jax"), importlib.import_module("jax.numpy")
    ops, keras = arrays.of(jnp), importlib.import_module("keras")
    batch = {name: jnp.asarray(array) for name, array in case.batch.items()}
    found = jax.jit(lambda o: of_case(case, ops, o, batch))(jnp.asarray(case.outputs))
    gradient = jax.jit(jax.grad(lambda o: of_case(case, ops, o, batch)["sum"]))(jnp.asarray(case.outputs))
    loss = getattr(keras.losses, case.loss)(**case.options)
    real = jnp.asarray(case.outputs[: cases.REAL])

    def reference(o: Any) -> Any:
        return loss(case.target, o, sample_weight=case.weights)

    value, of_keras = jax.value_and_grad(reference)(real)
    return {**found, "gradient": gradient, "keras loss": value, "keras gradient": of_keras}


def tensorflow_numbers(case: cases.Case) -> Arrays:
    tf, keras = importlib.import_module("tensorflow"), importlib.import_module("tf_keras")
    ops = arrays.of(tf)
    batch = {name: tf.constant(array) for name, array in case.batch.items()}
    found = _traced(tf, case, ops)(tf.constant(case.outputs), batch)
    loss, real = getattr(keras.losses, case.loss)(**case.options), tf.constant(case.outputs[: cases.REAL])
    with tf.GradientTape() as tape:
        tape.watch(real)
        value = loss(case.target, real, sample_weight=case.weights)
    return {**found, "keras loss": value, "keras gradient": tape.gradient(value, real)}


def _traced(tf: Any, case: cases.Case, ops: arrays.Arrays) -> Callable[..., Any]:
    @tf.function
    def numbers(outputs: Any, batch: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            found = of_case(case, ops, outputs, batch)
        return {**found, "gradient": tape.gradient(found["sum"], outputs)}

    return numbers


def mesh_numbers(case: cases.Case, mesh: Any) -> Arrays:
    tf, dtensor = importlib.import_module("tensorflow"), importlib.import_module("tensorflow.experimental.dtensor")

    def split(array: np.ndarray) -> Any:
        whole = dtensor.copy_to_mesh(array, dtensor.Layout.replicated(mesh, array.ndim))
        return dtensor.relayout(whole, dtensor.Layout.batch_sharded(mesh, "batch", array.ndim))

    batch = {name: split(array) for name, array in case.batch.items()}
    with dtensor.default_mesh(mesh):
        found = _traced(tf, case, arrays.of(tf))(split(case.outputs), batch)
        whole = {
            name: dtensor.relayout(value, dtensor.Layout.replicated(mesh, len(value.shape)))
            for name, value in found.items()
        }
    return {name: dtensor.unpack(value)[0] for name, value in whole.items()}


def main(library: str, out: str, place: str = "") -> None:
    module = importlib.import_module(library)
    numbers = jax_numbers if library == "jax.numpy" else tensorflow_numbers
    found: Arrays = {}
    if place:
        devices = [module.config.LogicalDeviceConfiguration()] * 2
        module.config.set_logical_device_configuration(module.config.list_physical_devices("CPU")[0], devices)
        dtensor = importlib.import_module("tensorflow.experimental.dtensor")
        numbers = partial(mesh_numbers, mesh=dtensor.create_mesh([("batch", 2)], devices=["CPU:0", "CPU:1"]))
    for name, case in cases.make().items():
        if library not in case.libraries:
            continue
        found |= {f"{name}: {key}": np.asarray(value) for key, value in numbers(case).items()}
    ops = arrays.of(module)
    for name, call in CALLS.items():
        found[f"function: {name}"] = np.asarray(call(ops))
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Losses and gradients of the cases in one library and in its Keras: `python -m tests.task.worker LIBRARY OUT.npz`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

from runner import arrays
from runner.data.base import WEIGHT
from tests.task import cases
from tests.task.functions import CALLS

Arrays = dict[str, np.ndarray]


def summed(case: cases.Case, ops: arrays.Arrays, outputs: Any, batch: Any) -> Any:
    loss = case.task.loss(ops, outputs, batch)
    return ops.sum(ops.where(ops.greater(batch[WEIGHT], 0.0), loss, ops.zeros_like(loss)))


def jax_numbers(case: cases.Case) -> Arrays:
    jax, jnp = importlib.import_module("jax"), importlib.import_module("jax.numpy")
    ops, keras = arrays.of(jnp), importlib.import_module("keras")
    batch = {name: jnp.asarray(array) for name, array in case.batch.items()}
    own = jax.jit(jax.value_and_grad(lambda o: summed(case, ops, o, batch)))
    total, gradient = own(jnp.asarray(case.outputs))
    loss = getattr(keras.losses, case.loss)(**case.options)
    real = jnp.asarray(case.outputs[: cases.REAL])
    value, of_keras = jax.value_and_grad(lambda o: loss(case.target, o, sample_weight=case.weights))(real)
    return {"sum": total, "gradient": gradient, "keras loss": value, "keras gradient": of_keras}


def tensorflow_numbers(case: cases.Case) -> Arrays:
    tf, keras = importlib.import_module("tensorflow"), importlib.import_module("tf_keras")
    ops = arrays.of(tf)

    @tf.function
    def own(outputs: Any, batch: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            total = summed(case, ops, outputs, batch)
        return {"sum": total, "gradient": tape.gradient(total, outputs)}

    found = own(tf.constant(case.outputs), {name: tf.constant(array) for name, array in case.batch.items()})
    loss, real = getattr(keras.losses, case.loss)(**case.options), tf.constant(case.outputs[: cases.REAL])
    with tf.GradientTape() as tape:
        tape.watch(real)
        value = loss(case.target, real, sample_weight=case.weights)
    return {**found, "keras loss": value, "keras gradient": tape.gradient(value, real)}


def main(library: str, out: str) -> None:
    numbers = jax_numbers if library == "jax.numpy" else tensorflow_numbers
    found: Arrays = {}
    for name, case in cases.make().items():
        if library not in case.libraries:
            continue
        found |= {f"{name}: {key}": np.asarray(value) for key, value in numbers(case).items()}
    ops = arrays.of(importlib.import_module(library))
    for name, call in CALLS.items():
        found[f"function: {name}"] = np.asarray(call(ops))
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])

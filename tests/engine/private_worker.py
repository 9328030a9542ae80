"""Calls each private interface of TensorFlow and tf_keras that the DTensor engine leans on; prints what failed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import tensorflow as tf
import tf_keras

from runner.engine.dtensor import private


def _model() -> tf_keras.Model:
    return tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(2, name="d1")])


class _Subclassed(tf_keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = tf_keras.layers.Dense(2)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.inner(x)


def functions() -> bool:
    """Tells whether TensorFlow lists its functions, and a function its nodes."""
    mesh = tf.experimental.dtensor.create_mesh([("batch", 1)], devices=["CPU:0"])
    ones = tf.experimental.dtensor.call_with_layout(
        tf.ones, tf.experimental.dtensor.Layout.replicated(mesh, 1), shape=(64,)
    )
    before = private.function_names()
    tf.function(_doubled, autograph=False)(ones)
    bodies = [name for name in private.function_names() - before if name.startswith("doubled_") and "_body" in name]
    return any("Mul" in {node.op for node in private.function_nodes(name).values()} for name in bodies)


def _doubled(x: tf.Tensor) -> tf.Tensor:
    """Returns x * 8, in a loop, whose body DTensor makes a function of."""
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2.0), (tf.constant(0), x), name="doubled")[1]


def functional() -> bool:
    """Tells whether models of layers are told from subclassed ones, and layers from those that give to them."""
    model = _model()
    known = private.is_functional(model) and not private.is_functional(_Subclassed())
    layer = model.layers[-1]
    return known and private.is_called_once(layer) and private.giver(layer.output) is layer


def attributes() -> bool:
    """Tells whether a layer's variables have paths, each once."""
    return sorted(path for path, _ in private.attributes(_model().layers[-1], tf.Variable)) == ["bias", "kernel"]


def subclassed() -> bool:
    """Tells whether a subclassed model gets its variables from a symbolic call, and whether they are mapped."""
    mesh = tf.experimental.dtensor.create_mesh([("batch", 1)], devices=["CPU:0"])
    layouts = tf_keras.dtensor.experimental.LayoutMap(mesh=mesh)
    layouts["inner.kernel"] = tf.experimental.dtensor.Layout.replicated(mesh, 2)
    layouts["inner.bias"] = tf.experimental.dtensor.Layout.replicated(mesh, 1)
    with layouts.scope():
        model = _Subclassed()
        private.map_subclassed(model, tf_keras.Input((3,)), layouts)
    return all(isinstance(variable, tf.experimental.dtensor.DVariable) for variable in model.variables)


def reads() -> bool:
    """Tells whether every way in which an operation reads a variable is caught."""
    variable = tf.Variable([[1.0]])
    variable.__class__ = private.reads_by(type(variable), lambda _, value: value * 3.0)

    def read() -> list[tf.Tensor]:  # in a graph: eager operations read a variable by its handle
        every = [variable.read_value(), variable.value(), tf.convert_to_tensor(variable), variable + 0.0]
        return [*every, tf.matmul(variable, [[1.0]])]

    return all(x.numpy().item() == 3.0 for x in tf.function(read, autograph=False)())


def classes() -> bool:
    """Tells whether layers that draw numbers, and convolutions, are known by their classes."""
    return isinstance(tf_keras.layers.GaussianNoise(0.1), private.RandomLayer) and isinstance(
        tf_keras.layers.Conv2DTranspose(2, 3), private.Convolution
    )


CHECKS: tuple[Callable[[], bool], ...] = (functions, functional, attributes, subclassed, reads, classes)

if __name__ == "__main__":
    failed = {}
    for check in CHECKS:
        try:
            if not check():
                failed[check.__name__] = "other than expected"
        except Exception as error:
            failed[check.__name__] = f"{type(error).__name__}: {error}"
    json.dump(
        {"versions": f"TensorFlow {tf.__version__}, tf_keras {tf_keras.__version__}", "failed": failed}, sys.stdout
    )

"""Calls each private interface of TensorFlow and tf_keras that the DTensor engine leans on; prints what failed."""

import json
import sys
from collections.abc import Callable

import tensorflow as tf
import tf_keras
from tensorflow.dtensor.python import api

from runner.engine.dtensor import operations as replaced_operations
from runner.engine.dtensor import private
from runner.engine.dtensor.step import COUNTS


def _model() -> tf_keras.Model:
    return tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(2, name="d1")])


class _Subclassed(tf_keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = tf_keras.layers.Dense(2)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.inner(x)


def numbers() -> bool:
    mesh = tf.experimental.dtensor.create_mesh([("batch", 1)], devices=["CPU:0"])
    layout = tf.experimental.dtensor.Layout.replicated(mesh, 1)
    program = tf.function(lambda x: tf.reduce_sum(x) * 2.0, autograph=False)
    before = _compiled()
    for value in (1.0, 2.0):
        program(tf.experimental.dtensor.pack([tf.fill((COUNTS + 1,), value)], layout))
    return _compiled() - before == 1


def _compiled() -> int:
    found: int = api._dtensor_device()._get_stats().get("function_manager.miss", 0)
    return found


def functional() -> bool:
    return private.is_functional(_model()) and not private.is_functional(_Subclassed())


def attributes() -> bool:
    return sorted(path for path, _ in private.attributes(_model().layers[-1], tf.Variable)) == ["bias", "kernel"]


def subclassed() -> bool:
    model = _Subclassed()
    private.build_by_call(model, tf_keras.Input((3,)))
    return [tuple(variable.shape) for variable in model.variables] == [(3, 2), (2,)]


def generators() -> bool:
    layer = tf_keras.layers.Dropout(0.5)
    generator = private.generator(layer)
    drawn = []
    generator.dropout = lambda inputs, rate, **_: drawn.append(rate) or inputs
    layer(tf.ones((2, 2)), training=True)
    return isinstance(generator, private.RandomGenerator) and drawn == [0.5]


def constants() -> bool:
    x = tf_keras.Input((3,))
    model = tf_keras.Model(x, x * tf.constant([1.0, 2.0, 3.0]))
    calls = [call for layer in model.layers for call in layer._inbound_nodes]
    held = [
        each for call in calls if isinstance(call, private.Node) for each in tf.nest.flatten(vars(call)["call_args"])
    ]
    return any(isinstance(each, tf.Tensor) for each in held)


def operations() -> bool:
    reached: list[str] = []
    layers, real = tf_keras.layers, replaced_operations.REPLACED

    def noted(name: str, function: Callable[..., object]) -> Callable[..., object]:
        return lambda *args, **kwargs: reached.append(name) or function(*args, **kwargs)

    replaced_operations.REPLACED = tuple((module, name, noted(name, function)) for module, name, function in real)
    try:
        with replaced_operations.replaced():
            image, line = tf.ones((2, 6, 6, 2)), tf.ones((2, 6, 2))
            for layer, x in (
                (layers.BatchNormalization(), image),
                (layers.Activation("swish"), line),
                (layers.RandomFlip(), image),
            ):
                layer(x, training=True)
            tf.nn.swish(line)
            for draw in (
                tf.random.stateless_uniform,
                tf.random.stateless_normal,
                tf.random.stateless_truncated_normal,
            ):
                draw((2,), (1, 2))
    finally:
        replaced_operations.REPLACED = real
    missing = {name for _, name, _ in real} - set(reached)
    assert not missing, missing
    return True


def reads() -> bool:
    variable = tf.Variable([[1.0]])
    variable.__class__ = private.reads_by(type(variable), lambda _, read: read() * 3.0)

    def read() -> list[tf.Tensor]:  # in a graph: eager operations read a variable by its handle
        every = [variable.read_value(), variable.value(), tf.convert_to_tensor(variable), variable + 0.0]
        return [*every, tf.matmul(variable, [[1.0]])]

    return all(x.numpy().item() == 3.0 for x in tf.function(read, autograph=False)())


def classes() -> bool:
    return isinstance(tf_keras.layers.GaussianNoise(0.1), private.RandomLayer) and isinstance(
        tf_keras.layers.Conv2D(2, 3), private.Convolution
    )


CHECKS: tuple[Callable[[], bool], ...] = (
    numbers,
    functional,
    attributes,
    subclassed,
    generators,
    constants,
    reads,
    classes,
    operations,
)

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

"""Models that ask for more of a step than its gradients, for `tests.model.contract_worker`. Import no library."""

import importlib
from types import SimpleNamespace
from typing import Any

from runner.model import target


def maths(keras: Any) -> SimpleNamespace:
    """Returns a few functions of tensors, of whichever Keras."""
    if hasattr(keras, "ops"):
        return SimpleNamespace(mean=keras.ops.mean, square=keras.ops.square, shape=keras.ops.shape)
    tf = importlib.import_module("tensorflow")
    return SimpleNamespace(mean=tf.reduce_mean, square=tf.square, shape=tf.shape)


def constrained(keras: Any, input_shape: Any, num_classes: int) -> Any:
    """A dense layer whose kernel and bias have constraints."""
    kinds = keras.constraints
    limits = {"kernel_constraint": kinds.MaxNorm(0.1), "bias_constraint": kinds.NonNeg()}
    return _net(keras, input_shape, num_classes, keras.layers.Dense(8, name="d3", **limits))


def every_activation(keras: Any, input_shape: Any, num_classes: int) -> Any:
    """One layer of each activation that `model.activation` may name with this Keras, which has no other."""
    names = target.ACTIVATIONS + target.OF_KERAS_3 * hasattr(keras, "ops")
    if hasattr(keras, "ops"):
        assert {*names, "threshold"} == set(keras.src.activations.ALL_OBJECTS_DICT)
    layers = [keras.layers.Activation(name) for name in names if name != "glu"]  # which halves the units
    return _net(keras, input_shape, num_classes, *layers)


def subclassed(keras: Any, input_shape: Any, num_classes: int) -> Any:
    """A subclassed model whose `call` knows of no training."""
    del input_shape

    class Net(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.flat = keras.layers.Flatten()
            self.d1 = keras.layers.Dense(num_classes)

        def call(self, x: Any) -> Any:
            return self.d1(self.flat(x))

    return Net()


def _net(keras: Any, input_shape: Any, num_classes: int, *middle: Any) -> Any:
    hidden = keras.layers.Dense(16, activation="tanh", name="d1")
    return keras.Sequential(
        [
            keras.Input(input_shape),
            keras.layers.Flatten(name="flat"),
            hidden,
            *middle,
            keras.layers.Dense(num_classes, name="d2"),
        ]
    )


def adds_loss(keras: Any, input_shape: Any, num_classes: int) -> Any:
    ops = maths(keras)

    class Adding(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            self.add_loss(ops.mean(ops.square(x)))
            return x

    return _net(keras, input_shape, num_classes, Adding(name="adding"))


def regularized(keras: Any, input_shape: Any, num_classes: int) -> Any:
    return _net(
        keras,
        input_shape,
        num_classes,
        keras.layers.Dense(8, name="d3", activity_regularizer=keras.regularizers.L2(0.01)),
    )


def _keeping(keras: Any, what: str) -> Any:
    ops = maths(keras)

    class Keeping(keras.layers.Layer):  # type: ignore[misc]
        def build(self, input_shape: Any) -> None:
            whole = what in ("steps", "rows", "evaluation")
            self.kept = self.add_weight(
                shape=() if whole else (int(input_shape[-1]),),
                initializer="zeros",
                dtype="int32" if whole else "float32",
                trainable=False,
                name="kept",
            )

        def call(self, x: Any, training: Any = None) -> Any:
            if what == "evaluation" or (training and what == "steps"):
                self.kept.assign(self.kept + 1)
            elif training and what == "rows":
                self.kept.assign(self.kept + x.shape[0])
            elif training and what == "mean":
                self.kept.assign(self.kept * 0.9 + 0.1 * ops.mean(x, axis=0))
            elif what == "mixed":
                return x - ops.mean(x, axis=0)
            return x if what != "mean" else x - self.kept

    return Keeping(name="keeping")


def keeps(keras: Any, input_shape: Any, num_classes: int, what: str = "mean") -> Any:
    return _net(keras, input_shape, num_classes, _keeping(keras, what))


def frozen(keras: Any, input_shape: Any, num_classes: int) -> Any:
    inner = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(8, activation="tanh", name="d3"),
            keras.layers.BatchNormalization(name="norm"),
        ],
        name="inner",
    )
    model = _net(keras, input_shape, num_classes, inner)
    inner.trainable = False
    return model


def same_names(keras: Any, input_shape: Any, num_classes: int) -> Any:
    def nested(name: str) -> Any:
        taken = keras.Input((16,))
        given = keras.layers.Dense(16, activation="tanh", name="inside")(taken)
        return keras.Model(taken, given, name=name)

    taken = keras.Input(input_shape)
    x = keras.layers.Dense(16, name="d1")(keras.layers.Flatten()(taken))
    x = keras.layers.Add()([nested("one")(x), nested("two")(x)])
    return keras.Model(taken, keras.layers.Dense(num_classes, name="d2")(x))


# What a run refuses, each with what its one line says.


def own_step(keras: Any, input_shape: Any, num_classes: int, method: str = "train_step") -> Any:
    def own(*args: Any, **kwargs: Any) -> None:
        del args, kwargs

    made = type("Own", (keras.Sequential,), {method: own})
    return made([keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(num_classes)])


def compiled(keras: Any, input_shape: Any, num_classes: int) -> Any:
    model = _net(keras, input_shape, num_classes)
    model.compile(optimizer="sgd", loss="mse")
    return model


def half(keras: Any, input_shape: Any, num_classes: int) -> Any:
    """A layer computes in float16."""
    return _net(keras, input_shape, num_classes, keras.layers.Dense(4, dtype="mixed_float16", name="half"))


def narrow(keras: Any, input_shape: Any, num_classes: int) -> Any:
    """A layer's variables are bfloat16."""
    return _net(keras, input_shape, num_classes, keras.layers.Dense(4, dtype="bfloat16", name="narrow"))


def measured(keras: Any, input_shape: Any, num_classes: int) -> Any:
    class Measuring(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="measuring")
            self.seen = keras.metrics.Mean(name="seen")

        def call(self, x: Any) -> Any:
            return x

    return _net(keras, input_shape, num_classes, Measuring())


def stateful(keras: Any, input_shape: Any, num_classes: int) -> Any:
    shape = input_shape[:2]
    taken = keras.Input(batch_shape=(16, *shape)) if hasattr(keras, "ops") else keras.Input(shape, 16)
    rnn = keras.layers.SimpleRNN(4, stateful=True, name="rnn")
    return keras.Sequential([taken, rnn, keras.layers.Dense(num_classes)])


def masked(keras: Any, input_shape: Any, num_classes: int) -> Any:
    del input_shape
    taken = keras.Input((5, 4))
    x = keras.layers.Masking()(taken)
    return keras.Model(taken, keras.layers.Dense(num_classes)(x))


def pair(keras: Any, input_shape: Any, num_classes: int) -> Any:
    return _net(keras, input_shape, num_classes), _net(keras, input_shape, num_classes)


def float8(keras: Any, input_shape: Any, num_classes: int) -> Any:
    """Keras 3's float8 layers set variables by their gradients."""
    model = _net(keras, input_shape, num_classes)
    model.quantize("float8")
    return model


# Of Keras 3 alone.


def in_tensorflow(keras: Any, input_shape: Any, num_classes: int, name: str) -> Any:
    argument: dict[str, Any] = {"num_bins": 8} if name.startswith("Hash") else {"vocabulary": ["1", "2"]}
    if name == "IntegerLookup":
        argument = {"vocabulary": [1, 2]}

    class Holding(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = getattr(keras.layers, name)(**argument)

        def call(self, x: Any) -> Any:
            return x

    return _net(keras, input_shape, num_classes, Holding())


def draws(keras: Any, input_shape: Any, num_classes: int) -> Any:
    generator = keras.random.SeedGenerator(7)

    class Drawing(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.generator = generator

        def call(self, x: Any, training: bool = False) -> Any:
            return x + keras.random.normal((), seed=generator.next(ordered=False)) if training else x

    return _net(keras, input_shape, num_classes, Drawing())


# Layers that DTensor has no rule for, or whose variables are not found.


def reads_closure(keras: Any, input_shape: Any, num_classes: int) -> Any:
    class Own(keras.layers.Layer):  # type: ignore[misc]
        def build(self, input_shape: Any) -> None:
            kernel = self.add_weight(shape=(int(input_shape[-1]),), initializer="ones", name="kernel")
            self.kernel = kernel
            self.add_loss(lambda: maths(keras).mean(maths(keras).square(kernel)))

        def call(self, x: Any) -> Any:
            return x * self.kernel

    return _net(keras, input_shape, num_classes, Own(name="own"))


def without_rule(keras: Any, input_shape: Any, num_classes: int) -> Any:
    layers = keras.layers
    taken = keras.Input(input_shape)
    x = layers.Bidirectional(layers.GRU(2))(layers.Reshape(input_shape[:2])(taken))
    return keras.Model(taken, layers.Dense(num_classes)(x))

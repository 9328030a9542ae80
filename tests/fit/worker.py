"""Trains each of some compiled models with Keras's own `fit` and with `runner.fit`, and prints how far they differ."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers

import runner

Array = Any
EPOCHS = 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6)).astype("float32")
CLASSES = RNG.integers(0, 3, 40)
NUMBERS = RNG.normal(size=(40, 2))
WEIGHTS = RNG.uniform(0.2, 2.0, 40).astype("float32")
TOKENS = np.where(RNG.uniform(size=(40, 5)) < 0.3, 0, RNG.integers(1, 9, (40, 5)))
TAGS = TOKENS % 3
SHARES = RNG.uniform(size=(40, 5))


@dataclass
class Case:
    """A model, which is built for each side, and what both `fit` take."""

    make: Callable[[], Any]
    data: Mapping[str, Any]
    mesh: str = "batch2"
    only_here: Mapping[str, Any] = field(default_factory=dict)
    # Metrics of training steps that Keras averages otherwise than over the batches of an epoch.
    evaluated_only: tuple[str, ...] = ()


class Batches(keras.utils.PyDataset):
    def __init__(self, *arrays: Array, size: int = 8) -> None:
        super().__init__()
        self.arrays, self.size = arrays, size

    def __len__(self) -> int:
        return len(self.arrays[0]) // self.size

    def __getitem__(self, index: int) -> tuple[Array, ...]:
        return tuple(array[index * self.size : (index + 1) * self.size] for array in self.arrays)


class Scaled(layers.Layer):
    """A layer of the program itself, with a loss of its own."""

    def __init__(self, factor: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.factor = factor
        self.dense = layers.Dense(4, use_bias=False)

    def build(self, shape: Any) -> None:
        self.dense.build(shape)

    def call(self, x: Array) -> Array:
        self.add_loss(self.factor * keras.ops.mean(keras.ops.square(self.dense.kernel)))
        return keras.ops.tanh(self.dense(x))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factor": self.factor}


class Subclass(keras.Model):
    def __init__(self, units: int = 8, **options: Any) -> None:
        super().__init__(**options)
        self.hidden, self.head = layers.Dense(units, "relu"), layers.Dense(2)

    def call(self, x: Array) -> Array:
        return self.head(self.hidden(x))


def distance(y_true: Array, y_pred: Array) -> Array:
    return keras.ops.max(keras.ops.abs(y_true - y_pred), axis=-1)


def classes(optimizer: Any, metrics: Any = ("accuracy",), weighted: Any = None, loss: Any = None) -> Any:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(3, "softmax")])
    loss = loss or "sparse_categorical_crossentropy"
    model.compile(optimizer, loss, metrics=list(metrics), weighted_metrics=weighted)
    return model


def outputs() -> Any:
    x = keras.Input((6,), name="features")
    other = keras.Input((2,), name="more")
    hidden = layers.Concatenate()([layers.Dense(8, "tanh", kernel_regularizer="l2")(x), other])
    kind = layers.Dense(3, name="kind")(hidden)
    size = layers.Dense(2, name="size")(hidden)
    model = keras.Model([x, other], [kind, size])
    losses = {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "huber"}
    metrics = {"kind": ["accuracy"], "size": ["mae", "root_mean_squared_error"]}
    model.compile(keras.optimizers.SGD(0.05, 0.9, clipnorm=0.5), losses, {"kind": 0.3, "size": 2.0}, metrics)
    return model


def normalized() -> Any:
    model = keras.Sequential([keras.Input((6,)), Scaled(), layers.BatchNormalization(), layers.Dense(2)])
    model.compile(
        keras.optimizers.RMSprop(keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.5)), "mse", metrics=[distance]
    )
    return model


def subclass() -> Any:
    model = Subclass()
    model(X[:1])
    model.hidden.trainable = False  # which its config does not say
    model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1), "mean_absolute_error", metrics=["mse"])
    return model


def tagger() -> Any:
    model = keras.Sequential(
        [keras.Input((5,), dtype="int32"), layers.Embedding(9, 4, mask_zero=True), layers.Dense(3, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model


def flags() -> Any:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1, "sigmoid")])
    metrics = ["AUC", keras.metrics.Precision(name="precision"), keras.metrics.F1Score(average="macro", threshold=0.5)]
    model.compile(keras.optimizers.Adamax(0.01), keras.losses.BinaryCrossentropy(reduction="sum"), metrics=metrics)
    return model


VALIDATION = (X[:22] + 0.1, CLASSES[:22])
WEIGHTED_VALIDATION = (*VALIDATION, WEIGHTS[:22])
CASES: dict[str, Case] = {
    # A last batch of 4 examples, in training and in evaluations, and weights.
    "weighted": Case(
        lambda: classes(
            keras.optimizers.Adam(0.01), weighted=["accuracy", keras.metrics.SparseCategoricalCrossentropy()]
        ),
        {"x": X, "y": CLASSES, "batch_size": 12, "sample_weight": WEIGHTS, "validation_data": WEIGHTED_VALIDATION},
        evaluated_only=("weighted_accuracy", "sparse_categorical_crossentropy"),
    ),
    "outputs": Case(
        outputs,
        {
            "x": {"features": X, "more": X[:, :2]},
            "y": {"kind": CLASSES, "size": NUMBERS},
            "batch_size": 8,
            "validation_split": 0.2,
        },
        evaluated_only=("size_root_mean_squared_error",),
    ),
    "batch normalization of a PyDataset": Case(
        normalized, {"x": Batches(X, NUMBERS), "validation_data": Batches(X, NUMBERS)}
    ),
    "subclass": Case(
        subclass, {"x": X, "y": NUMBERS, "batch_size": 8, "validation_data": (X, NUMBERS)}, mesh="single"
    ),
    "masked": Case(
        tagger, {"x": TOKENS, "y": TAGS, "batch_size": 8, "validation_data": (TOKENS, TAGS)}, mesh="batch4"
    ),
    "masked, with a partial batch and weights of two dims": Case(
        tagger,
        {"x": TOKENS, "y": TAGS, "batch_size": 12, "sample_weight": SHARES, "validation_data": (TOKENS, TAGS)},
        evaluated_only=("accuracy",),
    ),
    "class weights": Case(
        lambda: classes("adam"),
        {"x": X, "y": CLASSES, "batch_size": 8, "class_weight": {0: 3.0, 2: 0.5}, "validation_split": 0.25},
    ),
    "flags": Case(
        flags,
        {"x": X, "y": CLASSES[:, None] > 1, "batch_size": 8, "validation_data": (X, CLASSES[:, None] > 1)},
        evaluated_only=("AUC", "precision", "f1_score"),
    ),
    "fsdp": Case(
        lambda: classes(keras.optimizers.Nadam(0.01), loss=keras.losses.SparseCategoricalCrossentropy(ignore_class=2)),
        {"x": X, "y": CLASSES, "batch_size": 20, "validation_data": VALIDATION},
        mesh="batch4",
        only_here={"layout": "fsdp"},
    ),
    "verified": Case(
        lambda: classes(keras.optimizers.Adagrad(0.1)),
        {"x": X, "y": CLASSES, "batch_size": 8},
        only_here={"trainer__verify_first": True, "verify__steps": 4},
    ),
}


def difference(one: Any, other: Any) -> float:
    expected = np.asarray(other, np.float64)
    apart = np.abs(np.asarray(one, np.float64) - expected)
    return float(np.max(apart / np.maximum(np.abs(expected), 1.0), initial=0.0))


def compared(case: Case) -> dict[str, float]:
    """Returns the largest differences of weights, of the optimizers' variables and of each logged number."""
    stock, ours = case.make(), case.make()
    ours.set_weights(stock.get_weights())
    history = stock.fit(**case.data, epochs=EPOCHS, shuffle=False, verbose=0).history
    options = {"mesh": case.mesh, "shuffle": False, "tracking__writers": [], **case.only_here}
    logged: list[set[str]] = []
    seen = keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: logged.append(set(logs)))
    results = runner.fit(ours, **case.data, epochs=EPOCHS, callbacks=[seen], **options).results
    found = {
        "weights": 0.0,
        "optimizer": 0.0,
        "names in logs": float(len((logged[-1] ^ set(history)) - set(case.evaluated_only))),
    }
    for own, expected in zip(ours.weights, stock.weights, strict=True):
        found["weights"] = max(found["weights"], difference(own, expected))
    for own, expected in zip(ours.optimizer.variables, stock.optimizer.variables, strict=True):
        found["optimizer"] = max(found["optimizer"], difference(own, expected))
    for name, values in history.items():
        key = f"eval/{name.removeprefix('val_')}" if name.startswith("val_") else f"train/{name}"
        if not (key.startswith("train/") and key.removeprefix("train/") in case.evaluated_only):
            found[key] = difference(results[key], values[-1])
    data = {**case.data, "epochs": 1, "shuffle": False, "verbose": 0}
    again = [model.fit(**data).history["loss"][0] for model in (ours, stock)]
    found["fit after it"] = difference(*again)
    return found


def resumed() -> dict[str, float]:
    """Returns the difference of weights between a run of two epochs and one that continues after the first."""
    stock, ours = CASES["weighted"].make(), CASES["weighted"].make()
    ours.set_weights(stock.get_weights())
    data = {"x": X, "y": CLASSES, "batch_size": 8}
    stock.fit(**data, epochs=2, shuffle=False, verbose=0)
    runner.fit(ours, **data, epochs=1, shuffle=False, tracking__writers=[])
    ours.set_weights([np.zeros_like(value) for value in ours.get_weights()])
    runner.fit(ours, **data, epochs=2, shuffle=False, tracking__writers=[], resume="latest")
    return {"weights": max(map(difference, ours.get_weights(), stock.get_weights()))}


def another() -> dict[str, float]:
    """Returns the difference of weights where the config has another optimizer than the model's `compile`."""
    stock, ours = classes("adam"), classes("sgd")
    ours.set_weights(stock.get_weights())
    data = {"x": X, "y": CLASSES, "batch_size": 8, "shuffle": False}
    stock.fit(**data, verbose=0)
    runner.fit(ours, **data, verbose=0, optimizer="adam", tracking__writers=[])
    return {"weights": max(map(difference, ours.get_weights(), stock.get_weights()))}


class Endless(Batches):
    num_batches = None


def rejected() -> list[str]:
    """Returns the lines of what no run can take."""
    compiled = classes("adam")
    calls: list[Callable[[], object]] = [
        lambda: runner.fit(keras.Sequential([keras.Input((6,)), layers.Dense(3)]), X, CLASSES),
        lambda: runner.fit(object(), X, CLASSES),
        lambda: runner.fit(compiled, Endless(X, CLASSES)),
        lambda: runner.fit(classes(keras.optimizers.Adam(use_ema=True)), X, CLASSES),
        lambda: runner.fit(compiled, X, CLASSES, mesh="batch7"),
        lambda: runner.fit(compiled, X),
        lambda: runner.fit(compiled, X, CLASSES, validation_split=1.0),
        lambda: runner.fit(compiled, X, CLASSES, batch_size=0),
        lambda: runner.fit(compiled, X, CLASSES, sample_weight=WEIGHTS, class_weight={1: 2.0}),
        lambda: runner.fit(compiled, X[:, :5], CLASSES),
        lambda: runner.fit(compiled, X, CLASSES[:30]),
        lambda: runner.fit(compiled, X, CLASSES, initial_epoch=2),
    ]
    lines = []
    for call in calls:
        try:
            call()
        except runner.ConfigError as error:
            lines.append(str(error))
    return lines


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        others = {"resumed": resumed, "another": another, "rejected": rejected}
        found: Any = others[name]() if name in others else compared(CASES[name])
        print(json.dumps(found), flush=True)

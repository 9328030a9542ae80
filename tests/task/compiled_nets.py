"""A compiled model, and as a program: what Keras's own `fit` makes of it, and optimizers that no run has."""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

from runner.engine.optim import keras_classes
from runner.errors import ConfigError

EPOCHS = 2
BATCH = 12


def build(input_shape: tuple[int, ...]) -> keras.Model:
    x = keras.Input(input_shape)
    hidden = keras.layers.Dense(8, "tanh", kernel_initializer=keras.initializers.GlorotUniform(1))(x)
    regularized = keras.layers.Dense(
        3, kernel_initializer=keras.initializers.GlorotUniform(2), kernel_regularizer="l2"
    )
    model = keras.Model(x, regularized(hidden))
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")]
    model.compile(keras.optimizers.Adam(rate, clipnorm=0.5), loss, metrics=metrics, weighted_metrics=["accuracy", far])
    return model


def averaged(input_shape: tuple[int, ...]) -> keras.Model:
    model = build(input_shape)
    model.compile(keras.optimizers.Adam(use_ema=True), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def broken(input_shape: tuple[int, ...]) -> keras.Model:
    return build((*input_shape, -1))


def far(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.max(y_pred, axis=-1) - keras.ops.squeeze(keras.ops.cast(y_true, "float32"))


def arrays(count: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 6)).astype("float32")
    return {"x": x, "label": rng.integers(0, 3, count), "share": rng.uniform(0.2, 2.0, count).astype("float32")}


def rejected(optimizer: Any) -> str:
    try:
        keras_classes.content_of(optimizer)
    except ConfigError as error:
        return str(error)
    return ""


def main() -> None:
    folder = Path(sys.argv[1])
    train, test = arrays(40, 0), arrays(22, 1)
    (folder / "data").mkdir()
    np.savez(folder / "data" / "train.npz", **train)
    np.savez(folder / "data" / "test.npz", **test)
    model = build((6,))
    history = model.fit(
        train["x"], train["label"], BATCH, EPOCHS, shuffle=False, verbose=0, sample_weight=train["share"],
        validation_data=(test["x"], test["label"], test["share"]),
    ).history  # fmt: skip
    optimizers = keras.optimizers
    excluding = optimizers.AdamW()
    excluding.exclude_from_weight_decay(var_names=["bias"])
    own = type("Own", (optimizers.SGD,), {})
    errors = [
        *(own(), excluding, optimizers.Adam(use_ema=True)),
        *(
            optimizers.Adam(gradient_accumulation_steps=2),
            optimizers.Adam(optimizers.schedules.InverseTimeDecay(0.1, 2, 2)),
        ),
    ]
    last = {name: values[-1] for name, values in history.items()}
    print(json.dumps({"history": last, "errors": list(map(rejected, errors))}))


if __name__ == "__main__":
    main()

"""Compares each layer of `dtensor_keras()`, as an engine calls it, with tf_keras's own; prints JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

CASES: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("Conv2D", {"filters": 4, "kernel_size": 3, "padding": "same", "strides": 2}, (2, 9, 8, 3)),
    ("Conv2D", {"filters": 4, "kernel_size": (3, 2), "dilation_rate": 2, "padding": "same"}, (2, 9, 8, 3)),
    ("Conv2D", {"filters": 4, "kernel_size": 3, "dilation_rate": (1, 3), "padding": "valid"}, (2, 9, 10, 3)),
    ("Conv2D", {"filters": 6, "kernel_size": 1, "activation": "tanh"}, (2, 5, 5, 3)),
    ("DepthwiseConv2D", {"kernel_size": 3, "padding": "same", "strides": 2}, (2, 9, 9, 3)),
    ("DepthwiseConv2D", {"kernel_size": (3, 2), "depth_multiplier": 2, "activation": "tanh"}, (2, 9, 8, 3)),
    ("AveragePooling2D", {"pool_size": 2}, (2, 8, 8, 3)),
    ("AveragePooling2D", {"pool_size": 3, "strides": 2, "padding": "same"}, (2, 9, 8, 3)),
    ("MaxPooling2D", {"pool_size": 3, "strides": 2, "padding": "same"}, (2, 9, 8, 3)),
    ("BatchNormalization", {}, (4, 5, 5, 3)),
    ("BatchNormalization", {"scale": False}, (8, 6)),
    ("LayerNormalization", {}, (2, 5, 5, 3)),
    ("LayerNormalization", {"axis": [1, 2], "epsilon": 1e-6}, (2, 5, 4, 3)),
    ("LayerNormalization", {"center": False}, (4, 6)),
    ("Flatten", {}, (2, 3, 4, 5)),
]


def compare(name: str, arguments: dict[str, Any], shape: tuple[int, ...]) -> float:
    """Returns the largest difference of outputs, of gradients and of variables after a training call."""
    import numpy as np
    import tensorflow as tf
    import tf_keras

    from runner.engine.dtensor.layers import dtensor_keras
    from runner.model import scope

    x = tf.constant(np.random.default_rng(1).normal(size=shape).astype(np.float32))
    seen = []
    unfused = {"fused": False} if name == "BatchNormalization" else {}
    ours = getattr(dtensor_keras().layers, name)(**arguments)
    stock = getattr(tf_keras.layers, name)(**arguments, **unfused)
    for layer in (ours, stock):
        layer.build(shape)
    for number, (one, other) in enumerate(zip(ours.weights, stock.weights, strict=True)):
        value = 1.0 + np.random.default_rng(number).random(one.shape).astype(np.float32)
        one.assign(value)
        other.assign(value)
    for layer in (ours, stock):
        with scope.enter(scope.Scope(0, tf.constant(0))) if layer is ours else tf.name_scope("stock"):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True) if name == "BatchNormalization" else layer(x)
                total = tf.reduce_sum(y * tf.reshape(tf.cos(tf.range(tf.size(y), dtype=tf.float32)), y.shape))
            gradients = tape.gradient(total, [x, *layer.trainable_weights])
        seen.append([y, *gradients, *layer.weights])
    return max(float(tf.reduce_max(tf.abs(one - other))) for one, other in zip(*seen, strict=True))


def masks(rate: float) -> dict[str, Any]:
    """Returns the shares that Dropout keeps, and whether masks repeat by step and differ by step and layer."""
    import numpy as np
    import tensorflow as tf

    from runner.engine.dtensor.layers import dtensor_keras
    from runner.model import scope

    ones = tf.ones((64, 100))

    def mask(name: str, seed: int, step: int, training: bool = True) -> Any:
        with scope.enter(scope.Scope(seed, tf.constant(step))):
            return dtensor_keras().layers.Dropout(rate, name=name)(ones, training=training).numpy()

    first = mask("a", 1, 5)
    return {
        "kept": float((first > 0).mean()),
        "value": float(first.max()),
        "repeats": bool((first == mask("a", 1, 5)).all()),
        "differ": [bool((first != other).any()) for other in (mask("b", 1, 5), mask("a", 2, 5), mask("a", 1, 6))],
        "evaluation": bool(np.all(mask("a", 1, 5, training=False) == 1.0)),
    }


if __name__ == "__main__":
    json.dump({"cases": [compare(*case) for case in CASES], "dropout": masks(0.25)}, sys.stdout)

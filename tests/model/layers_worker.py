"""Compares each layer of tf_keras, as an engine's step calls it, with the stock call; prints JSON."""

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
    ("Conv1D", {"filters": 4, "kernel_size": 3, "dilation_rate": 2, "padding": "causal"}, (2, 9, 3)),
    ("Conv1D", {"filters": 4, "kernel_size": 3, "dilation_rate": 3, "padding": "same"}, (2, 9, 3)),
    ("Conv3D", {"filters": 2, "kernel_size": 2, "dilation_rate": (1, 2, 2), "padding": "same"}, (2, 4, 5, 6, 3)),
    ("Conv2DTranspose", {"filters": 2, "kernel_size": 3, "strides": 2, "padding": "same"}, (2, 5, 4, 3)),
    ("Conv2DTranspose", {"filters": 2, "kernel_size": 3, "dilation_rate": 2, "padding": "same"}, (2, 5, 4, 3)),
    ("Conv2DTranspose", {"filters": 2, "kernel_size": 3, "dilation_rate": (2, 2)}, (2, 5, 4, 3)),
    ("DepthwiseConv2D", {"kernel_size": 3, "padding": "same", "strides": 2}, (2, 9, 9, 3)),
    ("DepthwiseConv2D", {"kernel_size": (3, 2), "depth_multiplier": 2, "activation": "tanh"}, (2, 9, 8, 3)),
    ("DepthwiseConv2D", {"kernel_size": 3, "dilation_rate": (2, 3), "padding": "same"}, (2, 9, 8, 3)),
    ("DepthwiseConv2D", {"kernel_size": 3, "dilation_rate": 2, "use_bias": False}, (2, 9, 8, 3)),
    ("DepthwiseConv1D", {"kernel_size": 3, "strides": 2, "padding": "same"}, (2, 9, 3)),
    ("SeparableConv2D", {"filters": 4, "kernel_size": 3, "strides": 2, "depth_multiplier": 2}, (2, 9, 8, 3)),
    ("SeparableConv2D", {"filters": 4, "kernel_size": 3, "dilation_rate": 2, "padding": "same"}, (2, 9, 8, 3)),
    ("SeparableConv1D", {"filters": 4, "kernel_size": 3, "padding": "causal", "dilation_rate": 2}, (2, 9, 3)),
    ("AveragePooling2D", {"pool_size": 2}, (2, 8, 8, 3)),
    ("AveragePooling2D", {"pool_size": 3, "strides": 2, "padding": "same"}, (2, 9, 8, 3)),
    ("AveragePooling2D", {"pool_size": (1, 3), "strides": (3, 2), "padding": "same"}, (2, 9, 8, 3)),
    ("AveragePooling1D", {"pool_size": 3, "strides": 2, "padding": "same"}, (2, 9, 3)),
    ("AveragePooling1D", {"pool_size": 2, "data_format": "channels_first"}, (2, 3, 8)),
    ("AveragePooling3D", {"pool_size": (2, 3, 1), "strides": 2, "padding": "same"}, (2, 5, 4, 3, 2)),
    ("AveragePooling3D", {"pool_size": 2, "data_format": "channels_first"}, (2, 2, 5, 4, 4)),
    ("MaxPooling3D", {"pool_size": 2, "strides": 1, "padding": "same"}, (2, 5, 4, 3, 2)),
    ("MaxPooling3D", {"pool_size": 2}, (2, 5, 4, 4, 2)),
    ("MaxPooling2D", {"pool_size": 3, "strides": 2, "padding": "same"}, (2, 9, 8, 3)),
    ("BatchNormalization", {}, (4, 5, 5, 3)),
    ("BatchNormalization", {"epsilon": 1e-6, "momentum": 0.5, "center": False}, (2, 2, 1, 3)),
    ("BatchNormalization", {"scale": False}, (8, 6)),
    ("BatchNormalization", {"axis": 2}, (4, 3, 5)),
    ("BatchNormalization", {}, (2, 3, 4, 2, 3)),
    ("LayerNormalization", {}, (2, 5, 5, 3)),
    ("LayerNormalization", {"axis": [1, 2], "epsilon": 1e-6}, (2, 5, 4, 3)),
    ("LayerNormalization", {"axis": 1}, (2, 5, 4)),
    ("LayerNormalization", {"axis": 1}, (2, 5, 5)),
    ("LayerNormalization", {"axis": [3, 1]}, (2, 5, 4, 5)),
    ("LayerNormalization", {"axis": [2, 3], "epsilon": 1e-2, "scale": False}, (2, 5, 4, 3)),
    ("LayerNormalization", {"center": False}, (4, 6)),
    ("GroupNormalization", {"groups": 2}, (2, 5, 4, 6)),
    ("Flatten", {}, (2, 3, 4, 5)),
    ("LSTM", {"units": 4}, (3, 5, 2)),
    ("LSTM", {"units": 4, "return_sequences": True, "go_backwards": True, "activation": "relu"}, (3, 5, 2)),
    ("GRU", {"units": 4, "return_sequences": True}, (3, 5, 2)),
    ("GRU", {"units": 4, "reset_after": False, "time_major": True}, (5, 3, 2)),
    ("SimpleRNN", {"units": 4}, (3, 5, 2)),
    ("ConvLSTM1D", {"filters": 3, "kernel_size": 2, "padding": "same"}, (2, 4, 5, 2)),
    ("ConvLSTM2D", {"filters": 3, "kernel_size": 2, "return_sequences": True}, (2, 3, 4, 5, 2)),
]


def compare(name: str, arguments: dict[str, Any], shape: tuple[int, ...]) -> float:
    """Returns the largest difference of outputs, of gradients and of variables after a training call."""
    import numpy as np
    import tensorflow as tf
    import tf_keras

    from runner.engine.dtensor import operations
    from runner.engine.dtensor.layers import adopt
    from runner.model import scope

    x = tf.constant(np.random.default_rng(1).normal(size=shape).astype(np.float32))
    seen = []
    for adopted in (True, False):
        layer = getattr(tf_keras.layers, name)(**arguments)
        layer.build(shape)
        for number, one in enumerate(layer.weights):
            one.assign(0.5 + np.random.default_rng(number).random(one.shape).astype(np.float32))
        holder = tf.Module()
        holder.layer = layer
        training = {"training": True} if name == "BatchNormalization" else {}

        def outputs(layer: Any = layer, training: Any = training) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, **training)
                total = tf.reduce_sum(y * tf.reshape(tf.cos(tf.range(tf.size(y), dtype=tf.float32)), y.shape))
            return [y, *tape.gradient(total, [x, *layer.trainable_weights])]

        if adopted:
            adopt(holder)
            with scope.enter(scope.Scope(0, tf.constant(0))), operations.replaced():
                got = tf.function(outputs)()
        else:
            got = outputs()
        seen.append([*got, *layer.weights])
    return max(float(tf.reduce_max(tf.abs(one - other))) for one, other in zip(*seen, strict=True))


def masks(rate: float) -> dict[str, Any]:
    """Returns the shares that Dropout keeps, and whether masks repeat by step and differ by step, layer and call."""
    import numpy as np
    import tensorflow as tf
    import tf_keras

    from runner.engine.dtensor.masks import masks_from_scope
    from runner.model import scope

    tf_keras.backend.experimental.enable_tf_random_generator()
    ones = tf.ones((64, 100))

    def drawn(layers: list[Any], seed: int, step: int, training: bool = True) -> Any:
        model = tf_keras.Sequential(layers[:1])
        model.more = layers[1:]
        with scope.enter(scope.Scope(seed, tf.constant(step))), masks_from_scope(model):
            return [layer(ones, training=training).numpy() for layer in layers]

    def mask(name: str, seed: int, step: int, training: bool = True) -> Any:
        return drawn([tf_keras.layers.Dropout(rate, name=name)], seed, step, training)[0]

    channels = tf_keras.layers.SpatialDropout2D(rate)
    images = tf_keras.Sequential([channels])
    with scope.enter(scope.Scope(1, tf.constant(5))), masks_from_scope(images):
        spatial = channels(tf.ones((8, 3, 4, 16)), training=True).numpy()
    first = mask("a", 1, 5)
    twice = tf_keras.layers.Dropout(rate, name="a")
    again = drawn([twice, twice], 1, 5)
    alike = drawn([tf_keras.layers.Dropout(rate, name="a") for _ in range(2)], 1, 5)
    return {
        "kept": float((first > 0).mean()),
        "value": float(first.max()),
        "whole channels": bool((spatial == spatial[:, :1, :1]).all() and 0.1 < (spatial == 0).mean() < 0.4),
        "repeats": bool((first == mask("a", 1, 5)).all()),
        "first": bool((first == again[0]).all() and (first == alike[0]).all()),
        "differ": [bool((first != other).any()) for other in (mask("b", 1, 5), mask("a", 2, 5), mask("a", 1, 6))],
        "both": [float(((one > 0) & (other > 0)).mean()) for one, other in (again, alike)],
        "evaluation": bool(np.all(mask("a", 1, 5, training=False) == 1.0)),
    }


def recurrent() -> float:
    """Returns the largest difference of recurrent layers with dropout, step by step and as tf_keras loops."""
    import numpy as np
    import tensorflow as tf
    import tf_keras

    from runner.engine.dtensor import operations
    from runner.engine.dtensor.masks import masks_from_scope
    from runner.model import scope

    tf_keras.utils.set_random_seed(1)
    layers = tf_keras.layers
    model = tf_keras.Sequential(
        [
            tf_keras.Input((4,), dtype="int32"),
            layers.Embedding(5, 3, tf_keras.initializers.RandomNormal(stddev=2.0), mask_zero=True),
            layers.GRU(3, return_sequences=True, dropout=0.3, recurrent_dropout=0.4),
            layers.Bidirectional(layers.LSTM(4, return_sequences=True, dropout=0.3)),
            layers.SimpleRNN(4, return_sequences=True, recurrent_dropout=0.4, unroll=True, go_backwards=True),
            layers.RNN(layers.StackedRNNCells([layers.GRUCell(3, dropout=0.2), layers.LSTMCell(3, dropout=0.2)])),
        ]
    )
    x = tf.constant(np.random.default_rng(0).integers(0, 5, (6, 4)), tf.int32)

    def stock() -> Any:
        with scope.enter(scope.Scope(3, tf.constant(1))), masks_from_scope(model):
            return model(x, training=True)

    def replaced() -> Any:
        with operations.replaced():
            return stock()

    one, other, plain = tf.function(stock)(), tf.function(replaced)(), model(x, training=False)
    assert float(tf.reduce_max(tf.abs(one - plain))) > 1e-2
    return float(tf.reduce_max(tf.abs(one - other)))


if __name__ == "__main__":
    found = []
    for case in CASES:
        try:
            found.append(compare(*case))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}"[:500])
    json.dump({"cases": found, "dropout": masks(0.25), "recurrent": recurrent()}, sys.stdout)

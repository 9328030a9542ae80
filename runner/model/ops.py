"""Tensor functions under one set of names, so that one builder serves tf_keras and Keras 3."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any


def of(keras: Any) -> Any:
    """Returns functions that take and give tensors, as `keras.ops` names them, of the Keras that a builder was given.

    For tf_keras these are `einsum`, `reshape`, `transpose`, `softmax` (over the last dim), `cast` and `one_hot`.
    """
    if hasattr(keras, "ops"):
        return keras.ops
    tf = importlib.import_module("tensorflow")  # which tf_keras has imported; Keras 3 on JAX has none
    same = {name: getattr(tf, name) for name in ("einsum", "reshape", "transpose", "cast", "one_hot")}
    return SimpleNamespace(**same, softmax=tf.nn.softmax)

"""Probabilities of a model that ends in a sigmoid or a softmax, for the tasks with `task.from_logits`."""

from __future__ import annotations

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.data.base import Array

KEY = "task.from_logits"
# Keras's epsilon: probabilities are at least as far from 0 and from 1 before a logarithm.
_EPSILON = 1e-7
# Tolerance of a sum of probabilities over the classes; bfloat16 has 8 bits of precision.
_ROUNDING = 1e-2
# Examples, or classes, from which the outputs of an untrained model show whether they are probabilities. With fewer,
# logits may all be between 0 and 1 by chance.
_ENOUGH = 8
# Range of the mean of an untrained sigmoid, which starts near 0.5. Logits start near 0.
_LOW_MEAN = 0.3
_HIGH_MEAN = 0.7


def clipped(ops: Arrays, probabilities: Tensor) -> Tensor:
    """Returns probabilities that have a finite logarithm, as Keras clips them in its losses."""
    return ops.clip(probabilities, _EPSILON, 1.0 - _EPSILON)


def logits_of_sigmoid(ops: Arrays, probabilities: Tensor) -> Tensor:
    """Returns the numbers whose sigmoids are the probabilities (...)."""
    inside = clipped(ops, probabilities)
    return ops.log(inside) - ops.log(1.0 - inside)


def cross_entropy(ops: Arrays, target: Tensor, probabilities: Tensor) -> Tensor:
    """Returns the cross-entropy (...) in nats of outputs (..., C), scaled to a sum of 1 first, as in Keras."""
    share = probabilities / ops.sum(probabilities, axis=-1, keepdims=True)
    return -ops.sum(target * ops.log(clipped(ops, share)), axis=-1)


def sigmoid_warnings(outputs: Array, *, from_logits: bool) -> list[str]:
    """Returns a warning if the outputs (examples, ...) of an untrained model contradict `task.from_logits`."""
    if not from_logits:
        return _outside_warnings(outputs)
    if len(outputs) < _ENOUGH or not ((outputs > 0) & (outputs < 1)).all():
        return []
    if _LOW_MEAN < float(outputs.mean()) < _HIGH_MEAN:
        return [f"the model's outputs are all between 0 and 1; if it ends in a sigmoid, set {KEY}=false"]
    return []


def softmax_warnings(outputs: Array, *, from_logits: bool) -> list[str]:
    """Returns a warning if the outputs (examples, ..., C) of an untrained model contradict `task.from_logits`."""
    if not from_logits:
        return _outside_warnings(outputs)
    if not outputs.size or not ((outputs >= 0) & (outputs <= 1)).all():
        return []
    if np.allclose(outputs.sum(axis=-1), 1.0, rtol=0, atol=_ROUNDING):
        return [f"the model's outputs sum to 1, as after a softmax; set {KEY}=false, or remove the softmax"]
    if outputs.shape[-1] >= _ENOUGH and ((outputs > 0) & (outputs < 1)).all():
        return [
            "the model's outputs are all between 0 and 1, as after a sigmoid; end it in a layer without activation"
        ]
    return []


def _outside_warnings(outputs: Array) -> list[str]:
    if not outputs.size or (np.isfinite(outputs).all() and outputs.min() >= 0 and outputs.max() <= 1):
        return []
    return [f"{KEY}=false, but the model's outputs are not from 0 to 1; remove {KEY}, or end it in an activation"]

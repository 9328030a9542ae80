"""Gradient clipping, with the formulas of tf_keras 2.21's optimizers."""

from __future__ import annotations

from types import ModuleType

from runner import arrays
from runner.arrays import Tensor
from runner.config.schema import ClipConfig


def clip(config: ClipConfig, gradients: list[Tensor], ops: ModuleType) -> list[Tensor]:
    """Returns gradients clipped by each one's norm, by their global norm, or each element by value."""
    xp = arrays.of(ops)
    if config.norm is not None:
        limit = config.norm
        return [g * limit / xp.maximum(xp.sqrt(xp.sum(xp.square(g))), limit) for g in gradients]
    if config.global_norm is not None:
        limit = config.global_norm
        # Python's sum: the squares are added in the order of the variables, as tf_keras adds them.
        norm = xp.sqrt(sum(xp.sum(xp.square(g)) for g in gradients))
        return [g * (limit / xp.maximum(norm, limit)) for g in gradients]
    if config.value is not None:
        return [xp.minimum(xp.maximum(g, -config.value), config.value) for g in gradients]
    return gradients

"""Clipping of gradients, and their norm as a metric of a step."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from runner import arrays
from runner.arrays import Arrays, Tensor
from runner.config.schema import ClipConfig, OptimizerConfig


def clip(config: ClipConfig, gradients: list[Tensor], ops: ModuleType) -> list[Tensor]:
    """Returns gradients clipped by each one's norm, their global norm, or each element by value, as tf_keras 2.21."""
    xp = arrays.of(ops)
    if config.norm is not None:
        limit = config.norm
        return [g * limit / xp.maximum(xp.sqrt(xp.sum(xp.square(g))), limit) for g in gradients]
    if config.global_norm is not None:
        limit = config.global_norm
        norm_of_all = norm(gradients, xp)
        return [g * (limit / xp.maximum(norm_of_all, limit)) for g in gradients]
    if config.value is not None:
        return [xp.minimum(xp.maximum(g, -config.value), config.value) for g in gradients]
    return gradients


def names(config: OptimizerConfig) -> tuple[str, ...]:
    """Returns the names of the norms that a run logs; none unless `optimizer.gradient_norm` is set."""
    if config.gradient_norm is None:
        return ()
    return ("gradient_norm",)


def norm(gradients: Sequence[Tensor], xp: Arrays) -> Tensor:
    """Returns the L2 norm of all gradients together, float32 ()."""
    # Python's sum: the squares are added in the order of the variables, as tf_keras adds them.
    return xp.sqrt(sum(xp.sum(xp.square(gradient)) for gradient in gradients))

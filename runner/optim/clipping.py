"""Gradient clipping, with the formulas of tf_keras 2.21's optimizers."""

from __future__ import annotations

from types import ModuleType

from runner import arrays
from runner.arrays import Tensor
from runner.config.schema import ClipConfig


def clip(config: ClipConfig, gradients: list[Tensor], ops: ModuleType) -> list[Tensor]:
    """Clips gradients as the config says: each by its norm, all by their global norm, or each entry by value.

    Args:
      config: at most one of its keys is set.
      gradients: whole or split over a mesh.
      ops: the module of the tensors, `tensorflow` or `jax.numpy`.
    """
    xp = arrays.of(ops)
    if config.norm is not None:
        limit = config.norm
        return [g * limit / xp.maximum(xp.sqrt(xp.total(xp.square(g))), limit) for g in gradients]
    if config.global_norm is not None:
        norm = xp.sqrt(sum(xp.total(xp.square(g)) for g in gradients))
        return [g * (config.global_norm / xp.maximum(norm, config.global_norm)) for g in gradients]
    if config.value is not None:
        return [xp.minimum(xp.maximum(g, -config.value), config.value) for g in gradients]
    return gradients

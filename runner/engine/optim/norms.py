"""Clipping of gradients, and their norms as metrics of a step: of all, and on request of each layer's."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from runner import arrays
from runner.arrays import Arrays, Tensor
from runner.config.schema import ClipConfig, OptimizerConfig

_NAME = "gradient_norm"


def clip(config: ClipConfig, gradients: list[Tensor], ops: ModuleType) -> list[Tensor]:
    """Returns gradients clipped by each one's norm, their global norm, or each element by value, as tf_keras 2.21."""
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


def names(config: OptimizerConfig, trainable: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the norms that a run logs; none unless `optimizer.gradient_norm` is set."""
    if config.gradient_norm is None:
        return ()
    found = [_NAME]
    if config.gradient_norm == "layer":
        found += [f"{_NAME}/{layer}" for layer in _layers(trainable)]
    return tuple(found)


def values(config: OptimizerConfig, trainable: Sequence[str], gradients: Sequence[Tensor], xp: Arrays) -> list[Tensor]:
    """Returns the L2 norms of whole gradients, float32 (), in the order of `names`."""
    if config.gradient_norm is None:
        return []
    # Sums of squares by layer serve both the norm of all gradients and those of the layers, in one pass.
    squares: dict[str, Tensor] = {}
    for path, gradient in zip(trainable, gradients, strict=True):
        layer = _layer(path)
        squares[layer] = squares.get(layer, 0.0) + xp.sum(xp.square(gradient))
    found = [xp.sqrt(sum(squares.values()))]
    if config.gradient_norm == "layer":
        found += list(map(xp.sqrt, squares.values()))
    return found


def _layers(trainable: Sequence[str]) -> list[str]:
    # In the order in which `values` comes to the layers.
    return list(dict.fromkeys(map(_layer, trainable)))


def _layer(path: str) -> str:
    layer, _, _ = path.rpartition("/")
    # A variable outside any layer, as custom models may have, counts as a layer of its own.
    return layer or path

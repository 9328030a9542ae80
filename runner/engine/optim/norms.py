"""Norms of gradients as metrics of a step: of all of them, and on request of each layer's."""

from __future__ import annotations

from collections.abc import Sequence

from runner.arrays import Arrays, Tensor
from runner.config.schema import OptimizerConfig

_NAME = "gradient_norm"


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

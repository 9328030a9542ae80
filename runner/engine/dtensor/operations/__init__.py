"""Replaces operations that DTensor has no rule for while a step is traced.

Layers stay as they are; the functions of TensorFlow and tf_keras that they call are replaced. Each function here has
the signature and the result of the one that it replaces, for all arguments. DTensor has no rule for fused batch
normalization, nor for the gradients of average pooling, silu and softsign. Layers that need more than these are
rejected, see `.layers`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from runner.engine.dtensor import private
from runner.engine.dtensor.operations import activation, drawn, normalization, windows
from runner.engine.dtensor.private import KERNELS, STATELESS


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """Replaces the operations that DTensor has no rule for, within the context."""
    before = [(module, name, getattr(module, name)) for module, name, _ in REPLACED]
    try:
        for module, name, function in REPLACED:
            setattr(module, name, function)
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


# (module or class, name of its function, replacement)
_Replacement = tuple[ModuleType | type, str, Callable[..., Any]]


def _public_replacements() -> Iterator[_Replacement]:
    """Yields the replacements in TensorFlow's public modules.

    A user's layers may call them.
    """
    for module in private.PUBLIC:
        yield module.nn, "silu", activation.silu
        yield module.nn, "swish", activation.silu
        yield module.nn, "softsign", activation.softsign
        yield module.math, "softsign", activation.softsign
        yield module.random, "stateless_uniform", drawn.uniform
        yield module.random, "stateless_normal", drawn.normal
        yield module.random, "stateless_truncated_normal", drawn.truncated_normal


REPLACED: tuple[_Replacement, ...] = (
    (KERNELS, "avg_pool", windows.avg_pool),
    (KERNELS, "fused_batch_norm_v3", normalization.fused_batch_norm_v3),
    (STATELESS, "stateless_random_uniform", drawn.uniform),
    *_public_replacements(),
)

"""Keras 3 as builders see it in the engine `jax`: layers that differ from the stock ones on this backend."""

from __future__ import annotations

import functools
import types
from typing import Any


@functools.cache
def jax_keras() -> types.ModuleType:
    """Returns `keras` with `layers` that work on every mesh; all else is Keras's own."""
    import keras

    from runner.model.facade import Facade

    facade, layers = Facade("keras", keras), Facade("keras.layers", keras.layers)
    layers.BatchNormalization = _batch_normalization(keras)  # type: ignore[attr-defined]
    facade.layers = layers  # type: ignore[attr-defined]
    return facade


def _batch_normalization(keras: Any) -> type:
    class BatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
        """Batch normalisation; its moments are over the global batch, whatever the mesh and the arguments say."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("synchronized", None)  # always so here, and Keras refuses it on this backend
            super().__init__(*args, **kwargs)

    return BatchNormalization

"""The private interfaces of JAX and Keras 3 that the engine leans on, each with what breaks without it.

Written against jax 0.10.2 and keras 3.15.1; tests/engine/test_jax_private.py says which of them a later version lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import jax
import keras
from jax import lax
from jax._src import xla_bridge
from keras.src.models import Functional
from keras.src.utils import naming

# Lists that Keras keeps beside a layer's attributes; going through them would give a variable a second path.
BOOKKEEPING = (
    "_layers",
    "_trainable_variables",
    "_non_trainable_variables",
    "_seed_generators",
    "_metrics",
    "_functional",
    "_operations",
    "_inbound_nodes",
    "_outbound_nodes",
    "_tracker",
)


def devices_are_made() -> bool:
    """Tells whether this process has made its JAX devices.

    Without it a second engine in a process, as tests make, can't tell that the number of CPU devices is settled; JAX
    raises where it is set again.
    """
    made: bool = xla_bridge.backends_are_initialized()
    return made


def is_functional(layer: object) -> bool:
    """Tells whether a layer is a model of layers that have names of their own, `keras.Sequential` or functional.

    `keras.Model(inputs, outputs)` makes an object of this class, which has no public name. Without it such a model's
    variables can't be told by the names of its layers.
    """
    return isinstance(layer, keras.Sequential | Functional)


def reset_layer_names() -> None:
    """Begins the numbers of unnamed layers anew, so that every build of a model gives the same paths.

    `keras.utils.clear_session` does it too, and throws away the state of models that live.
    """
    naming.reset_uids()


def all_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns a model's layers with those inside of them; `Model.layers` has the outer ones alone."""
    return [
        layer for layer in model._flatten_layers(include_self=False) if not isinstance(layer, keras.layers.InputLayer)
    ]


@contextmanager
def calls_replaced(
    layers: Sequence[keras.Layer], make: Callable[[keras.Layer, Callable[..., object]], Callable[..., object]]
) -> Iterator[None]:
    """Replaces the `call` of layers while the context lasts.

    Args:
      layers: of a model.
      make: (layer, its own call) -> what is called in its place.
    """
    try:
        for layer in layers:
            # Past Keras's own __setattr__, which would track the function.
            object.__setattr__(layer, "call", make(layer, layer.call))
        yield
    finally:
        for layer in layers:
            vars(layer).pop("call", None)


@contextmanager
def convolution_replaced(make: Callable[[Callable[..., jax.Array]], Callable[..., jax.Array]]) -> Iterator[None]:
    """Replaces `lax.conv_general_dilated` for the whole process while the context lasts.

    Keras's layers and operations, and ours, all call this name. Without it kernel gradients are wrong on some meshes,
    see `runner.engine.jax.layers.kernel_gradient`.

    Args:
      make: (the function) -> what is called in its place.
    """
    plain = lax.conv_general_dilated
    lax.conv_general_dilated = make(plain)
    try:
        yield
    finally:
        lax.conv_general_dilated = plain

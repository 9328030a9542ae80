"""Layers written once for both Keras flavors: tf_keras and Keras 3."""

from __future__ import annotations

import functools
import types
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from runner.model import ops

# Of the Keras flavor that a builder was called with.
Tensor = Any

L = TypeVar("L", bound="PortableLayer")


class PortableLayer:
    """A Keras layer without its Keras base class, which `bind` adds.

    A builder is called with the Keras module of the run's engine, and neither flavor may be imported before that. So
    the base class isn't known where the layer is written. What a layer needs of its Keras flavor are these attributes.

    Attributes:
      keras: the `tf_keras` or `keras` module.
      ops: its tensor functions, see `runner.model.ops`.
      on_jax: the flavor is Keras 3, which runs on JAX here.
    """

    keras: Any
    ops: Any
    on_jax: bool

    # Of `keras.layers.Layer`, what the layers of this package call of their base class.
    if TYPE_CHECKING:
        name: str
        compute_dtype: str
        trainable_variables: list[Any]
        add_weight: Any
        add_loss: Any

        def __init__(self, **kwargs: Any) -> None: ...

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...  # noqa: D102

        def build(self, input_shape: Any) -> None: ...  # noqa: D102

        def get_config(self) -> dict[str, Any]: ...  # noqa: D102


@functools.cache
def bind(layer: type[L], keras: ModuleType) -> type[L]:
    """Returns a layer as a class of one Keras flavor.

    The result is cached, so that all layers of one kind have the same class.
    """
    attributes = {
        "keras": keras,
        "ops": ops.of(keras),
        "on_jax": ops.is_on_jax(keras),
        # Keras writes the two names into saved models, plans list the class by its name.
        "__module__": layer.__module__,
        "__qualname__": layer.__qualname__,
        "__doc__": layer.__doc__,
    }
    return types.new_class(
        layer.__name__, (layer, keras.layers.Layer), exec_body=lambda namespace: namespace.update(attributes)
    )

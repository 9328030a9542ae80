"""Stock layers of Keras 3 that the engine `jax` computes in another way, substituted in a built model.

A model comes from stock Keras, whether its builder imported that or received it. What differs is set on instances: a
layer of exactly a stock class becomes one of its subclass here, which has the same variables and arguments and
computes the same. Cases that a subclass has no form for use the stock layer's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import keras

from runner.engine.jax import private
from runner.engine.jax.layers.convolution import convolution
from runner.engine.jax.layers.philox import uniform
from runner.model import scope


def adopt(model: keras.Model, *, on_cpu: bool = False, whole_images: bool = True) -> None:
    """Replaces the classes of a model's stock layers. Its variables, names and config stay as they are."""
    classes: dict[type, type] = {keras.layers.Dropout: Dropout}
    if on_cpu and whole_images:
        classes[keras.layers.Conv2D] = Conv2D
    for layer in private.all_layers(model):
        # Exactly a stock class: a subclass may compute something else.
        if type(layer) in classes:
            # Not by Keras's own __setattr__, which would track the class.
            object.__setattr__(layer, "__class__", classes[type(layer)])


class Dropout(keras.layers.Dropout):  # type: ignore[misc]
    """Dropout whose masks depend on seed, layer name and step only. They are the same in every engine."""

    def call(self, inputs: jax.Array, training: bool = False) -> jax.Array:
        """Returns the inputs. In training, they have a share of `rate` set to zero and the rest scaled up."""
        if not training or not 0 < self.rate < 1 or not _is_training_step():
            return super().call(inputs, training=training)
        noise_shape = inputs.shape if self.noise_shape is None else self.noise_shape
        # None in a noise shape: the inputs' size.
        mask_shape = [inputs.shape[dim] if size is None else size for dim, size in enumerate(noise_shape)]
        mask = jnp.broadcast_to(_mask(mask_shape, self.rate, self.name), inputs.shape)
        return jnp.where(mask, inputs / (1.0 - self.rate), jnp.zeros_like(inputs))


def _is_training_step() -> bool:
    """Returns whether an engine traces a training step. Its scope then gives the masks."""
    entered = scope.current()
    return entered is not None and entered.step is not None


def _mask(shape: Sequence[int], rate: float, layer: str) -> jax.Array:
    """Returns the mask of a layer's next call, True for units that are kept."""
    entered = scope.current()
    assert entered is not None
    return uniform(shape, (scope.next_mask_key(layer), entered.step)) >= rate


@contextmanager
def masks_from_scope(model: keras.Model) -> Iterator[None]:
    """Makes a model's stock Dropout layers use the masks of the entered scope; everything else stays Keras's own.

    So a model on one device drops the same units as the one on a mesh, whose layers `adopt` replaced. Enter it around
    a traced call alone: the operation is replaced in the whole process.
    """
    layer_names = {}
    for layer in private.all_layers(model):
        if type(layer) is keras.layers.Dropout and layer.rate > 0:
            layer_names[id(layer.seed_generator)] = layer.name

    def replaced(stock_dropout: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def dropout(
            inputs: jax.Array, rate: float, noise_shape: Sequence[int | None] | None = None, seed: object = None
        ) -> jax.Array:
            layer = layer_names.get(id(seed))
            if layer is None or not 0 < rate < 1 or not _is_training_step():
                return stock_dropout(inputs, rate, noise_shape=noise_shape, seed=seed)
            with private.bernoulli_replaced(lambda shape: _mask(shape, rate, layer)):
                # Seed 0 and not the layer's generator, whose state must not move.
                return stock_dropout(inputs, rate, noise_shape=noise_shape, seed=0)

        return dropout

    with private.dropout_replaced(replaced):
        yield


class Conv2D(keras.layers.Conv2D):  # type: ignore[misc]
    """A convolution that computes the same as Keras's, faster on a CPU."""

    def convolution_op(self, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
        """Returns the convolution of (batch, height, width, channel) images."""
        w = keras.ops.convert_to_tensor(kernel)
        is_plain = self.groups == 1 and set(self.dilation_rate) == {1} and self.data_format == "channels_last"
        are_float32 = all(isinstance(array, jax.Array) and array.dtype == jnp.float32 for array in (inputs, w))
        if not is_plain or not are_float32:
            return super().convolution_op(inputs, kernel)
        return convolution(inputs, w, tuple(self.strides), self.padding.upper())

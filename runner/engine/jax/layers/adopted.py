"""Stock layers of Keras 3 that the engine `jax` computes otherwise, put in the place of a built model's own.

A model comes from stock Keras, whether its builder imported that or was given it. What differs is set on instances:
a layer of exactly a stock class becomes one of its subclass here, which has the same variables and arguments and
computes the same. A case that a subclass has no form for, as a dtype or a data format, is the stock layer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import keras

from runner.engine.jax import private
from runner.engine.jax.layers.batch_norm import normalize
from runner.engine.jax.layers.convolution import convolution
from runner.engine.jax.layers.dense import MOST_OUTPUTS, narrow_product
from runner.engine.jax.layers.philox import uniform
from runner.model import scope


def adopt(model: keras.Model, *, on_cpu: bool = False, whole_images: bool = True) -> None:
    """Replaces the classes of a model's stock layers; its variables, names and config stay as they are.

    Args:
      model: built.
      on_cpu: compute in the forms of `.dense` and `.convolution` beside this module, faster there.
      whole_images: no mesh axis splits an image; convolutions of parts of images are Keras's own.
    """
    classes: dict[type, type] = {keras.layers.BatchNormalization: BatchNormalization, keras.layers.Dropout: Dropout}
    if on_cpu:
        classes[keras.layers.Dense] = Dense
    if on_cpu and whole_images:
        classes[keras.layers.Conv2D] = Conv2D
    for layer in private.all_layers(model):
        if type(layer) in classes:  # exactly: a subclass may have changed what it means
            object.__setattr__(layer, "__class__", classes[type(layer)])  # past Keras's own, which would track it


class Dropout(keras.layers.Dropout):  # type: ignore[misc]
    """Dropout whose masks are functions of the seed, the layer's name and the step, the same in every engine."""

    def call(self, inputs: jax.Array, training: bool = False) -> jax.Array:
        """Returns the inputs with a share of `rate` set to zero and the rest scaled up, while training."""
        if not training or not 0 < self.rate < 1 or not _draws():
            return super().call(inputs, training=training)
        return _dropped(inputs, self.rate, self.noise_shape, self.name)


def _draws() -> bool:
    """Tells whether an engine traces a training step, so that masks are its scope's."""
    held = scope.current()
    return held is not None and held.step is not None


def _dropped(inputs: jax.Array, rate: float, noise_shape: Sequence[int | None] | None, layer: str) -> jax.Array:
    """Returns what Keras's own dropout does, its mask that of the scope."""
    given = inputs.shape if noise_shape is None else noise_shape
    noise = [inputs.shape[dim] if size is None else size for dim, size in enumerate(given)]
    keep = jnp.broadcast_to(_kept(noise, rate, layer), inputs.shape)
    return jnp.where(keep, inputs / (1.0 - rate), jnp.zeros_like(inputs))


def _kept(shape: Sequence[int], rate: float, layer: str) -> jax.Array:
    """Returns the mask of a layer's next call in this step, True where a unit stays."""
    held = scope.current()
    assert held is not None
    return uniform(shape, (scope.next_mask_key(layer), held.step)) >= rate


@contextmanager
def masks_from_scope(model: keras.Model) -> Iterator[None]:
    """Lets a model's stock Dropout layers draw the masks of the entered scope; all else of them is Keras's own.

    A model on one device so drops the same units as the one on a mesh, whose layers `adopt` replaced. To be entered
    around a traced call alone: the operation is answered for the whole process.

    Args:
      model: of stock layers.
    """
    names = {
        id(layer.seed_generator): layer.name
        for layer in private.all_layers(model)
        if type(layer) is keras.layers.Dropout and layer.rate > 0
    }

    def answered(plain: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def dropout(
            inputs: jax.Array, rate: float, noise_shape: Sequence[int | None] | None = None, seed: object = None
        ) -> jax.Array:
            layer = names.get(id(seed))
            if layer is None or not 0 < rate < 1 or not _draws():
                return plain(inputs, rate, noise_shape=noise_shape, seed=seed)
            with private.bernoulli_replaced(lambda shape: _kept(shape, rate, layer)):
                return plain(inputs, rate, noise_shape=noise_shape, seed=0)  # its generator stays where it is

        return dropout

    with private.dropout_replaced(answered):
        yield


class BatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalization for which the devices meet less often; its moments are over the global batch."""

    def call(self, inputs: jax.Array, training: bool | None = None, mask: jax.Array | None = None) -> jax.Array:
        """Returns the inputs, normalized over the batch while training."""
        if not training or not self.trainable or mask is not None or self.renorm:
            return super().call(inputs, training=training, mask=mask)
        x = keras.ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        gamma, beta = (
            keras.ops.cast(weight, x.dtype) if used else None
            for weight, used in ((self.gamma, self.scale), (self.beta, self.center))
        )
        held = scope.current()
        parts = held.parts if held is not None else None
        y, mean, variance = normalize(x, gamma, beta, self.axis, self.epsilon, parts)
        for moving, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(keras.ops.cast(moving, x.dtype) * self.momentum + new * (1.0 - self.momentum))
        return keras.ops.cast(y, self.compute_dtype)


class Dense(keras.layers.Dense):  # type: ignore[misc]
    """A dense layer that computes the same as Keras's; one of few units trains faster on a CPU."""

    def call(self, inputs: jax.Array, training: bool | None = None) -> jax.Array:
        """Returns the activations (..., units) of inputs (..., features)."""
        w = keras.ops.convert_to_tensor(self.kernel)
        if self.units > MOST_OUTPUTS or not _are_float32(inputs, w):
            return super().call(inputs, training=training)
        y = narrow_product(inputs, w)
        y = y if self.bias is None else keras.ops.add(y, self.bias)
        return y if self.activation is None else self.activation(y)


class Conv2D(keras.layers.Conv2D):  # type: ignore[misc]
    """A convolution that computes the same as Keras's, faster on a CPU."""

    def convolution_op(self, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
        """Returns the convolution of (batch, height, width, channel) images."""
        w = keras.ops.convert_to_tensor(kernel)
        plain = self.groups == 1 and set(self.dilation_rate) == {1} and self.data_format == "channels_last"
        if not plain or not _are_float32(inputs, w):
            return super().convolution_op(inputs, kernel)
        return convolution(inputs, w, tuple(self.strides), self.padding.upper())


def _are_float32(*arrays: object) -> bool:
    """Tells whether all are dense float32 arrays, the only ones that there is a fast form for."""
    return all(isinstance(each, jax.Array) and each.dtype == jnp.float32 for each in arrays)

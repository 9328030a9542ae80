"""Keras 3 as builders see it in the engine `jax`: layers that differ from the stock ones on this backend."""

from __future__ import annotations

import functools
import types

import jax
import keras

from runner.engine.jax.layers.batch_norm import normalize
from runner.engine.jax.layers.convolution import convolution
from runner.engine.jax.layers.dense import MOST_OUTPUTS, narrow_product
from runner.engine.jax.layers.philox import uniform
from runner.engine.patched import PatchedModule
from runner.model import scope


@functools.cache
def jax_keras(*, on_cpu: bool = False, whole_images: bool = True) -> types.ModuleType:
    """Returns `keras` with `layers` that work on every mesh; all else is Keras's own.

    Args:
      on_cpu: compute in the forms of `.dense` and `.convolution` beside this module, faster there.
      whole_images: no mesh axis splits an image; convolutions of parts of images are Keras's own.
    """
    replaced: dict[str, type] = {"BatchNormalization": BatchNormalization, "Dropout": Dropout}
    if on_cpu:
        replaced["Dense"] = Dense
    if on_cpu and whole_images:
        replaced |= {"Conv2D": Conv2D, "Convolution2D": Conv2D}
    layers = PatchedModule("keras.layers", keras.layers, replaced)
    return PatchedModule("keras", keras, {"layers": layers})


class Dropout(keras.layers.Dropout):  # type: ignore[misc]
    """Dropout whose mask is a function of the seed, the layer's name and the step, the same in every engine."""

    def call(self, inputs: jax.Array, training: bool = False) -> jax.Array:
        """Returns the inputs with a share of `rate` set to zero and the rest scaled up, while training."""
        held = scope.current()
        if held is None or held.step is None or not training or self.rate == 0:
            return super().call(inputs, training=training)
        noise = [int(n or size) for n, size in zip(self.noise_shape or inputs.shape, inputs.shape, strict=True)]
        drawn = uniform(noise, (scope.mask_key(held.seed, self.name), held.step))
        return inputs * (drawn >= self.rate).astype(inputs.dtype) / (1.0 - self.rate)


class BatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalisation; its moments are over the global batch, whatever the mesh and the arguments say."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Takes what Keras's own takes."""
        kwargs.pop("synchronized", None)  # always so here, and Keras refuses it on this backend
        super().__init__(*args, **kwargs)

    def call(self, inputs: jax.Array, training: bool | None = None, mask: jax.Array | None = None) -> jax.Array:
        """Returns the inputs, normalised over the batch while training."""
        if not training or not self.trainable or mask is not None or getattr(self, "renorm", False):
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
        x, w = keras.ops.convert_to_tensor(inputs), keras.ops.convert_to_tensor(self.kernel)
        if self.units > MOST_OUTPUTS or not str(x.dtype) == str(w.dtype) == "float32":
            return super().call(inputs, training=training)
        y = narrow_product(x, w)
        y = y if self.bias is None else keras.ops.add(y, self.bias)
        return y if self.activation is None else self.activation(y)


class Conv2D(keras.layers.Conv2D):  # type: ignore[misc]
    """A convolution that computes the same as Keras's, faster on a CPU."""

    def convolution_op(self, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
        """Returns the convolution of (batch, height, width, channel) images."""
        x, w = keras.ops.convert_to_tensor(inputs), keras.ops.convert_to_tensor(kernel)
        plain = self.groups == 1 and set(self.dilation_rate) == {1} and self.data_format == "channels_last"
        if not plain or not str(x.dtype) == str(w.dtype) == "float32":
            return super().convolution_op(inputs, kernel)
        return convolution(x, w, tuple(self.strides), self.padding.upper())

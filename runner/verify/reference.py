"""The single device's side: plain tf_keras with its stock optimizer, no DTensor, step by step.

Shapes: B examples a batch, HWD an image's height, width and channels, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from runner import mesh, optimizer
from runner.engine.base import Array, as_float
from runner.engine.keras_model import ModelFactory, named_variables
from runner.errors import ConfigError
from runner.model import scope
from runner.verify.request import Request

# Where tf_keras's optimizers keep what the engine's slots hold, with the same sign and scale.
_SLOTS: Mapping[str, Mapping[str, str]] = {
    "adam": {"m": "_momentums", "v": "_velocities"},
    "adamw": {"m": "_momentums", "v": "_velocities"},
    "sgd": {"momentum": "momentums"},
    "rmsprop": {"velocity": "_velocities", "average": "_average_gradients", "momentum": "_momentums"},
}


class Reference:
    """A plain model that trains on one device, from the same weights as often as asked."""

    def __init__(self, request: Request) -> None:
        """Builds the model from the config's seed.

        Raises:
          ConfigError: the builder fails, or the loss does not depend on a trainable variable.
        """
        import tensorflow as tf
        import tf_keras

        tf_keras.backend.experimental.enable_tf_random_generator()
        self._request = request
        self._device = f"/{mesh.device_kind(request.config.mesh).upper()}:0"
        with tf.device(self._device):
            self._model = ModelFactory(request.config.model, request.data, request.config.trainer.seed).plain()
        self._variables = named_variables(self._model)
        trainable = {id(variable) for variable in self._model.trainable_variables}
        self._trained = {path: held for path, held in self._variables.items() if id(held) in trainable}
        self.initial = {path: variable.numpy() for path, variable in self._variables.items()}
        self._gradients = tf.function(self._traced_gradients)

    def longest_sum(self) -> int:
        """Returns how many terms the longest sum of a step has.

        A forward sum runs over all dims of a kernel but the last; a gradient's over the batch, and over the positions
        that a layer applies its kernel to where the layer's output tells them.
        """
        batch = self._request.config.dataset.batch_size
        positions = max((_positions(layer) for layer in self._model.submodules), default=1)
        forward = max((math.prod(held.shape[:-1]) for held in self._trained.values() if len(held.shape)), default=1)
        return max(int(forward), batch * positions)

    def train(self, noise: float = 0.0, seed: int = 0) -> dict[str, Array]:
        """Trains from the initial weights.

        Args:
          noise: relative noise of every weight and of every example's share of the loss, drawn anew each step, at
            which a step's gradients are taken; the weights that it updates have none.
          seed: of the noise.

        Returns:
          The run's arrays, see `runner.verify.compare.compare`.
        """
        import tensorflow as tf

        with tf.device(self._device):
            for path, value in self.initial.items():
                self._variables[path].assign(value)
            stock = optimizer.reference(self._request.config.optimizer, self._request.total_steps)
            held = list(self._trained.values())
            stock.build(held)
            apply = tf.function(lambda gradients: stock.apply_gradients(zip(gradients, held, strict=True)))
            losses = []
            first: list[Any] = []
            for step in range(self._request.batches.steps):
                loss, gradients = self._step_gradients(step, noise, np.random.default_rng([seed, step]))
                apply(gradients)
                losses.append(loss.numpy())
                first = first or [gradient.numpy() for gradient in gradients]
        return {
            **{f"initial/{path}": value for path, value in self.initial.items()},
            "loss": np.asarray(losses, np.float32),
            **{f"gradient/{path}": value for path, value in zip(self._trained, first, strict=True)},
            **{f"final/{path}": variable.numpy() for path, variable in self._variables.items()},
            **self._slots(stock),
        }

    def _step_gradients(self, step: int, noise: float, rng: np.random.Generator) -> tuple[Any, Any]:
        """Returns one batch's loss and gradients, at weights that are off by the noise; restores the weights."""
        import tensorflow as tf

        batches = self._request.batches
        weight_b = batches.weights[step]
        share_b = weight_b / max(float(weight_b.sum()), 1.0)
        kept = {path: variable.numpy() for path, variable in self._trained.items()} if noise else {}
        scales = self._scales(kept)
        for path, value in kept.items():
            self._trained[path].assign(_off(value, noise, rng, scales[path]))
        share_b = _off(share_b, noise, rng) if noise else share_b
        arguments = (as_float(batches.images[step]), batches.labels[step], share_b.astype(np.float32), np.int32(step))
        result: tuple[Any, Any] = self._gradients(*(tf.constant(argument) for argument in arguments))
        for path, value in kept.items():
            self._trained[path].assign(value)
        return (result[0], self._shaken(result[1], noise, rng)) if noise else result

    def _scales(self, weights: Mapping[str, Array]) -> dict[str, float]:
        """Returns the root mean square of each variable's layer: a bias begins at 0, what it is added to does not."""
        squares: dict[str, list[Array]] = {}
        for path, value in weights.items():
            squares.setdefault(_layer(path), []).append(np.square(value, dtype=np.float64).ravel())
        sizes = {layer: math.sqrt(float(np.concatenate(parts).mean())) for layer, parts in squares.items()}
        return {path: sizes[_layer(path)] for path in weights}

    def _shaken(self, gradients: list[Any], noise: float, rng: np.random.Generator) -> list[Any]:
        """Rounds each gradient by the noise, and draws anew what is nothing but rounding.

        Such is the gradient of a bias before a batch normalization. All terms of its sum cancel, and the noise of
        weights and shares cancels with them: what is left is the last bits of terms as large as those of the layer's
        other gradients.
        """
        import tensorflow as tf

        layers = [_layer(path) for path in self._trained]
        sizes = [float(np.max(np.abs(gradient), initial=0.0)) for gradient in gradients]
        found = []
        for gradient, layer, size in zip(gradients, layers, sizes, strict=True):
            least = noise * max(other for other, its in zip(sizes, layers, strict=True) if its == layer)
            whole = gradient.numpy()
            drawn = least * rng.uniform(-1.0, 1.0, whole.shape) if 0 < size < least else _off(whole, noise, rng)
            found.append(tf.constant(drawn, gradient.dtype))
        return found

    def _traced_gradients(self, x_bhwd: Any, y_b: Any, share_b: Any, step: Any) -> tuple[Any, list[Any]]:
        """The loss of images in [0, 1] and its gradients; `share_b` is an example's part of the mean, 0 of padding."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            logits_bc = tf.cast(self._forward(x_bhwd, step), tf.float32)
            loss_b = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y_b, logits=logits_bc)
            loss = tf.reduce_sum(loss_b * share_b) + tf.add_n([*self._model.losses, tf.constant(0.0)])
        gradients = tape.gradient(loss, list(self._trained.values()))
        for path, gradient in zip(self._trained, gradients, strict=True):
            if gradient is None:
                raise ConfigError(
                    f"model._target_={self._request.config.model.target} is refused: the loss does not depend on "
                    f"trainable variable {path}; use it or make it trainable=False"
                )
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _forward(self, x_bhwd: Any, step: Any) -> Any:
        """The training pass, in which dropout draws the masks of this step."""
        with scope.enter(scope.Scope(self._request.config.trainer.seed, step)):
            return self._model(x_bhwd, training=True)

    def _slots(self, stock: Any) -> dict[str, Array]:
        config = self._request.config.optimizer
        found = {}
        for slot, attribute in _SLOTS[config.name].items():
            # tf_keras's SGD keeps a "momentum" without momentum, and there holds nothing but the last step.
            held = [] if config.name == "sgd" and not config.momentum else getattr(stock, attribute)
            for path, variable in zip(self._trained, held, strict=False):
                found[f"optimizer/{slot}/{path}"] = variable.numpy()
        return found


def _off(values: Array, noise: float, rng: np.random.Generator, least: float = 0.0) -> Array:
    """Moves every entry at random by the noise, relative to itself or to `least`, whichever is larger."""
    off = noise * rng.uniform(-1.0, 1.0, values.shape) * np.maximum(np.abs(values), least)
    return (values + off).astype(values.dtype)


def _layer(path: str) -> str:
    return path.rpartition("/")[0]


def _positions(layer: Any) -> int:
    """Returns to how many positions of an example a layer applies its weights; 1 where its output does not tell."""
    try:
        shape = layer.output_shape
    except (AttributeError, RuntimeError):
        return 1
    dims = shape[1:-1] if isinstance(shape, tuple) and layer.weights else ()
    return math.prod(dim for dim in dims if isinstance(dim, int))

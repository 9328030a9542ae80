"""The single device's side: a plain model with its framework's stock optimizer, step by step.

What the frameworks share. Shapes: B examples a batch, HWD an image's height, width and channels.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from runner.engine.base import Array, as_float
from runner.verify.compare import noise_of_sums
from runner.verify.request import Request
from runner.verify.rounding import off, off_weights, shaken

# Where the stock optimizers of tf_keras and Keras 3 keep what the engines' slots hold, with the same sign and scale.
_SLOTS: Mapping[str, Mapping[str, str]] = {
    "adam": {"m": "_momentums", "v": "_velocities"},
    "adamw": {"m": "_momentums", "v": "_velocities"},
    "sgd": {"momentum": "momentums"},
    "rmsprop": {"velocity": "_velocities", "average": "_average_gradients", "momentum": "_momentums"},
}


class Reference(ABC):
    """A plain model that trains on one device, from the same weights as often as asked.

    Attributes:
      initial: canonical path to initial value, of every variable.
    """

    initial: Mapping[str, Array]

    def __init__(self, request: Request) -> None:
        """Keeps the request; a subclass builds the model from the config's seed."""
        self._request = request

    def longest_sum(self) -> int:
        """Returns how many terms the longest sum of a step has.

        A forward sum runs over all dims of a kernel but the last; a gradient's over the batch, and over the positions
        that a layer applies its kernel to where the layer's output tells them.
        """
        shapes = [value.shape for value in self.weights().values()]
        forward = max((math.prod(shape[:-1]) for shape in shapes if shape), default=1)
        return max(forward, self._request.config.dataset.batch_size * self.positions())

    def train(self, noise: float = 0.0, seed: int = 0) -> dict[str, Array]:
        """Trains from the initial weights.

        Args:
          noise: relative noise of every weight and of every example's share of the loss, drawn anew each step, at
            which a step's gradients are taken; the weights that it updates have none.
          seed: of the noise.

        Returns:
          The run's arrays, see `runner.verify.compare.compare`.
        """
        self.reset()
        losses = []
        first: dict[str, Array] = {}
        averages: dict[str, Array] = {}
        for step in range(self._request.batches.steps):
            loss, gradients = self._step_gradients(step, noise, np.random.default_rng([seed, step]))
            self.apply(gradients)
            losses.append(loss)
            first = first or gradients
            averages = self._averaged(averages)
        return {
            **{f"initial/{path}": value for path, value in self.initial.items()},
            "loss": np.asarray(losses, np.float32),
            **{f"gradient/{path}": value for path, value in first.items()},
            **{f"final/{path}": value for path, value in self.variables().items()},
            **{
                f"optimizer/{slot}/{path}": value
                for slot, attribute in self._slot_attributes().items()
                for path, value in self.slots(attribute).items()
            },
            **{f"ema/{path}": value for path, value in averages.items()},
        }

    def _averaged(self, averages: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the new moving averages of the weights, from nothing those of the first update."""
        decay = self._request.config.optimizer.ema.decay
        if decay is None:
            return {}
        kept = np.float32(decay)
        return {path: averages.get(path, now) * kept + now * (1 - kept) for path, now in self.weights().items()}

    def _slot_attributes(self) -> Mapping[str, str]:
        config = self._request.config.optimizer
        # tf_keras's SGD keeps a "momentum" without momentum, and there holds nothing but the last step.
        return {} if config.name == "sgd" and not config.momentum else _SLOTS[config.name]

    def _step_gradients(self, step: int, noise: float, rng: np.random.Generator) -> tuple[float, dict[str, Array]]:
        """Returns one batch's loss and gradients, at weights that are off by the noise; restores the weights."""
        batches = self._request.batches
        weight_b = batches.weights[step]
        share_b = weight_b / max(float(weight_b.sum()), 1.0)
        kept = self.weights() if noise else {}
        if noise:
            self.assign(off_weights(kept, noise, rng))
            share_b = off(share_b, noise, rng)
        loss, found = self._summed_gradients(step, share_b.astype(np.float32))
        if noise:
            self.assign(kept)
            sums = noise_of_sums(self.longest_sum(), self._request.config.engine.precision)
            found = shaken(found, noise, rng, sums)
        return loss, found

    def _summed_gradients(self, step: int, share_b: Array) -> tuple[float, dict[str, Array]]:
        """Returns one batch's loss and gradients, added up over the parts that it is computed in."""
        batches, count = self._request.batches, self._request.config.trainer.accumulate_steps
        size = len(share_b) // count
        loss = 0.0
        sums: dict[str, Array] = {}
        for part in range(count):
            rows = slice(part * size, (part + 1) * size)
            x_bhwd, y_b = as_float(batches.images[step][rows]), batches.labels[step][rows]
            one, found = self.gradients(x_bhwd, y_b, share_b[rows], step * count + part, 1.0 / count)
            loss += one
            sums = {path: sums.get(path, 0.0) + value for path, value in found.items()}
        return loss, sums

    @abstractmethod
    def positions(self) -> int:
        """Returns to how many positions of an example a layer applies its weights, at most."""

    @abstractmethod
    def reset(self) -> None:
        """Takes the initial weights and a new stock optimizer."""

    @abstractmethod
    def weights(self) -> dict[str, Array]:
        """Returns the trainable variables by canonical path."""

    @abstractmethod
    def assign(self, weights: Mapping[str, Array]) -> None:
        """Sets the trainable variables, all of them."""

    @abstractmethod
    def gradients(
        self, x_bhwd: Array, y_b: Array, share_b: Array, drawn: int, share: float
    ) -> tuple[float, dict[str, Array]]:
        """Returns a micro-batch's loss and its gradients, and moves the batch statistics.

        Args:
          x_bhwd: images in [0, 1].
          y_b: labels.
          share_b: each example's part of the mean over the whole batch, 0 of padding.
          drawn: micro-batches done before, which dropout masks depend on.
          share: the micro-batch's part of the step, which regularisation losses count with.
        """

    @abstractmethod
    def apply(self, gradients: Mapping[str, Array]) -> None:
        """Lets the stock optimizer update the weights."""

    @abstractmethod
    def variables(self) -> dict[str, Array]:
        """Returns every variable by canonical path."""

    @abstractmethod
    def slots(self, attribute: str) -> dict[str, Array]:
        """Returns what the stock optimizer keeps in that list of its own, by canonical path."""


def make_reference(request: Request) -> Reference:
    """Returns the reference of the config's engine. This is where TensorFlow or JAX is imported.

    Raises:
      ConfigError: the builder fails, or made a model that no mesh can train.
    """
    if request.config.engine.name == "jax":
        from runner.verify.jax_reference import JaxReference

        return JaxReference(request)
    from runner.verify.keras_reference import KerasReference

    return KerasReference(request)

"""The single device's side: a plain model with its framework's stock optimizer, step by step.

What the frameworks share. Shapes: B examples a batch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from runner.data.base import WEIGHT, Array
from runner.optim.paths import ema_path, slot_path
from runner.task import namespace
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

Inputs = Array | Mapping[str, Array]


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
                slot_path(slot, path): value
                for slot, attribute in self._slot_attributes().items()
                for path, value in self.slots(attribute).items()
            },
            **{ema_path(path): value for path, value in averages.items()},
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
        terms = max(float(batches.weights[step].sum()), 1.0)
        share_b = (batches.arrays[WEIGHT][step] > 0).astype(np.float32) / terms
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
        """Returns one batch's loss and gradients, added up over the micro-batches that it is computed in."""
        batches, count = self._request.batches, self._request.config.trainer.accumulate_steps
        task, host = self._request.data.task, namespace.of(np)
        size = len(share_b) // count
        loss = 0.0
        sums: dict[str, Array] = {}
        for part in range(count):
            rows = slice(part * size, (part + 1) * size)
            batch = {name: array[step][rows] for name, array in batches.arrays.items()}
            # The model's inputs are made here, by NumPy: what an engine makes of the arrays is judged too.
            inputs = task.inputs(host, batch)
            one, found = self.gradients(inputs, batch, share_b[rows], step * count + part, 1.0 / count)
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
        self, inputs: Inputs, batch: Mapping[str, Array], share_b: Array, microstep: int, share: float
    ) -> tuple[float, dict[str, Array]]:
        """Returns a micro-batch's loss and its gradients, and moves the batch statistics.

        Args:
          inputs: what the model takes.
          batch: arrays (B, ...) by name.
          share_b: what each example's loss counts for in the mean over the whole batch, 0 of padding.
          microstep: micro-batches done before, which dropout masks depend on.
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

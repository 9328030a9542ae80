"""The single device's side of custom steps: the user's class with stock Keras 3 on JAX, without a mesh.

A custom step has no single gradient of each variable. So what a step changes takes the place of gradients: the change
of each trained variable in the first step, and in one step from each point. Shapes: B examples per batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import jax
import numpy as np

from runner.data.base import WEIGHT, Array
from runner.engine.base import HostBatches
from runner.engine.jax.adapter import outputs_of
from runner.engine.jax.own_step.engine import Functions
from runner.engine.jax.own_step.parts import OwnStepFactory
from runner.engine.jax.private import all_layers, inputs_of, is_functional
from runner.layout.paths import is_slot
from runner.task.base import LOSS
from runner.task.custom import StepTask
from runner.verify import points
from runner.verify.reference import Reference
from runner.verify.request import Request
from runner.verify.rounding import weights_with_noise, with_noise

State = dict[str, Array]
# Least factor of a slot at a point; the largest is 1. Different enough that a stale slot shows, and below 1 so that a
# second moment stays above the square of the first one.
_LEAST_SLOT = 0.5


class OwnStepReference(Reference):
    """The user's class on one device; see the base class for the methods."""

    changes = points.STEPPED

    def __init__(self, request: Request) -> None:
        """Builds the parts from the config's seed.

        Raises:
          ConfigError: the class fails.
        """
        super().__init__(request)
        config = request.config
        task = request.data.task
        assert isinstance(task, StepTask)
        self._task = task
        self._parts = OwnStepFactory(config, request.data, request.total_steps).build()
        functions = Functions(self._parts, task, config.trainer.seed)
        self._train = jax.jit(functions.train)
        self._evaluate = jax.jit(functions.evaluate)
        self._start: State = {}
        for path, variable in self._parts.variables.items():
            self._start[path] = np.array(variable.value)
        self._state = self._start
        self.initial = {path: self._start[path] for path in self._parts.model_variables}
        # All that a gradient may have made, the weights of an averaged network among them.
        self._weights = []
        for path, variable in self._parts.model_variables.items():
            if variable.trainable:
                self._weights.append(path)

    def positions(self) -> int:
        """Returns the most positions of a layer of a functional model that has weights."""
        most = 1
        for name, model in self._parts.models.items():
            if not is_functional(model):
                continue
            owners = {path.rpartition("/")[0] for path in self._weights}
            inputs = jax.tree.map(
                lambda tensor: jax.ShapeDtypeStruct((1, *tensor.shape[1:]), tensor.dtype), inputs_of(model)
            )
            for output in outputs_of(model, inputs):
                if f"{name}/{output.layer}" in owners:
                    most = max(most, math.prod(output.shape[1:-1]))
        return most

    def compute_dtypes(self) -> Iterable[str | None]:
        """Yields the dtype that each layer computes in."""
        return (layer.compute_dtype for model in self._parts.models.values() for layer in all_layers(model))

    def weights(self) -> State:
        """Returns the trainable variables by canonical path."""
        return {path: self._state[path] for path in self._weights}

    def state(self) -> State:
        """Returns the variables of the models and the optimizers."""
        return self._state

    def load(self, state: Mapping[str, Array], step: int) -> None:
        """Loads a state; the number of the step is an argument of the user's function."""
        del step
        self._state = self._start | dict(state)

    def point(self, trained: Mapping[str, Array], share: float, step: int, rng: np.random.Generator) -> State | None:
        """Returns a complete state; None if a step from there gives NaN or Inf.

        Weights are moved at random from those at the end of the training. The slots are those at its end, each times a
        random factor, as only an optimizer's own code says which values its slots may have.
        """
        state = {path: trained[path if is_slot(path) else f"final/{path}"] for path in self._start}
        weights = {path: state[path] for path in self._weights}
        state |= points.perturbed_weights(weights, share, rng)
        factors: dict[tuple[str, tuple[int, ...]], Array] = {}
        for path, owner in self._parts.owners.items():
            value = state[path]
            if not owner or value.dtype.kind != "f":
                continue
            # One factor for all slots of an entry, so that they stay consistent with each other.
            key = (owner, value.shape)
            factor = factors.setdefault(key, rng.uniform(_LEAST_SLOT, 1.0, value.shape))
            state[path] = (value * factor).astype(value.dtype)
        self.load(state, step)
        metrics, _ = self.step(step, self._request.batches, 0.0, rng)
        values = [*self._state.values(), np.asarray(list(metrics.values()))]
        return state if all(np.isfinite(value).all() for value in values) else None

    def step(
        self, step: int, batches: HostBatches, noise: float, rng: np.random.Generator
    ) -> tuple[dict[str, float], State]:
        """Takes a step; returns the means of its metrics, and what it changes of each trained variable.

        With noise, the step is taken at weights with noise, and its changes are those of the weights without.
        """
        state = self._state
        batch = {name: array[step] for name, array in batches.arrays.items()}
        used = self._noisy(noise, rng)
        if noise:
            batch[WEIGHT] = with_noise(batch[WEIGHT], noise, rng)
        new_values, metrics = self._train(used, batch, np.int32(step))
        self._state = {path: np.array(new_values[path]) for path in state}
        if noise:
            for path in self._weights:
                change = self._state[path].astype(np.float64) - used[path]
                self._state[path] = (state[path] + with_noise(change, noise, rng)).astype(state[path].dtype)
        weights = batches.weights[step]
        means = {}
        for name in (LOSS, *self._task.step_metrics):
            # Padding may give NaN, which times 0 is NaN.
            total = np.where(weights > 0, np.asarray(metrics[name], np.float64), 0.0).sum()
            means[name] = float(total / (weights.sum() or 1.0))
        return means, {path: self._state[path] - state[path] for path in self._parts.trained}

    def _noisy(self, noise: float, rng: np.random.Generator) -> State:
        """Returns the state, its weights with noise."""
        if not noise:
            return self._state
        return self._state | weights_with_noise(self.weights(), noise, rng)

    def evaluated(
        self, start: Mapping[str, Array], step: int, noise: float, rng: np.random.Generator
    ) -> dict[str, Array]:
        """Returns the finite metrics of an evaluation."""
        del start
        used = self._noisy(noise, rng)
        sums: dict[str, float] = {}
        weight_sum = 0.0
        for number, batch in enumerate(self._request.evaluation(step)):
            is_real = batch.arrays[WEIGHT][0] > 0
            arrays = {name: array[0][is_real] for name, array in batch.arrays.items()}
            metrics = self._evaluate(used, arrays, np.int32(number))
            weight_sum += float(is_real.sum())
            for name, value_b in metrics.items():
                values = np.asarray(value_b, np.float64)
                if noise:
                    values = values * with_noise(np.ones_like(values), noise, rng)
                sums[name] = sums.get(name, 0.0) + float(values.sum())
        means = {name: total / (weight_sum or 1.0) for name, total in sums.items()}
        # In bfloat16 outputs tie, and rounding flips the classes that a metric counts.
        if self.precision != "float32":
            means = {LOSS: means[LOSS]}
        return {name: np.asarray([value]) for name, value in means.items() if math.isfinite(value)}

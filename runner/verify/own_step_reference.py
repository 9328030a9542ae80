"""The single device's side of custom steps: the user's class with stock Keras 3 on JAX, without a mesh.

A custom step has no single gradient of each variable. So what a step changes takes the place of gradients: the change
of each trained variable in the first step, and in one step from each point. Shapes: B examples per batch.
"""

from __future__ import annotations

import math
from collections import defaultdict
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
from runner.verify.meshproof import perturb
from runner.verify.meshproof.by_path import are_finite, below, chosen, indexed
from runner.verify.reference import Noise, Reference, State
from runner.verify.request import Request


class OwnStepReference(Reference):
    """The user's class on one device; see the base class for the methods."""

    changes = points.STEPPED

    def __init__(self, request: Request) -> None:
        """Builds the parts from the config's seed; a ConfigError if the class fails."""
        super().__init__(request)
        config = request.config
        assert isinstance(self._task, StepTask)
        self._parts = OwnStepFactory(config, request.data, request.total_steps).build()
        functions = Functions(self._parts, self._task, config.trainer.seed)
        self._train = jax.jit(functions.train)
        self._evaluate_program = jax.jit(functions.evaluate)
        self._start: State = {}
        for path, variable in self._parts.variables.items():
            self._start[path] = np.array(variable.value)
        self._values = self._start
        self.initial = chosen(self._start, self._parts.model_variables)
        # All that a gradient may have made, the weights of an averaged network among them.
        self._weight_paths = []
        for path, variable in self._parts.model_variables.items():
            if variable.trainable:
                self._weight_paths.append(path)

    def _positions(self) -> int:
        most = 1
        owners = {path.rpartition("/")[0] for path in self._weight_paths}
        for name, model in self._parts.models.items():
            if not is_functional(model):
                continue
            inputs = jax.tree.map(
                lambda tensor: jax.ShapeDtypeStruct((1, *tensor.shape[1:]), tensor.dtype), inputs_of(model)
            )
            for output in outputs_of(model, inputs):
                if f"{name}/{output.layer}" in owners:
                    most = max(most, math.prod(output.shape[1:-1]))
        return most

    def _compute_dtypes(self) -> Iterable[str | None]:
        for model in self._parts.models.values():
            for layer in all_layers(model):
                yield layer.compute_dtype

    def _weights(self) -> State:
        return chosen(self._values, self._weight_paths)

    def _state(self) -> State:
        return self._values

    def _load(self, state: Mapping[str, Array], step: int) -> None:
        del step
        self._values = self._start | dict(state)

    def _point(self, trained: Mapping[str, Array], share: float, step: int, rng: np.random.Generator) -> State | None:
        """Returns a complete state, whose weights are moved at random from those at the end of the training."""
        state = below("final", trained) | chosen(trained, filter(is_slot, self._start))
        state |= perturb.weights(chosen(state, self._weight_paths), share, rng)
        slots = {path: state[path] for path, owner in self._parts.owners.items() if owner}
        state |= perturb.slots(slots, rng)
        self._load(state, step)
        metrics, _ = self._step(step, self._request.batches, None)
        if are_finite([*self._values.values(), np.asarray(list(metrics.values()))]):
            return state
        return None

    def _step(self, step: int, batches: HostBatches, noise: Noise) -> tuple[dict[str, float], State]:
        """Takes a step, with noise at weights with noise; its changes are those of the weights without."""
        state = self._values
        batch = indexed(batches.arrays, step)
        used = state | self._noisy_weights(self._weights(), noise)
        batch[WEIGHT] = self._noisy(batch[WEIGHT], noise)
        new_values, metrics = self._train(used, batch, np.int32(step))
        self._values = chosen(jax.tree.map(np.array, new_values), state)
        if noise is not None:
            for path in self._weight_paths:
                change = self._values[path].astype(np.float64) - used[path]
                self._values[path] = (state[path] + self._noisy(change, noise)).astype(state[path].dtype)
        weights = batches.weights[step]
        means = {}
        for name in (LOSS, *self._task.step_metrics):
            # Padding may give NaN, which times 0 is NaN.
            total = np.where(weights > 0, np.asarray(metrics[name], np.float64), 0.0).sum()
            means[name] = float(total / (weights.sum() or 1.0))
        return means, {path: self._values[path] - state[path] for path in self._parts.trained}

    def _evaluated(self, start: Mapping[str, Array], step: int, noise: Noise) -> dict[str, float]:
        del start
        used = self._values | self._noisy_weights(self._weights(), noise)
        sums: dict[str, float] = defaultdict(float)
        weight_sum = 0.0
        for number, batch in enumerate(self._request.evaluation(step)):
            is_real = batch.arrays[WEIGHT][0] > 0
            arrays = indexed(batch.arrays, (0, is_real))
            metrics = self._evaluate_program(used, arrays, np.int32(number))
            weight_sum += float(is_real.sum())
            for name, value_b in metrics.items():
                values = np.asarray(value_b, np.float64)
                values = values * self._noisy(np.ones_like(values), noise)
                sums[name] += float(values.sum())
        # In bfloat16 outputs tie, and rounding flips the classes that a metric counts.
        if self._precision != "float32":
            sums = {LOSS: sums[LOSS]}
        means = {}
        for name, total in sums.items():
            means[name] = total / (weight_sum or 1.0)
        return means

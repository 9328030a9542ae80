"""The single device's side of custom steps: the user's class with stock Keras 3 on JAX, without a mesh.

A custom step has no single gradient of each variable. So what a step changes takes the place of gradients: the change
of each trained variable in the first step, and in one step from each point. Shapes: B examples per batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import jax
import numpy as np

from runner.data.base import WEIGHT, Array
from runner.engine.base import HostBatches
from runner.engine.jax.adapter import outputs_of
from runner.engine.jax.own_step.functions import Functions
from runner.engine.jax.own_step.parts import OwnStepFactory
from runner.engine.jax.private import all_layers, inputs_of, is_functional
from runner.layout.paths import is_slot
from runner.task.base import LOSS
from runner.task.custom import StepTask
from runner.verify import padding, points
from runner.verify.points import METRIC, STEPPED
from runner.verify.reference import MIN_STEPS
from runner.verify.request import Request
from runner.verify.rounding import weights_with_noise, with_noise

State = dict[str, Array]
# Least factor of a slot at a point; the largest is 1. Different enough that a stale slot shows, and below 1 so that a
# second moment stays above the square of the first one.
_LEAST_SLOT = 0.5


class OwnStepReference:
    """The user's class on one device; it trains from the same initial values of the models' weights as often as
    needed.
    """

    initial: Mapping[str, Array]

    def __init__(self, request: Request) -> None:
        """Builds the parts from the config's seed.

        Raises:
          ConfigError: the class fails.
        """
        config = request.config
        task = request.data.task
        assert isinstance(task, StepTask)
        self._request = request
        self._task = task
        self._parts = OwnStepFactory(config, request.data, request.total_steps).build()
        functions = Functions(self._parts, task, config.trainer.seed)
        self._train = jax.jit(functions.train)
        self._evaluate = jax.jit(functions.evaluate)
        self._start: State = {}
        for path, variable in self._parts.variables.items():
            self._start[path] = np.array(variable.value)
        self.initial = {path: self._start[path] for path in self._parts.model_variables}
        # All that a gradient may have made, the weights of an averaged network among them.
        self._weights = []
        for path, variable in self._parts.model_variables.items():
            if variable.trainable:
                self._weights.append(path)

    @property
    def longest_sum(self) -> int:
        """Number of terms of the longest sum of a step, see `runner.verify.reference.Reference.longest_sum`."""
        kernels = [self.initial[path].shape for path in self._weights]
        forward = max((math.prod(shape[:-1]) for shape in kernels), default=1)
        backward = self._request.config.dataset.batch_size * self._positions()
        return max(forward, backward)

    def _positions(self) -> int:
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

    @property
    def precision(self) -> str:
        """The lowest that a layer computes in."""
        dtypes = {self._request.config.engine.precision}
        for model in self._parts.models.values():
            dtypes.update(layer.compute_dtype for layer in all_layers(model))
        return "bfloat16" if "bfloat16" in dtypes else "float32"

    def train(self, steps: int, noise: float = 0.0, seed: int = 0, seconds: float = math.inf) -> State:
        """Trains from the initial values, see `runner.verify.reference.Reference.train`."""
        state = dict(self._start)
        metrics: list[dict[str, float]] = []
        changes: State = {}
        started = time.monotonic()
        for step in range(steps):
            rng = np.random.default_rng([seed, step])
            new_state, new_metrics = self._step(state, step, self._request.batches, noise, rng)
            if step == 0:
                changes = {path: new_state[path] - state[path] for path in self._parts.trained}
                # The first step is mostly its compilation, which `seconds` does not count.
                started = time.monotonic()
            state = new_state
            metrics.append(new_metrics)
            if len(metrics) >= MIN_STEPS and time.monotonic() - started > seconds:
                break
        arrays = {f"initial/{path}": value for path, value in self.initial.items()}
        arrays["loss"] = np.asarray([values[LOSS] for values in metrics], np.float32)
        for name in self._task.step_metrics:
            arrays[f"{METRIC}/{name}"] = np.asarray([values[name] for values in metrics], np.float32)
        arrays |= {f"{STEPPED}/{path}": change for path, change in changes.items()}
        for path, value in state.items():
            arrays[path if is_slot(path) else f"final/{path}"] = value
        return arrays

    def points(self, trained: Mapping[str, Array]) -> State:
        """Returns the steps and states of the points of a training without noise, see `runner.verify.points`.

        Weights are moved at random from those at the end of the training. The slots are those at its end, each times a
        random factor, as only an optimizer's own code says which values its slots may have.
        """
        arrays: State = {}
        for number, step in enumerate(points.steps(len(trained["loss"]))):
            for share in points.SHARES:
                rng = np.random.default_rng([number, step])
                state = self._point(trained, share, rng)
                new_state, metrics = self._step(state, step, self._request.batches, 0.0, rng)
                values = [*new_state.values(), np.asarray(list(metrics.values()))]
                if all(np.isfinite(value).all() for value in values):
                    arrays[f"point{number}/{points.STEP}"] = np.asarray(step)
                    arrays |= points.keyed(number, points.START, state)
                    break
        return arrays

    def _point(self, trained: Mapping[str, Array], share: float, rng: np.random.Generator) -> State:
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
        return state

    def at_points(self, states: Mapping[str, Array], noise: float = 0.0, seed: int = 0) -> State:
        """Evaluates at the points, and takes a step from each, see `runner.verify.reference.Reference.at_points`."""
        arrays: State = {}
        for number in points.numbers(states):
            step = points.step_of(states, number)
            start = points.part(states, number, points.START)
            request = padding.at_point(self._request, states, number)
            # Evaluations draw from a stream of their own: what they draw does not change the step's noise.
            evaluated = self._evaluated(start, step, noise, np.random.default_rng([seed, number, step, 1]))
            arrays |= points.keyed(number, points.EVALUATED, evaluated)
            rng = np.random.default_rng([seed, number, step])
            end, metrics = self._step(start, step, request.batches, noise, rng)
            arrays[f"point{number}/{points.LOSS}"] = np.asarray([metrics[LOSS]], np.float32)
            arrays |= points.keyed(number, points.END, end)
        return arrays

    def exact(self, arrays: Mapping[str, Array], noise: float) -> State:
        """Returns nothing: there are no gradients to take in float64."""
        del arrays, noise
        return {}

    def _step(
        self, state: Mapping[str, Array], step: int, batches: HostBatches, noise: float, rng: np.random.Generator
    ) -> tuple[State, dict[str, float]]:
        """Returns the state after a step, and the means of its metrics.

        With noise, the step is taken at weights with noise, and its changes are those of the weights without.
        """
        batch = {name: array[step] for name, array in batches.arrays.items()}
        used = dict(state)
        if noise:
            used |= weights_with_noise({path: state[path] for path in self._weights}, noise, rng)
            batch[WEIGHT] = with_noise(batch[WEIGHT], noise, rng)
        new_values, metrics = self._train(used, batch, np.int32(step))
        new_state = {path: np.array(new_values[path]) for path in state}
        if noise:
            for path in self._weights:
                change = new_state[path].astype(np.float64) - used[path]
                new_state[path] = (state[path] + with_noise(change, noise, rng)).astype(state[path].dtype)
        weights = batches.weights[step]
        means = {}
        for name, value_b in metrics.items():
            # Padding may give NaN, which times 0 is NaN.
            total = np.where(weights > 0, np.asarray(value_b, np.float64), 0.0).sum()
            means[name] = float(total / (weights.sum() or 1.0))
        return new_state, means

    def _evaluated(
        self, state: Mapping[str, Array], step: int, noise: float, rng: np.random.Generator
    ) -> dict[str, Array]:
        """Returns the finite metrics of an evaluation at a state, whose batches have no padding here."""
        used = dict(state)
        if noise:
            used |= weights_with_noise({path: state[path] for path in self._weights}, noise, rng)
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

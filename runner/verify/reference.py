"""The single device's side: a plain model with its framework's stock optimizer, step by step.

This is the part that the frameworks share. Shapes: B examples per batch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from runner.arrays import of as array_functions
from runner.data.base import WEIGHT, Array
from runner.engine.base import HostBatches
from runner.engine.optim import groups, norms, rules
from runner.engine.optim.keras_classes import keras_slots
from runner.engine.optim.norms import clip
from runner.engine.optim.rules import OPTIMIZERS, Slot
from runner.layout.paths import ema_path, is_ema, slot_path
from runner.task.base import LOSS
from runner.verify import points
from runner.verify.meshproof import perturb
from runner.verify.meshproof.by_path import are_finite, below, chosen, indexed, keyed, tiny
from runner.verify.meshproof.rounding import (
    Rounding,
    gradients_with_noise,
    rounding_of,
    weights_with_noise,
    with_noise,
)
from runner.verify.request import Request
from runner.verify.stock import StockPart, is_divided

# Largest relative difference of the losses of two equal calls that draw no random numbers. On a CPU they are bitwise
# identical; a GPU may sum in another order. In bfloat16 that is a few 1e-3, and dropout changes losses by 1e-1.
_EQUAL_CALLS = 1e-2

Inputs = Array | Mapping[str, Array]
# By path.
State = dict[str, Array]
# Draws the noise of a perturbed run; None: the run has none.
Noise = np.random.Generator | None


class Reference(ABC):
    """A plain model, or a user's step, that trains on one device from the same weights as often as needed.

    A subclass has the methods of a state, a step and an evaluation; the order of both, and the noise of perturbed
    runs, are here and the same for all.

    Attributes:
      initial: canonical path to initial value, of every variable.
      changes: what a step returns of each trained variable: its gradient, or with a custom step its change.
    """

    initial: Mapping[str, Array]
    changes = points.GRADIENT
    # Gradients of the last step that may be what rounding leaves of terms that cancel.
    _tiny: Mapping[str, Array] = MappingProxyType({})

    def __init__(self, request: Request) -> None:
        """Stores the request; a subclass builds the model from the config's seed."""
        self._request = request
        self._task = request.data.task

    @cached_property
    def longest_sum(self) -> int:
        """Number of terms of the longest sum of a step.

        A forward sum runs over all dims of a kernel but the last. A gradient's runs over the batch, and over the
        positions to which a layer applies its kernel, where the layer's output shows them.
        """
        forward = 1
        for value in self._weights().values():
            forward = max(forward, math.prod(value.shape[:-1]))
        backward = self._request.config.dataset.batch_size * self._positions()
        return max(forward, backward)

    @cached_property
    def rounding(self) -> Rounding:
        """The noise of perturbed runs."""
        return rounding_of(self.longest_sum, self._precision, self._request.config.engine.state)

    @cached_property
    def _precision(self) -> str:
        """The lowest that it computes in: `engine.precision`, or the dtype of a layer of the model."""
        dtypes = {self._request.config.engine.precision, *self._compute_dtypes()}
        return "bfloat16" if "bfloat16" in dtypes else "float32"

    def train(self, seed: int | None = None) -> dict[str, Array]:
        """Trains from the initial weights, and returns the arrays of `runner.verify.points.compare`.

        Args:
          seed: of a perturbed run, which adds noise to every weight and to every example's share of the loss, drawn
            again each step. A step's gradients are taken there; the weights that it updates have none. None: no noise.
        """
        self._load(self.initial, 0)
        metrics: defaultdict[str, list[float]] = defaultdict(list)
        first_changes: dict[str, Array] = {}
        for step in range(self._request.batches.steps):
            of_step, changes = self._step(step, self._request.batches, _generator(seed, step))
            for name, value in of_step.items():
                metrics[name].append(value)
            first_changes = first_changes or changes
        arrays = keyed("initial", self.initial)
        for name, values in metrics.items():
            key = LOSS if name == LOSS else f"{points.METRIC}/{name}"
            arrays[key] = np.asarray(values, np.float32)
        arrays |= keyed(self.changes, first_changes)
        return arrays | points.of_end(self._state(), self.initial)

    def points(self, trained: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the steps and states of the points of a training without noise, see `runner.verify.points`.

        A point at which the loss is NaN or Inf is moved closer to the initial weights, and left out if that does not
        help. `at_points` returns the arrays that are computed from there.
        """
        arrays: dict[str, Array] = {}
        for number, step in enumerate(perturb.steps(len(trained[LOSS]))):
            for share in perturb.SHARES:
                state = self._point(trained, share, step, np.random.default_rng([number, step]))
                if state is not None:
                    arrays[f"point{number}/{points.STEP}"] = np.asarray(step)
                    arrays |= keyed(points.prefix(number, points.START), state)
                    break
        return arrays

    def at_points(self, states: Mapping[str, Array], seed: int | None = None) -> dict[str, Array]:
        """Returns what `runner.verify.points` lists of the points, with the noise of a `seed` as in `train`."""
        arrays: dict[str, Array] = {}
        for number in points.numbers(states):
            step = points.step_of(states, number)
            start = below(points.prefix(number, points.START), states)
            self._load(start, step)
            # Evaluations draw from a stream of their own: what they draw does not change the step's noise.
            evaluated = self._evaluated(start, step, _generator(seed, number, step, 1))
            for name, value in evaluated.items():
                if math.isfinite(value):
                    arrays[f"{points.prefix(number, points.EVALUATED)}/{name}"] = np.asarray([value])
            batches = self._request.at_point(states, number).batches
            metrics, changes = self._step(step, batches, _generator(seed, number, step))
            arrays[f"point{number}/{points.LOSS}"] = np.asarray([metrics[LOSS]], np.float32)
            if self.changes == points.GRADIENT:
                arrays |= keyed(points.prefix(number, points.GRADIENT), changes)
                arrays |= keyed(points.prefix(number, points.TINY), self._tiny)
            arrays |= keyed(points.prefix(number, points.END), self._state())
        return arrays

    def _noisy(self, values: Array, noise: Noise) -> Array:
        return values if noise is None else with_noise(values, self.rounding.noise, noise)

    def _noisy_weights(self, weights: State, noise: Noise) -> State:
        return weights if noise is None else weights_with_noise(weights, self.rounding.noise, noise)

    @abstractmethod
    def _compute_dtypes(self) -> Iterable[str | None]:
        """Yields the dtype that each layer computes in; None where it has none."""

    @abstractmethod
    def _positions(self) -> int:
        """Returns the largest number of positions of an example to which a layer applies its weights."""

    @abstractmethod
    def _weights(self) -> dict[str, Array]:
        """Returns the trainable variables by canonical path."""

    @abstractmethod
    def _state(self) -> dict[str, Array]:
        """Returns every variable, slot and moving average of weights by path."""

    @abstractmethod
    def _load(self, state: Mapping[str, Array], step: int) -> None:
        """Loads a state, `step` steps after the beginning of a training; a missing slot gets its initial value."""

    @abstractmethod
    def _step(self, step: int, batches: HostBatches, noise: Noise) -> tuple[dict[str, float], State]:
        """Takes a step; returns its metrics, the loss among them, and the changes of each trained variable."""

    @abstractmethod
    def _point(self, trained: Mapping[str, Array], share: float, step: int, rng: np.random.Generator) -> State | None:
        """Returns a complete state whose weights are moved by a share of their size; None if it gives NaN or Inf."""

    @abstractmethod
    def _evaluated(self, start: Mapping[str, Array], step: int, noise: Noise) -> dict[str, float]:
        """Returns the results of an evaluation at a state, by metric; its batches have no padding.

        A result that is NaN or Inf is not compared.
        """


def _generator(seed: int | None, *numbers: int) -> Noise:
    return None if seed is None else np.random.default_rng([seed, *numbers])


class GradientReference(Reference):
    """A plain model with its framework's stock optimizer.

    The present state is in the framework's own variables, those of the model and those of the optimizers.

    Attributes:
      parts: stock optimizers, one per learning rate and step count.
    """

    settings: Mapping[str, groups.Settings]
    parts: Sequence[StockPart]
    # Every variable by canonical path, in the dtype in which a run stores it, and the trainable ones of them.
    _by_path: Mapping[str, Any]
    _trainable: Mapping[str, Any]

    def _step(self, step: int, batches: HostBatches, noise: Noise) -> tuple[dict[str, float], State]:
        loss, gradients = self._step_gradients(step, batches, noise)
        config = self._request.config.optimizer
        updates = gradients
        if is_divided(self.settings) or OPTIMIZERS[config.name].is_transformation:
            updates = dict(zip(gradients, clip(config.clip, list(gradients.values()), np), strict=True))
        for number, part in enumerate(self.parts):
            self._apply_part(number, list(chosen(updates, part.paths).values()))
        self._update_averages()
        logged = {}
        for name in norms.names(config):
            logged[name] = float(norms.norm(list(gradients.values()), array_functions(np)))
        return {LOSS: loss, **logged}, gradients

    def _state(self) -> dict[str, Array]:
        state = on_host(self._by_path)
        for key, (_, _, variable) in self.slot_variables.items():
            state[key] = variable.numpy()
        return state | self._averages

    def _load(self, state: Mapping[str, Array], step: int) -> None:
        # The first update of a run sets the averages to the weights, whatever they were before.
        self._averages = {path: value for path, value in state.items() if is_ema(path) and step}
        for path, variable in self._by_path.items():
            variable.assign(np.asarray(state[path], self.initial[path].dtype))
        for part in self.parts:
            part.load(step)
        for key, (_, _, variable) in self.slot_variables.items():
            if key in state:
                variable.assign(state[key])

    def _weights(self) -> State:
        return on_host(self._trainable)

    def _assign(self, weights: Mapping[str, Array]) -> None:
        """Sets the trainable variables, all of them."""
        for path, variable in self._trainable.items():
            variable.assign(weights[path])

    def _point(self, trained: Mapping[str, Array], share: float, step: int, rng: np.random.Generator) -> State | None:
        self._load(self.initial, 0)
        self._assign(perturb.weights(self._weights(), share, rng))
        self._constrain()
        weights = self._weights()
        # Variables that no gradient changes, such as moving statistics, are valid as the training left them.
        variables = below("final", trained) | weights
        self._load(variables, step)
        loss, gradients = self._step_gradients(step, self._request.batches, None)
        if not math.isfinite(loss) or not are_finite(gradients.values()):
            return None
        slots = perturb.slots(chosen(trained, self.slot_variables), rng)
        for key, (slot, owner, _) in self.slot_variables.items():
            # In the dtype in which a run stores it.
            slots[key] = slots[key].astype(slot.dtype or self.initial[owner].dtype)
        averages = {}
        if self._request.config.optimizer.ema.decay is not None:
            averages = points.averages(weights, rng)
        return variables | slots | averages

    def _evaluated(self, start: Mapping[str, Array], step: int, noise: Noise) -> dict[str, float]:
        """Returns the loss of an evaluation at a state, and the metrics of some tasks.

        The metrics are those of a task that reads other rows of a batch, or whose data says what counts, such as an
        ignored label: a mesh could read or count something else. The batches are those of the mesh without their
        padding. There are no results if the model draws random numbers that are others in each call: the mesh draws
        yet others.
        """
        task = self._task
        host = array_functions(np)
        weights = self._weights()
        # A run evaluates the moving averages of its weights where it keeps them.
        used = {path: start.get(ema_path(path), value) for path, value in weights.items()}
        self._assign(self._noisy_weights(used, noise))
        loss_sum = 0.0
        added_sum = 0.0
        examples = 0
        weight_sum = 0.0
        sums: dict[str, Array] = {}
        for batch in self._request.evaluation(step):
            is_real = batch.arrays[WEIGHT][0] > 0
            arrays = indexed(batch.arrays, (0, is_real))
            loss_b, totals, added = self._evaluate(task.inputs(host, arrays), arrays)
            if not examples and self._is_random(loss_b, added, task.inputs(host, arrays), arrays):
                self._assign(weights)
                return {}
            added_sum += added * len(loss_b)
            examples += len(loss_b)
            weight_b = batch.weights[0][is_real]
            # An example of weight 0 may have a loss of NaN, which times 0 is NaN.
            weighted_b = np.where(weight_b > 0, loss_b, 0.0)
            weighted_b = weighted_b * self._noisy(np.ones_like(loss_b), noise)
            loss_sum += float(np.sum(weighted_b, dtype=np.float64))
            weight_sum += float(weight_b.sum())
            addends = task.addends({name: total.astype(np.float64) for name, total in totals.items()})
            if sums:
                addends = task.joined(sums, addends)
            sums = addends
        self._assign(weights)
        loss_totals = {LOSS: np.asarray(loss_sum), WEIGHT: np.asarray(weight_sum)}
        metrics = {LOSS: task.mean_loss(sums | loss_totals) + added_sum / examples}
        # In bfloat16 outputs tie, and rounding flips the classes that a metric counts.
        has_own_counts = task.reads_batch or task.weighs_arrays
        if has_own_counts and self._precision == "float32":
            metrics |= task.summary(sums)
        return metrics

    def _is_random(self, loss_b: Array, added: float, inputs: Inputs, batch: Mapping[str, Array]) -> bool:
        """Returns whether an equal evaluation has other losses, (B,) or of layers, by more than rounding."""
        again_b, _, again_added = self._evaluate(inputs, batch)
        first = np.append(loss_b, added)
        again = np.append(again_b, again_added)
        return not np.allclose(again, first, rtol=_EQUAL_CALLS, atol=0.0, equal_nan=True)

    def _update_averages(self) -> None:
        """Updates the moving averages; without earlier ones, they are the weights."""
        decay = self._request.config.optimizer.ema.decay
        if decay is None:
            return
        kept_share = np.float32(decay)
        for path, weight in self._weights().items():
            average = self._averages.get(ema_path(path), weight)
            self._averages[ema_path(path)] = average * kept_share + weight * (1 - kept_share)

    @cached_property
    def slot_variables(self) -> dict[str, tuple[Slot, str, Any]]:
        """State of the stock optimizer that the run has too, by path: its kind, its owner's path and its variable."""
        config = self._request.config.optimizer
        kinds = OPTIMIZERS[config.name]
        weights = self._weights()
        slots = []
        for part in self.parts:
            if kinds.is_transformation:
                slots += part.optimizer.by_slot
            else:
                ranks = {path: weights[path].ndim for path in part.paths}
                slots += keras_slots(config, part.optimizer, ranks)
        found = {}
        for slot, variables in slots:
            # A stock optimizer may keep what our rule does not: SGD's `momentum` without momentum is not compared.
            if kinds.make_rule is None or slot.name in rules.make_rule(config, np).slots:
                for path, variable in variables.items():
                    found[slot_path(slot.name, path)] = slot, path, variable
        return found

    def _step_gradients(self, step: int, batches: HostBatches, noise: Noise) -> tuple[float, State]:
        """Returns one batch's loss and gradients, taken at weights with noise; restores the weights."""
        weight_sum = float(batches.weights[step].sum()) or 1.0
        share_b = (batches.arrays[WEIGHT][step] > 0).astype(np.float32) / weight_sum
        weights = {}
        if noise is not None:
            weights = self._weights()
            self._assign(self._noisy_weights(weights, noise))
            share_b = self._noisy(share_b, noise)
        loss, gradients = self._summed_gradients(step, share_b.astype(np.float32), batches)
        self._tiny = tiny(gradients, self.rounding)
        if noise is not None:
            self._assign(weights)
            gradients = gradients_with_noise(gradients, self.rounding, noise)
        return loss, gradients

    def _summed_gradients(self, step: int, share_b: Array, batches: HostBatches) -> tuple[float, dict[str, Array]]:
        """Returns one batch's loss and gradients, added up over its microbatches."""
        count = self._request.config.trainer.accumulate_steps
        task = self._task
        host = array_functions(np)
        size = len(share_b) // count
        loss = 0.0
        sums: dict[str, Array] = {}
        for part in range(count):
            rows = slice(part * size, (part + 1) * size)
            batch = indexed(batches.arrays, (step, rows))
            # NumPy makes the model's inputs here, so the inputs that an engine makes of the arrays are verified too.
            inputs = task.inputs(host, batch)
            part_loss, gradients = self._gradients(inputs, batch, share_b[rows], step * count + part, 1.0 / count)
            loss += part_loss
            for path, value in gradients.items():
                sums[path] = sums.get(path, 0.0) + value
        return loss, sums

    def _constrain(self) -> None:
        """Applies the trainable variables' own constraints to them, if the engine has any."""

    @abstractmethod
    def _gradients(
        self, inputs: Inputs, batch: Mapping[str, Array], share_b: Array, microstep: int, share: float
    ) -> tuple[float, dict[str, Array]]:
        """Returns a microbatch's loss and its gradients, and updates the batch statistics.

        Args:
          batch: arrays (B, ...) by name.
          share_b: (B,) weight of each example's loss in the mean over the whole batch, 0 of padding.
          microstep: microbatches done before, which dropout masks depend on.
          share: the microbatch's part of the step, the weight of the regularization losses.
        """

    @abstractmethod
    def _evaluate(self, inputs: Inputs, batch: Mapping[str, Array]) -> tuple[Array, dict[str, Array], float]:
        """Returns each example's loss (B,), the task's totals and the sum of layers' losses in an evaluation."""

    @abstractmethod
    def _apply_part(self, number: int, gradients: list[Array]) -> None:
        """Updates the weights of one stock optimizer."""


def on_host(tensors: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the values of variables, or of tensors of TensorFlow, by path."""
    return {path: tensor.numpy() for path, tensor in tensors.items()}

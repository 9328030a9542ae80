"""The single device's side: a plain model with its framework's stock optimizer, step by step.

What the frameworks share. Shapes: B examples a batch.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property

import numpy as np

from runner.arrays import of as array_functions
from runner.data.base import WEIGHT, Array
from runner.engine.base import HostBatches
from runner.optim import rules
from runner.optim.paths import ema_path, is_ema, is_slot, slot_path
from runner.optim.registry import OPTIMIZERS
from runner.optim.schedules import learning_rate
from runner.task.base import LOSS
from runner.verify import padding, points
from runner.verify.request import Request
from runner.verify.rounding import cancelling, noise_of_sums, off, off_weights, shaken

logger = logging.getLogger(__name__)

_FEWEST = 3  # steps of a training, however long they take
_FEW = 16  # examples of a gradient in float64, which XLA and TensorFlow compute slowly

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

    @cached_property
    def longest_sum(self) -> int:
        """How many terms the longest sum of a step has.

        A forward sum runs over all dims of a kernel but the last; a gradient's over the batch, and over the positions
        that a layer applies its kernel to where the layer's output tells them.
        """
        shapes = [value.shape for value in self.weights().values()]
        forward = max((math.prod(shape[:-1]) for shape in shapes if shape), default=1)
        return max(forward, self._request.config.dataset.batch_size * self.positions())

    def train(self, steps: int, noise: float = 0.0, seed: int = 0, seconds: float = math.inf) -> dict[str, Array]:
        """Trains from the initial weights.

        Args:
          steps: of training, at most.
          noise: relative noise of every weight and of every example's share of the loss, drawn again each step, at
            which a step's gradients are taken; the weights that it updates have none.
          seed: of the noise.
          seconds: no step begins later than that, but for the first three.

        Returns:
          The run's arrays, see `runner.verify.compare.compare`.
        """
        self.reset()
        losses: list[float] = []
        first: dict[str, Array] = {}
        averages: dict[str, Array] = {}
        begun = time.monotonic()
        for step in range(steps):
            rng = np.random.default_rng([seed, step])
            loss, gradients = self._step_gradients(step, noise, rng, self._request.batches)
            self.apply(gradients)
            losses.append(loss)
            first = first or gradients
            averages = self._averaged(averages)
            if step == 0:
                begun = time.monotonic()  # the first step is mostly its compilation
            elif len(losses) >= _FEWEST and time.monotonic() - begun > seconds:
                break
        return {
            **{f"initial/{path}": value for path, value in self.initial.items()},
            "loss": np.asarray(losses, np.float32),
            **{f"gradient/{path}": value for path, value in first.items()},
            **{f"final/{path}": value for path, value in self.variables().items()},
            **self._slots(),
            **averages,
        }

    def points(self, trained: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the generic points of a training without noise, see `runner.verify.points`; not yet what they give.

        A point at which the loss is not finite is taken nearer to the initial weights, and left out where that does
        not help.

        Args:
          trained: the training's arrays.
        """
        found: dict[str, Array] = {}
        for number, step in enumerate(points.steps(len(trained["loss"]))):
            for share in points.SHARES:
                state = self._point(trained, share, step, np.random.default_rng([number, step]))
                if state is not None:
                    found[f"point{number}/{points.STEP}"] = np.asarray(step)
                    found |= points.keyed(number, points.START, state)
                    break
        return found

    def _point(
        self, trained: Mapping[str, Array], share: float, step: int, rng: np.random.Generator
    ) -> dict[str, Array] | None:
        """Returns a whole state, None where its loss is not finite."""
        self.reset()
        self.assign(points.moved(self.weights(), share, rng))
        self.constrain()
        weights = self.weights()
        held = {path: trained[f"final/{path}"] for path in self.initial} | weights
        self.load(held, {}, step)
        loss, gradients = self._step_gradients(step, 0.0, rng, self._request.batches)
        if not math.isfinite(loss) or not all(np.isfinite(value).all() for value in gradients.values()):
            return None
        config = self._request.config.optimizer
        rate = float(learning_rate(config, float(step), self._request.total_steps))
        slots = self.kept(points.slots(self._slot_attributes(), gradients, rate or config.learning_rate, rng))
        return held | slots | (points.averages(weights, rng) if config.ema.decay is not None else {})

    def at_points(self, given: Mapping[str, Array], noise: float = 0.0, seed: int = 0) -> dict[str, Array]:
        """Takes gradients at the generic points, and a step from each.

        Args:
          given: what `points` returned.
          noise: as in `train`.
          seed: of the noise.

        Returns:
          What the points give, see `runner.verify.points`.
        """
        found: dict[str, Array] = {}
        for number in points.numbers(given):
            step = points.step_of(given, number)
            start = points.part(given, number, points.START)
            slots = {path: value for path, value in start.items() if is_slot(path)}
            self.load({path: start[path] for path in self.initial}, slots, step)
            rng = np.random.default_rng([seed, number, step])
            request = padding.at_point(self._request, given, number)
            evaluated = self._evaluated(start, step, noise, np.random.default_rng([seed, number, step, 1]))
            found |= points.keyed(number, points.EVALUATED, evaluated)
            loss, gradients = self._step_gradients(step, noise, rng, request.batches)
            self.apply(gradients)
            before = {path: value for path, value in start.items() if is_ema(path)}
            end = {**self.variables(), **self._slots(), **self._averaged(before if step else {})}
            found[f"point{number}/{points.LOSS}"] = np.asarray([loss], np.float32)
            found |= points.keyed(number, points.GRADIENT, gradients) | points.keyed(number, points.END, end)
        return found

    def _evaluated(
        self, start: Mapping[str, Array], step: int, noise: float, rng: np.random.Generator
    ) -> dict[str, Array]:
        """Returns the loss of an evaluation at a state, and the metrics of a task that reads other rows of a batch.

        The batches are those of the mesh without their padding. What is no number is left out.

        Args:
          start: the state, which is loaded.
          step: whose examples are evaluated.
          noise: as in `train`.
          rng: source of the noise.
        """
        task = self._request.data.task
        host = array_functions(np)
        kept = self.weights()
        used = {path: start.get(ema_path(path), value) for path, value in kept.items()}
        self.assign(off_weights(used, noise, rng) if noise else used)
        loss = weight = 0.0
        sums: dict[str, Array] = {}
        for batch in self._request.evaluation(step):
            real = batch.arrays[WEIGHT][0] > 0
            arrays = {name: array[0][real] for name, array in batch.arrays.items()}
            loss_b, totals = self.judged(task.inputs(host, arrays), arrays)
            counts_b = batch.weights[0][real]
            share_b = off(np.ones_like(loss_b), noise, rng) if noise else 1.0
            loss += float(np.sum(np.where(counts_b > 0, loss_b, 0.0) * share_b, dtype=np.float64))
            weight += float(counts_b.sum())
            added = task.addends({name: total.astype(np.float64) for name, total in totals.items()})
            sums = {name: sums.get(name, 0.0) + value for name, value in added.items()}
        self.assign(kept)
        # In bfloat16 outputs tie, and rounding flips what a metric counts.
        compares = task.reads_batch and self.precision == "float32"
        metrics = {LOSS: loss / (weight or 1.0)} | (task.summary(sums) if compares else {})
        return {name: np.asarray([value]) for name, value in metrics.items() if math.isfinite(value)}

    def exact(self, found: Mapping[str, Array], noise: float) -> dict[str, Array]:
        """Takes gradients in float64 at the points where they may be nothing but rounding; empty where none may.

        Of a few examples: terms that cancel do so for any.

        Args:
          found: what `points` and `at_points` returned.
          noise: relative, of the perturbed runs.
        """
        suspects: dict[int, list[str]] = {}
        for number in points.numbers(found):
            gradients = points.part(found, number, points.GRADIENT)
            left = cancelling(gradients, noise, self._sums)
            suspects[number] = [
                path for path, value in gradients.items() if np.max(np.abs(value), initial=0.0) < left[path]
            ]
        if not any(suspects.values()):
            return {}
        exact: dict[str, Array] = {}
        try:
            with self.in_float64() as twin:
                for number, paths in suspects.items():
                    step = points.step_of(found, number)
                    start = points.part(found, number, points.START)
                    twin.load({path: start[path] for path in twin.initial}, {}, step)
                    gradients = twin._few_gradients(step)
                    exact |= points.keyed(number, points.EXACT, {path: gradients[path] for path in paths})
        except Exception:  # a user's own layers may know float32 alone: then no gradient is shown to be zero
            logger.exception("the model has no float64 form")
            return {}
        return exact

    @cached_property
    def _sums(self) -> float:
        return noise_of_sums(self.longest_sum, self.precision)

    @property
    def precision(self) -> str:
        """The lowest that it computes in: `engine.precision`, or what a layer of the model asks for."""
        asked = {self._request.config.engine.precision, *self._compute_dtypes()}
        return "bfloat16" if "bfloat16" in asked else "float32"

    def kept(self, slots: Mapping[str, Array]) -> dict[str, Array]:
        """Returns slots in the type in which a run keeps them."""
        return dict(slots)

    @abstractmethod
    def _compute_dtypes(self) -> Iterable[str | None]:
        """Yields the dtype that each layer computes in; None where it has none."""

    @abstractmethod
    def in_float64(self) -> AbstractContextManager[Reference]:
        """Returns a context that gives the same model computing in float64."""

    def _averaged(self, averages: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the new moving averages of the weights, from nothing those of the first update."""
        decay = self._request.config.optimizer.ema.decay
        if decay is None:
            return {}
        kept = np.float32(decay)
        found = {}
        for path, now in self.weights().items():
            found[ema_path(path)] = averages.get(ema_path(path), now) * kept + now * (1 - kept)
        return found

    def _slots(self) -> dict[str, Array]:
        return {
            slot_path(slot, path): value
            for slot, attribute in self._slot_attributes().items()
            for path, value in self.slots(attribute).items()
        }

    def _slot_attributes(self) -> Mapping[str, str]:
        config = self._request.config.optimizer
        # What the stock optimizers keep and the rules don't, as SGD's "momentum" without momentum, is not compared.
        kept = rules.make_rule(config, np).slots
        keras_slots = OPTIMIZERS[config.name].keras_slots
        return {slot: attribute for slot, attribute in keras_slots.items() if slot in kept}

    def _step_gradients(
        self, step: int, noise: float, rng: np.random.Generator, batches: HostBatches
    ) -> tuple[float, dict[str, Array]]:
        """Returns one batch's loss and gradients, at weights that are off by the noise; restores the weights."""
        terms = float(batches.weights[step].sum()) or 1.0
        share_b = (batches.arrays[WEIGHT][step] > 0).astype(np.float32) / terms
        kept = self.weights() if noise else {}
        if noise:
            self.assign(off_weights(kept, noise, rng))
            share_b = off(share_b, noise, rng)
        loss, found = self._summed_gradients(step, share_b.astype(np.float32), batches)
        if noise:
            self.assign(kept)
            found = shaken(found, noise, rng, self._sums)
        return loss, found

    def _few_gradients(self, step: int) -> dict[str, Array]:
        """Returns the gradients of the mean loss of a batch's first examples."""
        batches = self._request.batches
        count = self._request.config.trainer.accumulate_steps
        size = min(_FEW, batches.weights.shape[1] // count)
        batch = {name: array[step][:size] for name, array in batches.arrays.items()}
        share_b = (batch[WEIGHT] > 0).astype(np.float32) / size
        inputs = self._request.data.task.inputs(array_functions(np), batch)
        return self.gradients(inputs, batch, share_b.astype(np.float32), step * count, 1.0)[1]

    def _summed_gradients(self, step: int, share_b: Array, batches: HostBatches) -> tuple[float, dict[str, Array]]:
        """Returns one batch's loss and gradients, added up over the micro-batches that it is computed in."""
        count = self._request.config.trainer.accumulate_steps
        task = self._request.data.task
        host = array_functions(np)
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
        """Takes the initial weights, and the stock optimizer as it begins."""

    @abstractmethod
    def load(self, values: Mapping[str, Array], slots: Mapping[str, Array], step: int) -> None:
        """Takes a state.

        Args:
          values: of every variable, by canonical path.
          slots: by `runner.optim.paths.slot_path`; what is missing begins again.
          step: steps done before, of those that the first training has done.
        """

    @abstractmethod
    def constrain(self) -> None:
        """Applies the trainable variables' own constraints to them."""

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
          share: the micro-batch's part of the step, which regularization losses count with.
        """

    @abstractmethod
    def judged(self, inputs: Inputs, batch: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Returns each example's loss (B,) and the task's totals in an evaluation.

        Args:
          inputs: what the model takes.
          batch: arrays (B, ...) by name.
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

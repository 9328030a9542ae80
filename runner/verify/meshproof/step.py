"""Compares any training step on pytrees with a reference on one device.

Both take `(state, batch)` and return `(new_state, outputs)`. They train from the same state with the same batches, and
take a step from each of two points, states with randomly perturbed weights. The reference does it again with noise as
large as rounding, which gives the tolerances, see `meshproof.differences`.

Arrays of a run, by key: `initial/<leaf>`, `final/<leaf>`; of the first step `stepped/<leaf>`, what it changes, or
`gradient/<leaf>`, and `output/<output>`; `metric/<output>`, numbers by step; of point N `pointN/start/<leaf>`,
`pointN/end/<leaf>`, `pointN/output/<output>`, `pointN/evaluated/<output>`, one number, `pointN/gradient/<leaf>` and
`pointN/tiny/<leaf>`, those of terms that may cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import perturb, trees
from .by_path import are_finite, chosen, keyed, tiny
from .differences import MORE_SEEDS, SEEDS, Entry, less, spread
from .precision import longest_sum, lowest
from .rounding import Rounding, gradients_with_noise, rounding_of, weights_with_noise, with_noise
from .trees import Arrays, Place, Tree

Step = Callable[[Tree, Tree], tuple[Tree, Tree]]
Function = Callable[[Tree, Tree], Tree]
Noise = np.random.Generator | None
# Between the name of an evaluation's output and the number of its batch.
OF_BATCH = " of batch "
# Parts of a point: kind of the check, and place in the order of computation, between the first two steps.
_PARTS = {
    "start": ("start", 1.5),
    "evaluated": ("evaluation", 1.55),
    "output": ("output", 1.57),
    "gradient": ("point", 1.6),
    "tiny": ("tiny", 1.6),
}
_MAX_ERROR = 300
# Groups of a training's arrays in words.
_WHERE = {"initial": "in the given state", "stepped": "after step 1", "output": "in step 1", "metric": "in a step"}


@dataclass(frozen=True)
class Setup:
    """What both sides compute.

    Attributes:
      state: as the caller gave it.
      batches: at least one.
      steps: of training; 0: the step is an evaluation, which leaves the state alone.
      seed: of the points and of the noise.
    """

    state: Tree
    batches: Sequence[Tree]
    steps: int
    seed: int

    @cached_property
    def initial(self) -> Arrays:
        """The state's arrays on the host by path."""
        return trees.host(self.state, "state")

    @cached_property
    def host_batches(self) -> list[Arrays]:
        """The arrays of each batch on the host by path."""
        return [trees.host(batch, "batch") for batch in self.batches]

    def batch_of(self, step: int) -> int:
        """Returns which batch a step reads: where there are fewer, they are used in turn."""
        return step % len(self.batches)


@dataclass
class Side:
    """A step, and where its state and batches are placed.

    Attributes:
      name: for messages, `step` or `reference`.
      gradients: returns the gradients at `(state, batch)`; None: they are not compared.
      place: puts a state of NumPy arrays on the devices; None: where the caller's is, or on `device`.
      place_batch: the same of a batch.
      device: of the reference.
      merge: makes one array of the copies that devices have of it.
      unequal: leaves of which devices have different copies.
      devices: that arrays of the step have been on.
      is_sharded: one of them was not whole on each device.
    """

    setup: Setup
    name: str
    step: Step
    gradients: Function | None = None
    place: Place | None = None
    place_batch: Place | None = None
    device: jax.Device | None = None
    merge: np.ufunc = np.minimum
    unequal: dict[str, None] = field(default_factory=dict)
    devices: set[jax.Device] = field(default_factory=set)
    is_sharded: bool = False

    def placed(self, values: Mapping[str, Any]) -> Tree:
        """Returns a state of values on the host, in new buffers, which a step may donate."""
        if self.place is not None:
            return _put(self.place, trees.on_host(self.setup.state, values, "state"), "place")
        return trees.with_values(self.setup.state, values, "state", self.device)

    def batch(self, number: int, values: Mapping[str, Any] | None = None) -> Tree:
        """Returns a batch, of other values than its own where they are given."""
        batch = self.setup.batches[number]
        if values is None:
            values = self.setup.host_batches[number]
        if self.place_batch is not None:
            return _put(self.place_batch, trees.on_host(batch, values, "batch"), "place_batch")
        return trees.with_values(batch, values, "batch", self.device)

    def called(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        """Takes a step; returns the new state and the outputs.

        Raises:
          ValueError: the step fails, or does not return a state like the given one.
        """
        try:
            result = self.step(state, batch)
        except Exception as error:
            raise ValueError(f"the {self.name} fails on the given state and batch: {_described(error)}") from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise ValueError(f"the {self.name} returns {type(result).__name__}, not a pair (new_state, outputs)")
        problem = trees.difference_of(self.setup.state, result[0], "state")
        if problem:
            raise ValueError(f"the {self.name}'s new state {problem}; the next step could not take it")
        for leaf in jax.tree.leaves((batch, result)):
            if isinstance(leaf, jax.Array):
                self.devices |= leaf.sharding.device_set
                self.is_sharded |= not leaf.sharding.is_fully_replicated
        return result

    def _on_host(self, tree: Tree, name: str) -> Arrays:
        unequal = trees.unequal_copies(tree, name)
        self.unequal |= dict.fromkeys(unequal)
        return trees.host(tree, name, merge=self.merge if unequal else None, whole=name == "output")

    def load(self, values: Arrays) -> Any:
        """Returns what `take` begins with."""
        return self.placed(values)

    def take(self, state: Any, number: int, noise: Noise) -> tuple[Any, Arrays]:
        """Takes a step with a batch; returns the next state and the outputs."""
        del noise
        state, outputs = self.called(state, self.batch(number))
        return state, self._on_host(outputs, "output")

    def state_after(self, steps: int) -> Arrays:
        """Returns the state's arrays after some steps of training."""
        state = self.load(self.setup.initial)
        for step in range(steps):
            state, _ = self.take(state, self.setup.batch_of(step), None)
        return self.read(state)

    def inside(
        self, function: Function, values: Arrays, number: int, batch: Mapping[str, Any] | None = None
    ) -> Arrays:
        """Returns the values inside a step from there, in their order; `batch`: other values than the batch's own."""
        found = function(self.placed(values), self.batch(number, batch))
        return trees.comparable(trees.host(found, "value"))

    def read(self, state: Any) -> Arrays:
        """Returns copies of a state's arrays."""
        return self._on_host(state, "state")

    def gradients_at(self, values: Arrays, number: int, noise: Noise) -> tuple[Arrays, Arrays]:
        """Returns the gradients there, and those that may be what rounding leaves of terms that cancel."""
        del noise
        assert self.gradients is not None
        found = trees.host(self.gradients(self.placed(values), self.batch(number)), "state")
        return {trees.owner(path, self.setup.initial): value for path, value in found.items()}, {}

    def run(self, noise: Noise = None) -> Arrays:
        """Trains from the initial state, and returns the arrays of the training."""
        setup = self.setup
        state = self.load(setup.initial)
        arrays = keyed("initial", self.read(state))
        metrics: dict[str, list[Any]] = {}
        if self.gradients is not None and setup.steps:
            arrays |= keyed("gradient", self.gradients_at(setup.initial, 0, noise)[0])
        for step in range(setup.steps):
            state, outputs = self.take(state, setup.batch_of(step), noise)
            for path, value in outputs.items():
                if value.ndim == 0:
                    metrics.setdefault(path, []).append(value)
                elif not step:
                    arrays[f"output/{path}"] = value
            if not step:
                arrays |= keyed("stepped", _changes(setup.initial, self.read(state)))
        for path, values in metrics.items():
            numbers = np.asarray(values)
            arrays[f"metric/{path}"] = numbers.real
            if numbers.dtype.kind == "c":
                arrays[f"metric/{path}/imaginary"] = numbers.imag
        return trees.comparable(arrays | keyed("final", self.read(state)))

    def at(self, point: int, step: int, start: Arrays, noise: Noise = None) -> Arrays:
        """Returns the arrays of a step from a point; of an evaluation, those of every batch."""
        setup = self.setup
        arrays = keyed("start", start)
        numbers: Sequence[int] = range(len(setup.batches))
        if setup.steps:
            numbers = [setup.batch_of(step)]
        for number in numbers:
            state, outputs = self.take(self.load(start), number, noise)
            for path, value in outputs.items():
                group = "output"
                if value.ndim == 0 and value.dtype.kind != "c":
                    group = "evaluated"
                if not setup.steps:
                    path = f"{path}{OF_BATCH}{number}"
                arrays[f"{group}/{path}"] = np.atleast_1d(value)
        arrays |= keyed("end", self.read(state))
        if self.gradients is not None and setup.steps:
            gradients, remainders = self.gradients_at(start, numbers[0], noise)
            arrays |= keyed("gradient", gradients) | keyed("tiny", remainders)
        return trees.comparable(keyed(f"point{point}", arrays))

    def at_points(self, starts: Mapping[int, tuple[int, Arrays]], noise: Noise = None) -> Arrays:
        """Returns the arrays of a step from each point; `starts` has their steps and states by number."""
        arrays: Arrays = {}
        for number, (step, start) in starts.items():
            arrays |= self.at(number, step, start, noise)
        return arrays


class Reference(Side):
    """The side on one device, which is computed again with noise.

    Attributes:
      trained: float leaves that training moves, or the chosen ones.
      weights: the leaves that points move at random, and that perturbed runs add noise to.
      frozen: other leaves that are computed with and that stay as they are; perturbed runs add noise to them, too.
      terms: of the longest sum of a step.
      arrays: of its run without noise.
      spread: differences of its perturbed runs.
      starts: by number, the step and state of each point.
      points: arrays of the steps from there, without noise.
    """

    trained: Sequence[str]
    weights: Sequence[str]
    frozen: Sequence[str]
    terms: int
    rounding: Rounding
    arrays: Arrays
    spread: Arrays
    starts: dict[int, tuple[int, Arrays]]
    points: Arrays

    def prepare(self, parameters: trees.Select | None) -> None:
        """Trains without noise, and finds what is trained and the points.

        Raises:
          ValueError: as `check_training`; or `parameters` chooses nothing.
        """
        setup = self.setup
        arrays = self.run()
        changed = check_training(self, arrays)
        floats = [path for path, value in setup.initial.items() if trees.is_float(value)]
        moved = [path for path in floats if path in changed]
        self.trained = moved
        if parameters is not None:
            self.trained = trees.selected(floats, parameters)
        candidates = floats
        if setup.steps:
            candidates = self.trained
        self._traces = _traces(self)
        final = {path: arrays[f"final/{path}"] for path in setup.initial}
        stored = {path: final[path].astype(value.dtype) for path, value in setup.initial.items()}
        # At the end of the training: where it begins, nothing depends on what is multiplied by a weight of 0, as one
        # half of LoRA's kernels is by the other.
        read = _read_by_outputs(self, stored, compiled=bool(self._traces))
        self.weights = [path for path in candidates if path in read] or candidates
        self.frozen = [path for path in read if path not in changed and path not in self.weights]
        self._find_points(final, moved)
        self._training = arrays

    def perturb_for(self, step: Side) -> None:
        """Computes the runs with noise, unless they were for a step that rounds alike."""
        self.terms, rounding = self._rounding(step)
        if getattr(self, "rounding", None) == rounding:
            return
        self.rounding = rounding
        points = self.points
        if self.gradients is not None:
            # Gradients are found again: what is a remainder of rounding depends on it.
            points = self.at_points(self.starts)
        self.arrays = self.compared(self._training | points)
        self.spread = spread(self.arrays, map(self._perturbed, SEEDS), self.describe)

    def _rounding(self, step: Side) -> tuple[int, Rounding]:
        """Returns the terms of the longest sum, and the errors of the lower precision of both sides."""
        terms = max(map(np.size, self.setup.host_batches[0].values()), default=1)
        if self._traces:
            terms = longest_sum(self._traces[0])
        dtypes = {str(self.setup.initial[path].dtype) for path in self.weights}
        rounding = rounding_of(terms, lowest([*self._traces, *_traces(step)], dtypes), lowest([], dtypes))
        leaves = trees.named(self.setup.state, "state")
        products = tuple(path for path in self.weights if np.ndim(leaves[path]) > 1)
        return terms, replace(rounding, products=products)

    def _find_points(self, final: Arrays, moved: Sequence[str]) -> None:
        """Makes the points; one at which the reference is NaN or Inf is made closer, or left out."""
        self.starts = {}
        self.points = {}
        signed = {}
        others = {}
        for path in (*self.weights, *moved):
            # What is never negative, as a scale or a variance, stays so.
            if path in self.weights and ((final[path] < 0).any() or not final[path].any()):
                signed[path] = final[path]
            else:
                others[path] = final[path]
        for number, step in enumerate(perturb.steps(self.setup.steps)):
            for share in perturb.SHARES:
                rng = np.random.default_rng([self.setup.seed, number, step])
                start = final | perturb.weights(signed, share, rng) | perturb.slots(others, rng)
                for path, value in start.items():
                    start[path] = value.astype(self.setup.initial[path].dtype)
                arrays = self.at(number, step, start)
                if are_finite(arrays.values()):
                    self.starts[number] = step, start
                    self.points |= arrays
                    break

    def compared(self, arrays: Arrays) -> Arrays:
        """Returns the arrays that are compared: with gradients no changes, and else those of what is trained."""
        found = {}
        for key, value in arrays.items():
            group, _, path = key.partition("/")
            if group != "stepped" or (self.gradients is None and path in self.trained):
                found[key] = value
        return found

    def _noise(self, seed: int) -> np.random.Generator:
        return np.random.default_rng([self.setup.seed, seed])

    def _perturbed(self, seed: int) -> Arrays:
        noise = self._noise(seed)
        return self.run(noise) | self.at_points(self.starts, noise)

    def wider_spread(self) -> Arrays:
        """Returns the spread with that of more trainings with noise."""
        runs = map(self.run, map(self._noise, MORE_SEEDS))
        return spread(self.arrays, runs, self.describe, self.spread)

    def load(self, values: Arrays) -> Any:
        """Returns the values: each step is taken from the host."""
        return dict(values)

    def read(self, state: Any) -> Arrays:
        """Returns the values."""
        return dict(state)

    def take(self, state: Any, number: int, noise: Noise) -> tuple[Any, Arrays]:
        """Takes a step at weights with noise; its changes are those of the weights without."""
        batch = self.batch(number, self._noisy_numbers(self.setup.host_batches[number], noise))
        used = self._noisy_weights(state, noise)
        new_state, found = self.called(self.placed(used), batch)
        end = trees.host(new_state, "state", copied=False)
        outputs = trees.host(found, "output", whole=True)
        if noise is None:
            return end, outputs
        for path in self.weights:
            before = state[path]
            change = with_noise(less(end[path], used[path]), self.rounding.noise, noise)
            change += before
            end[path] = change.astype(before.dtype, copy=False)
        for path, value in outputs.items():
            if trees.is_float(value):
                outputs[path] = np.asarray(with_noise(value, self.rounding.noise, noise))
        return end, outputs

    def gradients_at(self, values: Arrays, number: int, noise: Noise) -> tuple[Arrays, Arrays]:
        """Returns the gradients at weights with noise, with noise, and those that may be a remainder."""
        gradients, _ = super().gradients_at(self._noisy_weights(values, noise), number, None)
        gradients = trees.comparable(gradients)
        if not hasattr(self, "rounding"):
            return gradients, {}
        remainders = tiny(gradients, self.rounding)
        if noise is not None:
            gradients = gradients_with_noise(gradients, self.rounding, noise)
        return gradients, remainders

    def inside_with_spread(self, function: Function, values: Arrays, number: int) -> tuple[Arrays, Arrays]:
        """Returns the values inside a step, and their differences under noise."""
        expected = self.inside(function, values, number)
        runs = []
        for noise in map(self._noise, SEEDS):
            batch = self._noisy_numbers(self.setup.host_batches[number], noise)
            runs.append(self.inside(function, self._noisy_weights(values, noise), number, batch))
        return expected, spread(expected, runs, lambda path: Entry("output", path, 0.0))

    def _noisy_weights(self, values: Arrays, noise: Noise) -> Arrays:
        if noise is None:
            return dict(values)
        numbers = self._noisy_numbers(chosen(values, self.frozen), noise)
        return values | weights_with_noise(chosen(values, self.weights), self.rounding.noise, noise) | numbers

    def _noisy_numbers(self, arrays: Arrays, noise: Noise) -> Arrays:
        """Returns arrays with noise on their numbers; labels, counts and masks that are stored as floats stay."""
        values = dict(arrays)
        for path, value in values.items():
            is_number = trees.is_float(value) and not np.isinf(value).any()
            if noise is not None and is_number and not np.array_equal(value, np.round(value)):
                values[path] = with_noise(value, self.rounding.noise, noise)
        return values

    def describe(self, key: str) -> Entry:
        """Returns what the array of a key is."""
        group, _, path = key.partition("/")
        if group == "initial":
            return Entry("initial", path, 0.0, exact=key)
        if group == "metric":
            return Entry("loss", "", 1.0)
        if group == "output":
            return Entry("output", f"outputs/{path}", 1.2)
        if group in ("gradient", "stepped"):
            return Entry(group, path, 1.5)
        if group == "final":
            kind = "parameter" if path in self.weights else "statistic"
            step = self.setup.steps + 0.5
            return Entry(kind, path, step, f"initial/{path}", is_stored=True, is_sum=self._is_sum(path))
        part, _, path = path.partition("/")
        if part == "end":
            before = f"{group}/start/{path}"
            return Entry("update", path, 1.7, before, is_stored=True, is_sum=self._is_sum(path))
        kind, step = _PARTS[part]
        if part in ("evaluated", "output"):
            path = f"outputs/{path}"
        key_of_tiny = ""
        if part == "gradient":
            key_of_tiny = f"{group}/tiny/{path}"
        return Entry(kind, path, step, one_sided=part in ("start", "tiny"), tiny=key_of_tiny)

    def _is_sum(self, path: str) -> bool:
        """Returns whether a leaf is what no gradient changes; integers are exact."""
        return path not in self.weights and trees.is_float(self.setup.initial[path])


def _changes(before: Arrays, after: Arrays) -> Arrays:
    """Returns what a step changes of each float leaf."""
    changes = {}
    for path, value in before.items():
        if trees.is_float(value):
            changes[path] = less(after[path], value).astype(np.float32)
    return changes


def check_training(side: Side, arrays: Arrays) -> list[str]:
    """Returns the leaves that a training moves.

    Raises:
      ValueError: one of them, or an output, is NaN or Inf, or no float moves.
    """
    setup = side.setup
    moved = []
    for path in setup.initial:
        if not np.array_equal(arrays[f"initial/{path}"], arrays[f"final/{path}"], equal_nan=True):
            moved.append(path)
    if setup.steps and not any(map(trees.is_float, chosen(setup.initial, moved).values())):
        raise ValueError(
            f"no float leaf of the state moves in {setup.steps} steps of the {side.name}; return the new state, or "
            "pass steps=0 if the step is an evaluation"
        )
    for key, value in arrays.items():
        group, _, path = key.partition("/")
        is_constant = group in ("initial", "final") and path not in moved
        if not is_constant and value.dtype.kind == "f" and not np.isfinite(value).all():
            place = _WHERE.get(group, "after the last step")
            raise ValueError(f"the {side.name}'s {path} is NaN or Inf {place}; nothing can be compared with that")
    return moved


def outputs_of(side: Side) -> Arrays:
    """Returns the outputs of the first step.

    Raises:
      ValueError: the step fails, or another call with the same state and batch returns other bits.
    """
    state, outputs = side.take(side.load(side.setup.initial), 0, None)
    state_again, outputs_again = side.take(side.load(side.setup.initial), 0, None)
    for one, other in ((side.read(state), side.read(state_again)), (outputs, outputs_again)):
        for path, value in one.items():
            if not np.array_equal(value, other[path], equal_nan=value.dtype.kind == "f"):
                raise ValueError(
                    f"the {side.name} is not deterministic: two calls with the same state and batch differ in {path}; "
                    "keep its random keys in the state"
                )
    return outputs


def _put(place: Place, tree: Tree, name: str) -> Tree:
    try:
        return place(tree)
    except Exception as error:
        raise ValueError(f"{name} fails: {_described(error)}") from error


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_MAX_ERROR]}"


def _functional(side: Side, values: Arrays) -> tuple[Callable[[dict[int, Any]], Any], dict[int, Any]]:
    """Returns a step as a function of arrays alone, and these for a state of values: the state's come first.

    They go by their places among all leaves of the state and the batch.
    """
    leaves, structure = jax.tree.flatten((side.placed(values), side.batch(0)))

    def function(arrays: dict[int, Any]) -> Any:
        filled = [arrays.get(place, leaf) for place, leaf in enumerate(leaves)]
        return side.step(*jax.tree.unflatten(structure, filled))

    return function, {place: leaf for place, leaf in enumerate(leaves) if trees.is_array(leaf)}


def _traces(side: Side) -> list[Any]:
    """Returns the trace of a step; none: it is no function that JAX can trace."""
    function, arrays = _functional(side, side.setup.initial)
    try:
        return [jax.make_jaxpr(function)(arrays).jaxpr]
    except Exception:
        return []  # a step of Python numbers, say; its sums are guessed from the batch


def _read_by_outputs(side: Side, values: Arrays, *, compiled: bool) -> list[str]:
    """Returns the leaves on which the outputs depend at a state of values: weights, and not an optimizer's slots.

    Empty if JAX can't differentiate the outputs.
    """
    function, arrays = _functional(side, values)
    floats = {}
    for place, array in arrays.items():
        if not trees.is_key(array) and jnp.issubdtype(np.asarray(array).dtype, np.inexact):
            floats[place] = array

    def total(values: dict[int, Any]) -> Any:
        outputs = jax.tree.leaves(function(arrays | values)[1])
        return sum(jnp.sum(output).real for output in outputs if jnp.issubdtype(output.dtype, np.inexact))

    gradient = jax.grad(total)
    if compiled:
        # One program without the new state takes half as long to compile as those of a step's parts.
        gradient = jax.jit(gradient)
    try:
        gradients = gradient(floats)
    except Exception:
        return []
    found = []
    for place, path in enumerate(trees.named(side.setup.state, "state")):
        if place in gradients and np.asarray(gradients[place]).any():
            found.append(path)
    return found

"""Ways to break gradients, updates and batches. See `tests.campaign.mutations_table`.

Each is called as `way(hooks, path)`, with the variable that it is aimed at, where it is at one.
Shapes: B examples of a micro-batch, K steps a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from runner import arrays
from runner.data.base import WEIGHT, Array
from runner.engine import calls
from runner.engine.base import HostBatches
from runner.optim import rules
from tests.campaign.mutations_hooks import Gradients, Hooks, Moment, Rule, Tensor, Updated, Way, first_half

# Gradients ------------------------------------------------------------------------------------------------------


def rows(weight: Callable[[Hooks, int], Array]) -> Way:
    """Weighs the examples in the gradient alone: (hooks, B) -> (B,)."""

    def way(hooks: Hooks, _: str) -> None:
        def change(sound: Callable[..., Tensor], task: Any, ops: Any, outputs: Tensor, batch: Any) -> Tensor:
            loss_b = sound(task, ops, outputs, batch)
            w = weight(hooks, int(loss_b.shape[0])).astype(np.float32)
            return loss_b * w + ops.stop_gradient(loss_b * (1.0 - w))

        hooks.losses(change)

    return way


def first_device(hooks: Hooks, size: int) -> Array:
    return (np.arange(size) < size // hooks.parts).astype(np.float32)


def one_row(factor: float) -> Callable[[Hooks, int], Array]:
    return lambda _, size: np.where(np.arange(size) == min(2, size - 1), factor, 1.0)


def of_gradients(change: Callable[[Hooks, str, Gradients], Gradients]) -> Way:
    return lambda hooks, path: hooks.gradients(lambda found, _: change(hooks, path, list(found)))


def exchanged(hooks: Hooks, path: str, found: Gradients) -> Gradients:
    """Gives a variable the gradient of another one of its shape, and the other way round."""
    one = hooks.paths.index(path)
    shapes = [hooks.ops.shape(each) for each in found]
    other = next(index for index, shape in enumerate(shapes) if shape == shapes[one] and index != one)
    found[one], found[other] = found[other], found[one]
    return found


def turned(change: Callable[[Hooks, Tensor], Tensor]) -> Callable[[Hooks, str, Gradients], Gradients]:
    def way(hooks: Hooks, path: str, found: Gradients) -> Gradients:
        index = hooks.paths.index(path)
        found[index] = change(hooks, found[index])
        return found

    return way


def halves_exchanged(hooks: Hooks, g: Tensor) -> Tensor:
    """Puts the shards of two devices, rows of a matrix, in the place of each other."""
    size = int(g.shape[0])
    order = np.roll(np.eye(size, dtype=np.float32), size // 2, 0)
    return hooks.ops.matmul(order, g)


def clipped(hooks: Hooks, _: str, found: Gradients) -> Gradients:
    """Clips each micro-batch's gradients, and the sum again."""
    limit = hooks.config.optimizer.clip.global_norm or 1.0
    ops = hooks.ops
    norm = ops.sqrt(sum(ops.sum(ops.square(g)) for g in found))
    return [g * (limit / ops.maximum(norm, limit)) for g in found]


def rounded(hooks: Hooks, _: str, found: Gradients) -> Gradients:
    return [hooks.ops.cast(hooks.ops.cast(g, "bfloat16"), "float32") for g in found]


# Micro-batches --------------------------------------------------------------------------------------------------


def summed(change: Callable[[Hooks, Tensor, Tensor, Tensor], Tensor]) -> Way:
    """Changes what a micro-batch adds: (hooks, gradient, sum so far, float32 number of it) -> gradient."""

    def way(hooks: Hooks, _: str) -> None:
        hooks.sums(lambda gs, sums, index: [change(hooks, g, s, index) for g, s in zip(gs, sums, strict=True)])

    return way


def is_first(hooks: Hooks, index: Tensor) -> Tensor:
    return hooks.ops.cast(hooks.ops.less(index, 0.5), "float32")


# Updates --------------------------------------------------------------------------------------------------------


def updated(change: Callable[[Hooks, Moment, Rule], Updated], *, of_all: bool = False) -> Way:
    """Changes the update of the variable aimed at, or of every one."""

    def way(hooks: Hooks, path: str) -> None:
        hooks.updates(
            lambda moment, rule: change(hooks, moment, rule) if of_all or moment.path == path else rule(moment)
        )

    return way


def lost(_: Hooks, moment: Moment, rule: Rule) -> Updated:
    return moment.w, rule(moment)[1]


def shard_lost(hooks: Hooks, moment: Moment, rule: Rule) -> Updated:
    weight, slots = rule(moment)
    return moment.w + (weight - moment.w) * first_half(hooks.ops.shape(moment.w)), slots


def shard_transposed(hooks: Hooks, moment: Moment, rule: Rule) -> Updated:
    weight, slots = rule(moment)
    return moment.w + hooks.ops.transpose(weight - moment.w), slots


def not_written(*names: str) -> Callable[[Hooks, Moment, Rule], Updated]:
    def change(_: Hooks, moment: Moment, rule: Rule) -> Updated:
        weight, slots = rule(moment)
        return weight, {**slots, **{name: moment.slots[name] for name in names or slots}}

    return change


def stale(hooks: Hooks, moment: Moment, rule: Rule) -> Updated:
    """Updates the weight by the moments of the step before, and then writes the new ones."""
    _, slots = rule(moment)
    config = hooks.config.optimizer
    if config.name == "sgd":
        return moment.w + moment.slots["momentum"], slots
    apply = rules.make_rule(config, hooks.module).apply
    assert apply is not None
    return apply(
        moment.w * (1.0 - (config.weight_decay or 0.0) * moment.rate), moment.slots, moment.rate, moment.step
    ), slots


def next_step(_: Hooks, moment: Moment, rule: Rule) -> Updated:
    return rule(replace(moment, step=moment.step + 1.0))


def not_decayed(hooks: Hooks, moment: Moment, rule: Rule) -> Updated:
    weight, slots = rule(moment)
    return weight + moment.w * ((hooks.config.optimizer.weight_decay or 0.0) * moment.rate), slots


def decayed_by_rate_twice(hooks: Hooks, moment: Moment, rule: Rule) -> Updated:
    weight, slots = not_decayed(hooks, moment, rule)
    return weight - moment.w * ((hooks.config.optimizer.weight_decay or 0.0) * moment.rate * moment.rate), slots


def decayed_in_the_gradient(hooks: Hooks, moment: Moment, rule: Rule) -> Updated:
    decay = hooks.config.optimizer.weight_decay or 0.0
    return not_decayed(hooks, replace(moment, g=moment.g + moment.w * decay), rule)


def epsilon_in_the_root(hooks: Hooks, moment: Moment, rule: Rule) -> Updated:
    config, ops = hooks.config.optimizer, hooks.ops
    _, slots = rule(moment)
    b1, b2, epsilon = (float(each or 0) for each in (config.beta_1, config.beta_2, config.epsilon))
    power = arrays.of(hooks.module).power
    alpha = moment.rate * ops.sqrt(1 - power(b2, moment.step)) / (1 - power(b1, moment.step))
    weight = moment.w * (1.0 - (config.weight_decay or 0.0) * moment.rate)
    return weight - slots["m"] * alpha / ops.sqrt(slots["v"] + epsilon), slots


def not_centered(hooks: Hooks, moment: Moment, rule: Rule) -> Updated:
    config, ops = hooks.config.optimizer, hooks.ops
    _, slots = rule(moment)
    change = moment.g * moment.rate / ops.sqrt(slots["velocity"] + float(config.epsilon or 0))
    momentum = moment.slots["momentum"] * float(config.momentum or 0) + change
    return moment.w - momentum, {**slots, "momentum": momentum}


def dampened(hooks: Hooks, moment: Moment, rule: Rule) -> Updated:
    return rule(replace(moment, g=moment.g * (1.0 - float(hooks.config.optimizer.momentum or 0))))


def ruled(**values: Callable[[Any], object]) -> Way:
    """Makes the rule of other numbers: of each key, (number of the config) -> another one."""

    def way(hooks: Hooks, _: str) -> None:
        hooks.rule_config(**{key: make(getattr(hooks.config.optimizer, key)) for key, make in values.items()})

    return way


def rated(change: Callable[..., Tensor]) -> Way:
    """Replaces the schedule: (sound, config, step, total steps, *ops) -> rate."""
    return lambda hooks, _: hooks.rates(change)


def other_schedule(**values: object) -> Way:
    return rated(
        lambda sound, config, *given: sound(replace(config, schedule=replace(config.schedule, **values)), *given)
    )


def averaged(change: Callable[..., Tensor]) -> Way:
    """Replaces the average: (sound, decay, old, weight, step, ops) -> new."""
    return lambda hooks, _: hooks.averages(change)


def clips(change: Callable[..., Gradients]) -> Way:
    """Replaces the clipping: (sound, config, gradients, ops) -> gradients."""
    return lambda hooks, _: hooks.clips(change)


def by_half_the_norm(hooks: Hooks, _: str) -> None:
    """Clips by the norm of what the first of two devices holds."""

    def change(__: object, config: Any, gradients: Gradients, ___: object) -> Gradients:
        ops, limit = hooks.ops, config.global_norm
        norm = ops.sqrt(sum(ops.sum(ops.square(g) * first_half(ops.shape(g))) for g in gradients))
        return [g * (limit / ops.maximum(norm, limit)) for g in gradients]

    hooks.clips(change)


def constraint_skipped(hooks: Hooks, _: str) -> None:
    hooks.constraints(lambda _, weight, __: weight)


def _held(hooks: Hooks, w: Tensor, most: float, axis: int) -> Tensor:
    norm = hooks.ops.sqrt(hooks.ops.sum(hooks.ops.square(w), axis=axis, keepdims=True))
    return w * (hooks.ops.minimum(norm, most) / (1e-7 + norm))


def constraint_along_the_wrong_axis(hooks: Hooks, path: str) -> None:
    """Holds the rows of a matrix to the norm that its columns are to have."""
    hooks.constraints(lambda name, w, sound: _held(hooks, w, 0.5, 1) if name == path else sound(w))


def constraint_before_the_update(hooks: Hooks, path: str) -> None:
    def change(moment: Moment, rule: Rule) -> Updated:
        return rule(replace(moment, w=_held(hooks, moment.w, 0.5, 0))) if moment.path == path else rule(moment)

    hooks.updates(change)
    hooks.constraints(lambda name, w, sound: w if name == path else sound(w))


def read_a_step_late(hooks: Hooks, path: str) -> None:
    """The model reads what a weight was before the last update; momentum keeps the difference."""
    hooks.reads(lambda name, value, slots: value - slots["momentum"] if name == path else value)


# Batches --------------------------------------------------------------------------------------------------------


def batched(change: Callable[[Hooks, dict[str, Array], HostBatches], None]) -> Way:
    """Changes copies of the arrays (K, B, ...) by name."""

    def way(hooks: Hooks, _: str) -> None:
        def copied(batches: HostBatches) -> HostBatches:
            arrays = {name: np.array(array) for name, array in batches.arrays.items()}
            change(hooks, arrays, batches)
            return HostBatches(arrays, batches.weights, batches.steps)

        hooks.batches(copied)

    return way


def row_twice(_: Hooks, arrays: dict[str, Array], __: HostBatches) -> None:
    for name, array in arrays.items():
        if name != WEIGHT:
            array[:, 1] = array[:, 0]


def row_dropped(_: Hooks, arrays: dict[str, Array], __: HostBatches) -> None:
    arrays[WEIGHT][:, 1] = 0.0


def last_device_dropped(hooks: Hooks, arrays: dict[str, Array], __: HostBatches) -> None:
    arrays[WEIGHT][:, -(arrays[WEIGHT].shape[1] // hooks.parts) :] = 0.0


def padding_kept(_: Hooks, arrays: dict[str, Array], __: HostBatches) -> None:
    arrays[WEIGHT][:] = 1.0


def labels_of_the_next(_: Hooks, arrays: dict[str, Array], __: HostBatches) -> None:
    arrays["label"][:] = np.roll(arrays["label"], 1, axis=1)


def steps_reversed(_: Hooks, arrays: dict[str, Array], batches: HostBatches) -> None:
    for array in arrays.values():
        array[: batches.steps] = array[: batches.steps][::-1].copy()


def last_step_lost(_: Hooks, arrays: dict[str, Array], batches: HostBatches) -> None:
    for array in arrays.values():
        array[batches.steps - 1] = array[0]


def microbatches_exchanged(hooks: Hooks, arrays: dict[str, Array], batches: HostBatches) -> None:
    size = batches.weights.shape[1] // hooks.microbatches
    for name, array in arrays.items():
        arrays[name] = np.roll(array, size, axis=1)


def counted(change: Callable[[Array, int], Array]) -> Way:
    """Replaces what each micro-batch's step counts for: (weights (K, B), M) -> (K M,)."""

    def way(hooks: Hooks, _: str) -> None:
        hooks.patches.everywhere(
            calls.example_counts, lambda weights, parts: change(weights, parts).astype(np.float32)
        )

    return way


def by_microbatch(weights: Array, parts: int) -> Array:
    return np.maximum(weights.reshape(len(weights) * parts, -1).sum(1), 1.0) * parts


def no_steps_before(hooks: Hooks, _: str) -> None:
    hooks.first_steps(lambda __: 0)


def another_seed(hooks: Hooks, _: str) -> None:
    hooks.seeds(lambda seed: seed + 1)


def inputs_exchanged(hooks: Hooks, _: str) -> None:
    hooks.inputs(lambda __, taken: {**taken, "left": taken["right"], "right": taken["left"]})


def image_darker(hooks: Hooks, _: str) -> None:
    """Divides bytes by 256 in the place of 255."""

    def change(__: object, taken: Any) -> Any:
        if isinstance(taken, Mapping):
            return {**taken, "image": taken["image"] * (255.0 / 256.0)}
        return taken * (255.0 / 256.0)

    hooks.inputs(change)

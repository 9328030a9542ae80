"""Ways to break gradients, updates, batches, losses and layers. See `tests.campaign.mutations_table`.

Each is called as `way(hooks, path)`, with the variable that it is aimed at, where it is at one.
Shapes: B examples of a micro-batch, K steps a call.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from runner.data.base import WEIGHT, Array
from runner.engine import calls
from runner.engine.base import HostBatches, StepMetrics
from runner.engine.optim import groups, norms, rules
from runner.model import scope
from runner.task.base import LOSS
from tests.campaign.mutations_hooks import Gradients, Hooks, Moment, Rule, Tensor, Updated, Way, first_half

Call = Callable[..., Tensor]


# Gradients -----------------------------------------------------------------------------------------------------------


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


@of_gradients
def exchanged(hooks: Hooks, path: str, found: Gradients) -> Gradients:
    """Gives a variable the gradient of another one of its shape, and the other way round."""
    one = hooks.paths.index(path)
    shapes = [hooks.ops.shape(each) for each in found]
    other = next(index for index, shape in enumerate(shapes) if shape == shapes[one] and index != one)
    found[one], found[other] = found[other], found[one]
    return found


def turned(change: Callable[[Hooks, Tensor], Tensor]) -> Way:
    """Changes the gradient of the variable aimed at."""

    @of_gradients
    def way(hooks: Hooks, path: str, found: Gradients) -> Gradients:
        index = hooks.paths.index(path)
        found[index] = change(hooks, found[index])
        return found

    return way


def half_lost(hooks: Hooks, g: Tensor) -> Tensor:
    return g * first_half(hooks.ops.shape(g))


def halves_exchanged(hooks: Hooks, g: Tensor) -> Tensor:
    """Puts the shards of two devices, rows of a matrix, in the place of each other."""
    size = int(g.shape[0])
    order = np.roll(np.eye(size, dtype=np.float32), size // 2, 0)
    return hooks.ops.matmul(order, g)


@of_gradients
def clipped(hooks: Hooks, _: str, found: Gradients) -> Gradients:
    """Clips each micro-batch's gradients, and the sum again."""
    limit = hooks.config.optimizer.clip.global_norm or 1.0
    ops = hooks.ops
    norm = ops.sqrt(sum(ops.sum(ops.square(g)) for g in found))
    return [g * (limit / ops.maximum(norm, limit)) for g in found]


@of_gradients
def rounded(hooks: Hooks, _: str, found: Gradients) -> Gradients:
    return [hooks.ops.cast(hooks.ops.cast(g, "bfloat16"), "float32") for g in found]


# Micro-batches -------------------------------------------------------------------------------------------------------


def summed(change: Callable[[Hooks, Tensor, Tensor, Tensor], Tensor]) -> Way:
    """Changes what a micro-batch adds: (hooks, gradient, sum so far, float32 number of it) -> gradient."""

    def way(hooks: Hooks, _: str) -> None:
        hooks.sums(lambda gs, sums, index: [change(hooks, g, s, index) for g, s in zip(gs, sums, strict=True)])

    return way


def is_first(hooks: Hooks, index: Tensor) -> Tensor:
    return hooks.ops.cast(hooks.ops.less(index, 0.5), "float32")


# Updates -------------------------------------------------------------------------------------------------------------


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


def decayed_in_the_gradient(hooks: Hooks, moment: Moment, rule: Rule) -> Updated:
    decay = hooks.config.optimizer.weight_decay or 0.0
    return not_decayed(hooks, replace(moment, g=moment.g + moment.w * decay), rule)


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


def constraint_along_the_wrong_axis(hooks: Hooks, path: str) -> None:
    """Holds the rows of a matrix to the norm that its columns are to have."""

    def held(w: Tensor) -> Tensor:
        norm = hooks.ops.sqrt(hooks.ops.sum(hooks.ops.square(w), axis=1, keepdims=True))
        return w * (hooks.ops.minimum(norm, 0.5) / (1e-7 + norm))

    hooks.constraints(lambda name, w, sound: held(w) if name == path else sound(w))


# Batches -------------------------------------------------------------------------------------------------------------


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


def image_darker(hooks: Hooks, _: str) -> None:
    """Divides bytes by 256 in the place of 255."""
    hooks.inputs(lambda _, taken: taken * (255.0 / 256.0))


# Losses --------------------------------------------------------------------------------------------------------------


def class_weights_skipped(hooks: Hooks, _: str) -> None:
    def change(sound: Callable[..., Tensor], task: Any, *given: Any) -> Tensor:
        before, task._weights = task._weights, None
        try:
            return sound(task, *given)
        finally:
            task._weights = before

    hooks.losses(change)


def loss_times(factor: float) -> Way:
    return lambda hooks, _: hooks.losses(lambda sound, *given: sound(*given) * factor)


def loss_told_wrong(hooks: Hooks, _: str) -> None:
    def make(sound: Callable[[Any], StepMetrics]) -> Callable[[Any], StepMetrics]:
        def read(pending: Any) -> StepMetrics:
            found = sound(pending)
            return replace(found, sums={**found.sums, LOSS: found.sums[LOSS] * 1.01})

        return read

    hooks.patches.wrap(calls.PendingCall, "read", make)


def regularized(factor: float) -> Way:
    return lambda hooks, _: hooks.sets("Dense", "l2", lambda now: now * factor, of="kernel_regularizer")


# Layers --------------------------------------------------------------------------------------------------------------


def layered(kind: str, make: Callable[[Hooks, Any, Call], Call]) -> Way:
    return lambda hooks, _: hooks.calls(kind, lambda layer, sound: make(hooks, layer, sound))


def momentum(value: Callable[[float], float]) -> Way:
    """Gives the statistics of batches another momentum: value of now -> another one."""
    return lambda hooks, _: hooks.sets("BatchNormalization", "momentum", value)


def epsilon(kind: str) -> Way:
    return lambda hooks, _: hooks.sets(kind, "epsilon", lambda now: 100 * now)


def without_training(_: Hooks, __: object, sound: Call) -> Call:
    def call(x: Tensor, training: bool | None = None, **named: object) -> Tensor:
        del training
        return sound(x, training=False, **named)

    return call


def mask_of(moved: Callable[[Tensor], Tensor]) -> Callable[[Hooks, Any, Call], Call]:
    """Draws masks of another step, (step) -> another one; each begins to count the draws again."""

    def make(_: Hooks, layer: Any, sound: Call) -> Call:
        def of_scope(x: Tensor, training: bool | None = None) -> Tensor:
            held = scope.current()
            if held is None or held.step is None:
                return sound(x, training=training)
            with scope.enter(replace(held, step=moved(held.step))):
                return sound(x, training=training)

        def of_generator(x: Tensor, training: bool | None = None) -> Tensor:
            state = layer.seed_generator.state
            before = state.value
            state.assign([before[0], moved(before[1])])
            y = sound(x, training=training)
            state.assign(before)
            return y

        return of_generator if hasattr(layer, "seed_generator") else of_scope

    return make


def same(step: Tensor) -> Tensor:
    return step


def first_step(step: Tensor) -> Tensor:
    return step * 0


def of_first_device(hooks: Hooks, x: Tensor) -> Tensor:
    """Returns the examples of the first device, once for each device."""
    shape, parts = hooks.ops.shape(x), hooks.parts
    first = np.zeros((parts, *[1] * len(shape)), np.float32)
    first[0] = 1.0
    cut = hooks.ops.reshape(x, (parts, shape[0] // parts, *shape[1:]))
    own = hooks.ops.sum(cut * first, axis=0, keepdims=True)
    return hooks.ops.reshape(own * np.ones_like(first), shape)


def mask_of_first_device(hooks: Hooks, _: object, sound: Call) -> Call:
    def call(x: Tensor, training: bool | None = None) -> Tensor:
        if not training or int(x.shape[0]) % hooks.parts:
            return sound(x, training=training)
        return x * of_first_device(hooks, sound(hooks.ops.ones_like(x), training=training))

    return call


def _moments(hooks: Hooks, x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    mean = hooks.ops.mean(x, axis=axes, keepdims=True)
    return mean, hooks.ops.mean(hooks.ops.square(x - mean), axis=axes, keepdims=True)


def _normalized(hooks: Hooks, layer: Any, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    y = (x - mean) / hooks.ops.sqrt(variance + layer.epsilon)
    y = y * (layer.gamma * 1.0) if layer.scale else y
    return y + layer.beta * 1.0 if layer.center else y


def batch_normalized(
    moments: Callable[[Hooks, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None,
    statistics: Callable[[Hooks, Tensor], Tensor] | None = None,
) -> Way:
    """Normalizes by other moments, or keeps statistics of another input.

    Args:
      moments: (hooks, input) -> the input in a form that mean and variance fit, and those.
      statistics: (hooks, input) -> what the moving statistics are taken of.
    """

    def make(hooks: Hooks, layer: Any, sound: Call) -> Call:
        def call(x: Tensor, training: bool | None = None, mask: object = None) -> Tensor:
            del mask
            if not training or int(x.shape[0]) % hooks.parts:
                return sound(x, training=training)
            sound(x if statistics is None else statistics(hooks, x), training=True)
            axes = tuple(range(len(x.shape) - 1))
            form, mean, variance = (x, *_moments(hooks, x, axes)) if moments is None else moments(hooks, x)
            return hooks.ops.reshape(_normalized(hooks, layer, form, mean, variance), hooks.ops.shape(x))

        return call

    return layered("BatchNormalization", make)


def by_device(hooks: Hooks, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Moments of each device's own examples."""
    shape = hooks.ops.shape(x)
    cut = hooks.ops.reshape(x, (hooks.parts, shape[0] // hooks.parts, *shape[1:]))
    return (cut, *_moments(hooks, cut, tuple(range(1, len(shape)))))


def as_constants(hooks: Hooks, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Moments through which no gradient goes."""
    mean, variance = _moments(hooks, x, tuple(range(len(x.shape) - 1)))
    return x, hooks.ops.stop_gradient(mean), hooks.ops.stop_gradient(variance)


def along_the_last_dim(hooks: Hooks, layer: Any, sound: Call) -> Call:
    """Layer normalization along dim 1, scaled and shifted along the last one."""

    def call(x: Tensor) -> Tensor:
        axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
        if axes != [1]:
            return sound(x)
        return _normalized(hooks, layer, x, *_moments(hooks, x, (1,)))

    return call


def leaky_relu(hooks: Hooks, _: str) -> None:
    def value(now: Any) -> Any:
        is_relu = getattr(now, "__name__", "") == "relu"
        return (lambda x: hooks.ops.maximum(x, 0.01 * x)) if is_relu else now

    hooks.sets("Dense", "activation", value)


# Norms and groups ----------------------------------------------------------------------------------------------------


def logged_norm_of_one_shard(hooks: Hooks, _: str) -> None:
    def change(gradients: Gradients, xp: Any) -> Tensor:
        halves = [g * first_half(hooks.ops.shape(g)) for g in gradients]
        return sound(halves, xp)

    sound = norms.norm
    hooks.patches.everywhere(sound, change)


def grouped(**values: Callable[[Any], object]) -> Way:
    """Gives the variable aimed at other settings than its groups': of each, (value) -> another one."""

    def way(hooks: Hooks, path: str) -> None:
        def change(name: str, own: groups.Settings) -> groups.Settings:
            if name != path:
                return own
            return replace(own, **{key: make(getattr(own, key)) for key, make in values.items()})  # type: ignore[arg-type]

        hooks.settings(change)

    return way

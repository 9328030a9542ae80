"""Ways to break losses and layers. See `tests.campaign.mutations_table`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from runner.engine import calls
from runner.engine.base import StepMetrics
from runner.model import scope
from runner.task.base import LOSS
from runner.task.per_position import PerPosition
from runner.task.positions import Positions
from runner.task.several import Several
from tests.campaign.mutations_hooks import Hooks, Tensor, Way
from tests.campaign.networks import IGNORED

# Losses ---------------------------------------------------------------------------------------------------------


def loss_with(**values: object) -> Way:
    """Takes the loss with other attributes of the task."""

    def way(hooks: Hooks, _: str) -> None:
        def change(sound: Callable[..., Tensor], task: Any, *given: Any) -> Tensor:
            before = {name: vars(task)[name] for name in values}
            vars(task).update(values)
            try:
                return sound(task, *given)
            finally:
                vars(task).update(before)

        hooks.losses(change)

    return way


def not_smoothed(hooks: Hooks, _: str) -> None:
    def change(sound: Callable[..., Tensor], task: Any, *given: Any) -> Tensor:
        before = task._options
        task._options = replace(before, label_smoothing=0.0)
        try:
            return sound(task, *given)
        finally:
            task._options = before

    hooks.losses(change)


def loss_weight_dropped(hooks: Hooks, _: str) -> None:
    def make(sound: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def loss(task: Any, *given: Any) -> Tensor:
            before = task.loss_weights
            task.loss_weights = dict.fromkeys(before, 1.0)
            try:
                return sound(task, *given)
            finally:
                task.loss_weights = before

        return loss

    hooks.patches.wrap(Several, "loss", make)


def labels_by_examples(hooks: Hooks, _: str) -> None:
    """Divides the losses of an output's labels by the number of places, whichever of them count."""

    def make(sound: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def share(task: Any, ops: Any, name: str, batch: Any) -> Tensor:
            if name in task._fixed_terms:
                return sound(task, ops, name, batch)
            return 1.0 / task.tasks[name].tokens

        return share

    hooks.patches.wrap(Several, "_share", make)


def ignored_counted(hooks: Hooks, _: str) -> None:
    def every_label(*_: object) -> None:
        """Says that every position has a label."""

    hooks.patches.put(Positions, "is_counted", every_label)


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


def regularized_by_each_device(hooks: Hooks, _: str) -> None:
    hooks.sets("Dense", "l2", lambda now: now * hooks.parts, of="kernel_regularizer")


def _counted(ops: Any, batch: Any) -> Any:
    """Returns a batch whose labels that are not counted are the first class."""
    label = batch["label"]
    return {**batch, "label": ops.where(ops.equal(label, IGNORED), ops.zeros_like(label), label)}


def ignored_in_the_loss(hooks: Hooks, _: str) -> None:
    hooks.losses(lambda sound, task, ops, outputs, batch: sound(task, ops, outputs, _counted(ops, batch)))


def ignored_in_the_metrics(hooks: Hooks, _: str) -> None:
    def make(sound: Callable[..., Any]) -> Callable[..., Any]:
        return lambda task, ops, outputs, batch: sound(task, ops, outputs, _counted(ops, batch))

    hooks.patches.wrap(Positions, "totals", make)


def ignored_in_the_count(hooks: Hooks, _: str) -> None:
    """Divides the loss by the number of all positions."""

    def make(sound: Callable[..., Any]) -> Callable[..., Any]:
        def weights(task: Any, batch: Any) -> Any:
            return sound(task, {**batch, "label": np.zeros_like(batch["label"])})

        return weights

    hooks.patches.wrap(PerPosition, "weights", make)


# Layers ---------------------------------------------------------------------------------------------------------

Call = Callable[..., Tensor]


def layered(kind: str, make: Callable[[Hooks, Any, Call], Call]) -> Way:
    return lambda hooks, _: hooks.calls(kind, lambda layer, sound: make(hooks, layer, sound))


def attribute(kind: str, name: str, value: Callable[[Any], Any]) -> Way:
    return lambda hooks, _: hooks.sets(kind, name, value)


def epsilon(kind: str) -> Way:
    return attribute(kind, "epsilon", lambda now: 100 * now)


def without_training(_: Hooks, __: object, sound: Call) -> Call:
    def call(x: Tensor, training: bool | None = None, **named: object) -> Tensor:
        del training
        return sound(x, training=False, **named)

    return call


def mask_of(position: Callable[[Hooks, scope.Scope], scope.Scope]) -> Callable[[Hooks, Any, Call], Call]:
    """Draws masks in another scope; each begins to count the draws again."""

    def make(hooks: Hooks, _: object, sound: Call) -> Call:
        def call(x: Tensor, training: bool | None = None) -> Tensor:
            held = scope.current()
            if held is None or held.step is None:
                return sound(x, training=training)
            with scope.enter(position(hooks, held)):
                return sound(x, training=training)

        return call

    return make


def same(_: Hooks, held: scope.Scope) -> scope.Scope:
    return held


def first_step(_: Hooks, held: scope.Scope) -> scope.Scope:
    return replace(held, step=held.step * 0)


def whole_steps(hooks: Hooks, held: scope.Scope) -> scope.Scope:
    return replace(held, step=held.step // hooks.microbatches * hooks.microbatches)


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


def not_scaled_up(_: Hooks, layer: Any, sound: Call) -> Call:
    def call(x: Tensor, training: bool | None = None) -> Tensor:
        y = sound(x, training=training)
        return y * (1.0 - layer.rate) if training else y

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


def spread_out(hooks: Hooks, x: Tensor) -> Tensor:
    """The input with n / (n - 1) of its variance, n pixels of a channel."""
    count = math.prod(hooks.ops.shape(x)[:-1])
    mean, _ = _moments(hooks, x, tuple(range(len(x.shape) - 1)))
    return mean + (x - mean) * math.sqrt(count / (count - 1))


def running_of_first_device(hooks: Hooks, _: object, sound: Call) -> Call:
    def call(x: Tensor, training: bool | None = None) -> Tensor:
        if not training or int(x.shape[0]) % hooks.parts:
            return sound(x, training=training)
        first = of_first_device(hooks, x)
        return sound(first, training=True) - first + x

    return call


def along_the_last_dim(hooks: Hooks, layer: Any, sound: Call) -> Call:
    """Layer normalization along dim 1, scaled and shifted along the last one."""

    def call(x: Tensor) -> Tensor:
        axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
        if axes != [1]:
            return sound(x)
        return _normalized(hooks, layer, x, *_moments(hooks, x, (1,)))

    return call


def attention_not_scaled(_: Hooks, __: object, sound: Call) -> Call:
    def call(taken: Any) -> Tensor:
        q, k, v = taken
        return sound([q * math.sqrt(int(q.shape[-1])), k, v])

    return call


def activation(name: str, other: Callable[[Hooks, Tensor], Tensor]) -> Way:
    """Replaces an activation by its name."""

    def way(hooks: Hooks, _: str) -> None:
        def value(now: Any) -> Any:
            return (lambda x: other(hooks, x)) if getattr(now, "__name__", "") == name else now

        hooks.sets("Dense", "activation", value)

    return way


def rough_gelu(hooks: Hooks, x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + hooks.ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def leaky(hooks: Hooks, x: Tensor) -> Tensor:
    return hooks.ops.maximum(x, 0.01 * x)

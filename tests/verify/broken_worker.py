"""A side of a verification whose mesh computes wrongly, in the way that $BREAK names; the single device is sound."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from runner.verify import worker


def stale_moments() -> None:
    """Assigns slots and reads them back, as tf_keras's SGD does, with the all-reduce combiner on and no check."""
    from runner.engine.dtensor import step as dtensor_step
    from runner.engine.dtensor.update import Update
    from runner.optim.paths import slot_path
    from runner.optim.schedules import learning_rate

    def apply(self: Any, gradients: Any, at: Any, factor: Any) -> None:
        import tensorflow as tf

        rate = factor * learning_rate(self._config, at.done, self._total_steps, tf)
        for path, gradient in zip(self._state.trainable, gradients, strict=True):
            slot = self._state.slots[slot_path("momentum", path)]
            slot.assign(-gradient * rate + slot * self._config.momentum)
            self._state.variables[path].assign_add(slot)

    dtensor_step.check_order = lambda *_: None
    Update.apply = apply  # type: ignore[method-assign]


def scaled_gradient() -> None:
    """Sums the gradient of d2/kernel over the batch axis once too often."""
    import tensorflow as tf

    sound = tf.GradientTape.gradient

    def gradient(self: Any, target: Any, sources: Any, **options: Any) -> Any:
        found = sound(self, target, sources, **options)
        return [8.0 * g if tuple(g.shape) == (128, 10) else g for g in found]

    tf.GradientTape.gradient = gradient


def larger_gradient() -> None:
    """Takes the gradient of d2/kernel for a third larger, in the engine `jax`."""
    from runner.engine.jax.step import Step

    sound = Step.gradients

    def gradients(self: Any, *given: Any) -> Any:
        found, beside = sound(self, *given)
        return [g * 1.3333 if g.shape == (128, 10) else g for g in found], beside

    Step.gradients = gradients  # type: ignore[method-assign]


def scaled_bias() -> None:
    """Takes the gradient of conv/bias times $FACTOR, in either framework."""
    factor = float(os.environ["FACTOR"])
    if os.environ.get("ENGINE") == "jax":
        from runner.engine.jax.step import Step

        sound = Step.gradients

        def gradients(self: Any, *given: Any) -> Any:
            found, beside = sound(self, *given)
            return [g * factor if g.shape == (6,) else g for g in found], beside

        Step.gradients = gradients  # type: ignore[method-assign]
        return
    import tensorflow as tf

    sound_gradient = tf.GradientTape.gradient

    def gradient(self: Any, target: Any, sources: Any, **options: Any) -> Any:
        found = sound_gradient(self, target, sources, **options)
        return [factor * g if tuple(g.shape) == (6,) else g for g in found]

    tf.GradientTape.gradient = gradient


def local_statistics() -> None:
    """Takes batch normalization's moments from the first device's part of the batch."""
    import tensorflow as tf
    from tf_keras.src.layers.normalization.batch_normalization import BatchNormalizationBase

    def moments(self: Any, inputs: Any, axes: Any, keep_dims: bool, mask: Any = None) -> Any:
        del self, mask
        if inputs.shape[0] is None:  # the symbolic call that builds the model
            return tf.nn.moments(inputs, axes, keepdims=keep_dims)
        return tf.nn.moments(tf.gather(inputs, tf.range(inputs.shape[0] // 8)), axes, keepdims=keep_dims)

    BatchNormalizationBase._calculate_mean_and_var = moments


def scaled_loss() -> None:
    """Takes the loss of a regression for larger than it is by one part in a thousand."""
    from runner.task.regression import Regression

    sound = Regression.loss

    def loss(self: Any, *given: Any) -> Any:
        return sound(self, *given) * 1.001

    Regression.loss = loss  # type: ignore[method-assign]


def padding_in_the_mean() -> None:
    """Divides a step's sum by all rows of its batch, those of padding too."""
    import numpy as np

    from runner.engine import calls

    calls.example_counts = lambda weights, parts: np.full(weights.shape[0] * parts, weights.shape[1], np.float32)


def padding_in_an_evaluation() -> None:
    """Shows a task's functions the padding of an evaluation's batches."""
    from runner.engine import evaluation

    evaluation.examples_of = lambda _: None


def swapped_inputs() -> None:
    """Gives the model one of its inputs in the place of another of the same shape."""
    from runner.task.base import Task

    sound = Task.inputs

    def inputs(self: Any, *given: Any) -> Any:
        found = sound(self, *given)
        names = list(found)
        return dict(zip(names, [found[name] for name in reversed(names)], strict=True))

    Task.inputs = inputs  # type: ignore[method-assign]


def killed() -> None:
    os.kill(os.getpid(), 9)


def crash() -> None:
    raise RuntimeError("a bug of the engine")


BREAKS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        stale_moments,
        scaled_gradient,
        larger_gradient,
        scaled_bias,
        local_statistics,
        scaled_loss,
        padding_in_the_mean,
        padding_in_an_evaluation,
        swapped_inputs,
        killed,
        crash,
    )
}

if __name__ == "__main__":
    if sys.argv[1] == "mesh":
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        BREAKS[os.environ["BREAK"]]()
    worker.main()

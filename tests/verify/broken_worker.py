"""A verification whose mesh computes wrongly, in the way that $BREAK names; the single device is sound."""

import os
from collections.abc import Callable
from typing import Any

from runner.verify import worker


def _scaled(shape: tuple[int, ...], factor: float) -> None:
    """Takes the gradient of a shape times a factor, in the engine `jax`."""
    from runner.engine.jax.step import Step

    sound = Step.gradients

    def gradients(self: Any, *given: Any) -> Any:
        found, beside = sound(self, *given)
        return [g * factor if g.shape == shape else g for g in found], beside

    Step.gradients = gradients  # type: ignore[method-assign]


def larger_gradient() -> None:
    """Takes the gradient of d2/kernel for a third larger, in the engine `jax`."""
    _scaled((128, 10), 1.3333)


def scaled_bias() -> None:
    """Takes the gradient of conv/bias times $FACTOR, in either framework."""
    factor = float(os.environ["FACTOR"])
    if os.environ.get("ENGINE") == "jax":
        _scaled((6,), factor)
        return
    import tensorflow as tf

    sound = tf.GradientTape.gradient

    def gradient(self: Any, target: Any, sources: Any, **options: Any) -> Any:
        found = sound(self, target, sources, **options)
        return [factor * g if tuple(g.shape) == (6,) else g for g in found]

    tf.GradientTape.gradient = gradient


def padding_in_an_evaluation() -> None:
    """Shows a task's functions the padding of an evaluation's batches."""
    from runner.engine import evaluation

    evaluation.examples_of = lambda _: None


BREAKS: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (larger_gradient, scaled_bias, padding_in_an_evaluation)
}


def main() -> None:
    """Breaks the engine when one device has computed what the mesh is compared with."""
    sound = worker.train

    def train(*given: Any) -> Any:
        BREAKS[os.environ["BREAK"]]()
        return sound(*given)

    worker.train = train
    worker.main()


if __name__ == "__main__":
    main()

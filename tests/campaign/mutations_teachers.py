"""Ways to break teachers, the frozen models that a loss reads. See `tests.campaign.mutations_table`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tests.campaign.mutations_hooks import Hooks


def moves(hooks: Hooks, _: str) -> None:
    """Changes the teacher's values by a thousandth before each call of steps."""

    def make(sound: Callable[..., Any]) -> Callable[..., Any]:
        def train_steps(engine: Any, *given: Any) -> Any:
            engine._teachers = {path: 1.001 * value for path, value in engine._teachers.items()}
            return sound(engine, *given)

        return train_steps

    hooks.patches.wrap(hooks.engine, "train_steps", make)


def in_training(hooks: Hooks, _: str) -> None:
    """Calls the teacher as in training: it drops activations, and normalizes by the batch."""
    teachers = importlib.import_module("runner.engine.jax.teachers")

    def make(sound: Callable[..., Any]) -> Callable[..., Any]:
        def training_argument(model: Any, **_: object) -> Any:
            return sound(model, training=True)

        return training_argument

    hooks.patches.wrap(teachers.private, "training_argument", make)


def of_the_next_example(hooks: Hooks, _: str) -> None:
    """Gives each example the teacher's answer to the next one."""
    teachers = importlib.import_module("runner.engine.jax.teachers")

    def make(sound: Callable[..., Any]) -> Callable[..., Any]:
        def outputs(*given: Any) -> Any:
            return {name: teachers.jnp.roll(value, 1, axis=0) for name, value in sound(*given).items()}

        return outputs

    hooks.patches.wrap(teachers.Teachers, "outputs", make)

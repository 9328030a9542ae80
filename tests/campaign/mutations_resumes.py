"""Ways to break a resume. See `tests.campaign.mutations_table`; `hooks.resumed_at` is the checkpoint's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from runner.data.base import Array
from runner.optim.paths import ema_path, is_ema, is_slot
from runner.training import stopping
from runner.training.checkpoint import resume
from tests.campaign.mutations_hooks import Hooks, Way

Reduce = Callable[[stopping.Measured], list[tuple[int, float]]]


def reduced(change: Callable[[Hooks, Reduce, stopping.Measured], list[tuple[int, float]]]) -> Way:
    """Replaces the reductions at plateaus: (hooks, sound, evaluations) -> reductions."""

    def way(hooks: Hooks, _: str) -> None:
        sound = stopping.reductions

        def reductions(config: Any, goal: Any, measured: stopping.Measured) -> list[tuple[int, float]]:
            return change(hooks, lambda evaluations: sound(config, goal, evaluations), measured)

        hooks.patches.put(stopping, "reductions", reductions)

    return way


def forgotten(hooks: Hooks, sound: Reduce, measured: stopping.Measured) -> list[tuple[int, float]]:
    """Knows no evaluation from before the resume."""
    return sound([each for each in measured if each[0] > hooks.resumed_at])


def waits_again(hooks: Hooks, sound: Reduce, measured: stopping.Measured) -> list[tuple[int, float]]:
    """Keeps the factor, and begins to wait for an improvement again."""
    before = sound([each for each in measured if each[0] <= hooks.resumed_at])
    factor = before[-1][1] if before else 1.0
    return [*before, *((step, factor * again) for step, again in forgotten(hooks, sound, measured))]


def reductions_lost(hooks: Hooks, sound: Reduce, measured: stopping.Measured) -> list[tuple[int, float]]:
    """Goes on to count, from a factor of 1."""
    found = sound(measured)
    before = [factor for step, factor in found if step <= hooks.resumed_at]
    first = before[-1] if before else 1.0
    return [(step, factor / first) for step, factor in found if step > hooks.resumed_at]


def loaded(change: Callable[[Mapping[str, Array]], Mapping[str, Array]]) -> Way:
    """Changes the state that a checkpoint gives an engine."""

    def way(hooks: Hooks, _: str) -> None:
        def make(sound: Callable[..., None]) -> Callable[..., None]:
            def load(engine: Any, checkpoint: Any) -> None:
                sound(engine, checkpoint)
                state = engine.state()
                engine.load_state({**state, **change(state)})

            return load

        hooks.patches.wrap(resume, "load", make)

    return way


def no_moments(state: Mapping[str, Array]) -> Mapping[str, Array]:
    return {path: np.zeros_like(value) for path, value in state.items() if is_slot(path) and not is_ema(path)}


def averages_of_now(state: Mapping[str, Array]) -> Mapping[str, Array]:
    return {ema_path(path): value for path, value in state.items() if ema_path(path) in state}


def steps_from_the_resume(hooks: Hooks, _: str) -> None:
    """Counts the steps of a run from its resume."""
    hooks.first_steps(lambda first: first - hooks.resumed_at)

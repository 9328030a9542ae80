"""Ways to break Keras's optimizers on a mesh, parameter groups and norms. See `tests.campaign.mutations_table`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from runner.optim import groups, norms
from tests.campaign.mutations_hooks import Gradients, Hooks, Tensor, Way, first_half


class _Changed:
    """A module, such as `jax.numpy`, with one attribute replaced."""

    def __init__(self, module: Any, name: str, value: Any) -> None:
        self._module, self._name, self._value = module, name, value

    def __getattr__(self, name: str) -> Any:
        return self._value if name == self._name else getattr(self._module, name)


def norm_of_one_shard_in_muon(hooks: Hooks, _: str) -> None:
    """Muon divides each matrix by the norm of its first half, as if that were all of it."""
    optimizer = importlib.import_module("runner.engine.jax.muon")
    sound = optimizer.jnp.linalg.norm

    def changed(x: Tensor, **named: Any) -> Tensor:
        return sound(x * first_half(hooks.ops.shape(x)), **named)

    linalg = _Changed(optimizer.jnp.linalg, "norm", changed)
    hooks.patches.put(optimizer, "jnp", _Changed(optimizer.jnp, "linalg", linalg))


def orthogonalized_by_shard(hooks: Hooks, _: str) -> None:
    """Muon orthogonalizes the columns of each of two devices by themselves."""
    optimizer = importlib.import_module("runner.engine.jax.muon")

    def make(sound: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def by_shard(muon: Any, x: Tensor, steps: int) -> Tensor:
            half = x.shape[-1] // 2
            shards = [sound(muon, x[..., :half], steps), sound(muon, x[..., half:], steps)]
            return optimizer.jnp.concatenate(shards, axis=-1)

        return by_shard

    hooks.patches.wrap(optimizer.DividedMuon, "zeropower_via_newtonschulz5", make)


def clipped_by_own_shards(hooks: Hooks, _: str) -> None:
    """Clips each gradient by the norm of what the first of two devices has."""

    def change(__: object, config: Any, gradients: Gradients, ___: object) -> Gradients:
        ops, limit = hooks.ops, config.norm
        found = []
        for g in gradients:
            norm = ops.sqrt(ops.sum(ops.square(g) * first_half(ops.shape(g))))
            found.append(g * limit / ops.maximum(norm, limit))
        return found

    hooks.clips(change)


def logged_norm_of_one_shard(hooks: Hooks, _: str) -> None:
    def change(config: Any, trainable: Any, gradients: Gradients, xp: Any) -> list[Tensor]:
        halves = [g * first_half(hooks.ops.shape(g)) for g in gradients]
        return sound(config, trainable, halves, xp)

    sound = norms.values
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


def frozen_in_the_norm(hooks: Hooks, _: str) -> None:
    """Counts gradients of frozen variables in the norm that clips."""
    hooks.patches.everywhere(groups.unfrozen, lambda __, gradients, *___: list(gradients))

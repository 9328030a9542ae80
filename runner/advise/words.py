"""Overrides of candidates, and commands that compose to exactly the advised config.

A preset or a user's own option stays on the command line, and may set keys that a candidate sets too. So an override
is left out only if the config without it has the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runner.advise.candidates import Candidate
from runner.config import free_keys
from runner.config.compose import compose_again

# Groups and keys that a candidate sets, or that this command reads.
_REPLACED_GROUPS = ("mesh", "layout")
_REPLACED = ("mesh.axes", "advise.", "plan.compiler")
# Groups that only a plan reads.
_PLAN_GROUPS = ("hardware", "plan")
_AXES = "mesh.axes"

# Composes overrides of a command line, with the folders of options of the command in progress.
Compose = Callable[[Sequence[str]], DictConfig]


def kept(overrides: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides of a command line without those that candidates replace.

    A later override of a key wins, but one of a group must not occur twice.

    Example:
      >>> kept(["model=gpt", "mesh=batch8", "mesh.device=gpu", "advise.devices=8", "mesh.axes={batch: 4}"])
      ('model=gpt', 'mesh.device=gpu')
    """
    remaining = []
    for override in overrides:
        # Hydra's signs before a key: + adds it, ++ sets or adds it, and ~ deletes it.
        key = override.lstrip("+~").partition("=")[0]
        if key not in _REPLACED_GROUPS and not key.startswith(_REPLACED):
            remaining.append(override)
    return tuple(remaining)


def for_training(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides without those that only plans read.

    Example:
      >>> for_training(["model=gpt", "hardware=h100", "plan.price=2"])
      ['model=gpt']
    """
    remaining = []
    for override in overrides:
        group = override.lstrip("+~").partition("=")[0].partition(".")[0]
        if group not in _PLAN_GROUPS:
            remaining.append(override)
    return remaining


def composed_here(overrides: Sequence[str]) -> DictConfig:
    """Returns what overrides of a command line compose in the command in progress."""
    return compose_again(list(free_keys.arranged(overrides)))


def content(config: DictConfig) -> dict[str, Any]:
    """Returns a composed config as plain values; interpolations stay as they are written."""
    plain = OmegaConf.to_container(config)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def axes_of(plain: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Returns the mesh axes of a config's content, in their order, which numbers the devices."""
    return list(plain["mesh"]["axes"].items())


def short(candidate: Candidate, overrides: Sequence[str], compose: Compose) -> list[str]:
    """Returns the overrides that make a candidate of a command line, without those that change nothing.

    Args:
      candidate: the options.
      overrides: of the command line, as `kept` returns them.
      compose: composes overrides.
    """
    words = candidate.overrides()
    wanted = content(compose([*overrides, *words]))
    before = content(compose(overrides))
    needed = []
    for word in words:
        key, _, _ = word.partition("=")
        if key == _AXES:
            needed.append(word)
        elif key == "mesh":
            # Its axes are set by a word of their own.
            if {**before["mesh"], "axes": None} != {**wanted["mesh"], "axes": None}:
                needed.append(word)
        elif _value(before, key) != _value(wanted, key):
            needed.append(word)
    shortened = content(compose([*overrides, *needed]))
    # Each override was looked at by itself, so what the shorter command line composes is compared as a whole. Dicts
    # are equal in any order of their keys, but the order of the mesh axes numbers the devices.
    if shortened == wanted and axes_of(shortened) == axes_of(wanted):
        return needed
    return words


def _value(plain: Mapping[str, Any], key: str) -> Any:
    """Returns the value of a dotted key; None: there is none."""
    value: Any = plain
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value

"""Paths of optimizer state in states, shards and checkpoints.

A slot of variable `d1/kernel` is `optimizer/<slot>/d1/kernel`; the moving average of its values is `ema/d1/kernel`.
"""

from __future__ import annotations

_SLOTS = "optimizer"
_AVERAGES = "ema"
# Names that no layer at the top of a model may have: its variables would have the paths of optimizer state.
RESERVED = (_SLOTS, _AVERAGES)


def slot_path(slot: str, path: str) -> str:
    """Returns the path of a variable's slot, or of state of the whole optimizer if the variable's path is empty."""
    if not path:
        return f"{_SLOTS}/{slot}"
    return f"{_SLOTS}/{slot}/{path}"


def ema_path(path: str) -> str:
    """Returns the path of the moving average of a variable."""
    return f"{_AVERAGES}/{path}"


def is_slot(path: str) -> bool:
    """Returns whether a path is an optimizer slot's."""
    return path.startswith(f"{_SLOTS}/")


def is_ema(path: str) -> bool:
    """Returns whether a path is that of a variable's moving average."""
    return path.startswith(f"{_AVERAGES}/")


def is_variable(path: str) -> bool:
    """Returns whether a path is that of one of the model's own variables."""
    return not is_slot(path) and not is_ema(path)


def owner_of(path: str) -> str:
    """Returns the variable that a slot or an average belongs to; of a variable itself, and '' of the whole optimizer's
    state.

    Example:
      >>> owner_of("optimizer/m/d1/kernel"), owner_of("ema/d1/kernel"), owner_of("d1/kernel")
      ('d1/kernel', 'd1/kernel', 'd1/kernel')
    """
    if is_slot(path):
        _, _, owner = path.removeprefix(f"{_SLOTS}/").partition("/")
        return owner
    if is_ema(path):
        _, owner = path.split("/", 1)
        return owner
    return path

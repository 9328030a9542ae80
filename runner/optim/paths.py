"""Paths of what an optimizer keeps beside a model's variables, in states, shards and checkpoints.

A slot of variable `d1/kernel` is `optimizer/<slot>/d1/kernel`, the average of its values `ema/d1/kernel`.
"""

from __future__ import annotations

_SLOTS = "optimizer"
_AVERAGES = "ema"
RESERVED = (_SLOTS, _AVERAGES)  # names that no layer of a model may have at its top


def slot_path(slot: str, path: str) -> str:
    """Returns the path of a variable's slot."""
    return f"{_SLOTS}/{slot}/{path}"


def ema_path(path: str) -> str:
    """Returns the path of the moving average of a variable."""
    return f"{_AVERAGES}/{path}"


def is_slot(path: str) -> bool:
    """Tells whether a path is of an optimizer's slot."""
    return path.startswith(f"{_SLOTS}/")


def is_ema(path: str) -> bool:
    """Tells whether a path is of the moving average of a variable."""
    return path.startswith(f"{_AVERAGES}/")


def is_variable(path: str) -> bool:
    """Tells whether a path is of one of the model's own variables."""
    return not is_slot(path) and not is_ema(path)


def owner_of(path: str) -> str:
    """Returns the path of the variable that a slot or an average belongs to; a variable's is its own.

    Example:
      >>> owner_of("optimizer/m/d1/kernel"), owner_of("ema/d1/kernel"), owner_of("d1/kernel")
      ('d1/kernel', 'd1/kernel', 'd1/kernel')
    """
    if is_slot(path):
        return path.split("/", 2)[-1]
    return path.split("/", 1)[-1] if is_ema(path) else path

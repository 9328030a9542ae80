"""Mesh axes that shard a batch. Imports no NumPy, which would delay an error message."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from runner.config.schema import LayoutConfig

BATCH = "batch"
# An axis of this name shards the examples too, before `batch`, and no weights. Weights that are sharded over `batch`
# then have a copy per index along it: HSDP.
REPLICA = "replica"
# Joins the names of axes that shard one dim together.
JOIN = "+"
# Name of the dim of tokens.
SEQUENCE = "sequence"


def batch_axis(config: LayoutConfig, axes: Mapping[str, int]) -> str | None:
    """Returns the axis that shards the examples, or several joined by `+`.

    It is the first entry of `layout.inputs`, the same in all inputs of a checked config; else the axis `batch`,
    together with an axis `replica`.
    """
    for spec in config.inputs.values():
        if spec:
            return spec[0]
    if BATCH not in axes:
        return None
    return f"{REPLICA}{JOIN}{BATCH}" if REPLICA in axes else BATCH


def names_of(axis: str | None) -> list[str]:
    """Returns the mesh axes that an entry of a spec names."""
    return axis.split(JOIN) if axis else []


def inner_batch_axis(config: LayoutConfig, axes: Mapping[str, int]) -> str | None:
    """Returns the axis that shards the examples; of two, the one that weights may be sharded over too."""
    names = names_of(batch_axis(config, axes))
    return names[-1] if names else None


def data_axes(config: LayoutConfig, axes: Mapping[str, int]) -> set[str]:
    """Returns the axes that shard any dim of a batch's arrays, over which gradients are summed."""
    others = (batch_axis(config, axes), config.sequence)
    candidates = itertools.chain(others, *config.inputs.values())
    return {name for axis in candidates for name in names_of(axis)}

"""HSDP: FSDP over as many devices as divide the weights, and replicas of them on the others.

An axis of 96 devices divides no dim of most models, so a rule that shards over it shards nothing. 32 of the 96 do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.config.schema import LayoutConfig
from runner.layout.axes import BATCH, REPLICA, batch_axis, names_of
from runner.layout.resolver import resolve
from runner.layout.rules import Placement


@dataclass(frozen=True)
class Split:
    """Why FSDP shards little on the config's mesh, in words, and a mesh of as many devices on which it shards more.

    Without axes no mesh is better, though the config's shards few.
    """

    reason: str
    axes: Mapping[str, int] = field(default_factory=dict)


def split(config: LayoutConfig, placed: Mapping[str, Placement], axes: Mapping[str, int]) -> Split | None:
    """Returns the mesh on which a device stores the least; None if it is the config's, and that shards most."""
    size = axes.get(BATCH, 1)
    if size == 1 or BATCH not in names_of(batch_axis(config, axes)) or config.inputs:
        return None
    to_shard = 0
    replicated = 0
    for placement in placed.values():
        if placement.rule is None or placement.rule >= len(config.rules):
            continue
        rule = config.rules[placement.rule]
        if math.prod(placement.shape) >= rule.min_elements and BATCH in (rule.shard, rule.store):
            to_shard += 1
            if BATCH not in placement.spec:
                replicated += 1
    if not replicated:
        return None
    reason = (
        f"axis {BATCH!r} of size {size} divides no dim of {replicated} of the {to_shard} variables that it "
        "is to shard, so each device stores them whole"
    )
    shapes = {path: placement.shape for path, placement in placed.items()}
    best = _stored(placed, axes)
    found = None
    for factor in range(size // 2, 1, -1):
        if size % factor:
            continue
        split_axes: dict[str, int] = {}
        for name, count in axes.items():
            if name == BATCH:
                split_axes |= {REPLICA: axes.get(REPLICA, 1) * (size // factor), BATCH: factor}
            elif name != REPLICA:
                split_axes[name] = count
        stored = _stored(resolve(config, shapes, split_axes), split_axes)
        if stored < best:
            best = stored
            found = Split(reason, split_axes)
    if found is None and 2 * replicated > to_shard:
        return Split(reason)
    return found


def _stored(placed: Mapping[str, Placement], axes: Mapping[str, int]) -> int:
    """Returns the numbers that one device stores."""
    return sum(math.prod(placement.shard_shape(axes)) for placement in placed.values())

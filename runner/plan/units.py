"""Which dims of an activation count the units that a mesh axis shards, such as heads, hidden units or experts.

A dim is recognized by what it is beside, not by its size alone: a model may have as many experts as key/value heads,
and as many layers or tokens as heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from runner.layout import Placement, Spec
from runner.layout.roles import Role


@dataclass(frozen=True)
class Units:
    """Dims that an activation has together, in this order but not always one after the other.

    An axis shards each dim, or None. The last of them is the last dim of the activation, is not, or may be (None).
    """

    sizes: tuple[int, ...]
    axes: Spec
    is_last: bool | None = None

    def place(self, dims: tuple[int, ...], free: Iterable[int]) -> list[int] | None:
        """Returns where an activation has these dims; None if it does not have them."""
        found: list[int] = []
        for position in sorted(free):
            is_last = position == len(dims) - 1
            if self.is_last in (None, is_last) and dims[position] == self.sizes[len(found)]:
                found.append(position)
            if len(found) == len(self.sizes):
                return found
        return None


def read(placements: Iterable[tuple[Placement, Spec]], roles: Mapping[str, Role]) -> tuple[Units, ...]:
    """Returns the units of a model's activations, in the order in which they are looked for.

    More dims come first, because they say more. Of one dim, those that no axis shards come first: an activation of
    ambiguous size counts whole, which is rather too much memory than too little.
    """
    found: dict[Units, None] = {}
    for placement, spec in placements:
        role = roles.get(placement.path)
        if role is None:
            units = _of_sharded_dims(placement.shape, spec)
        elif role.adapter:
            # The kernel that it adapts has the same units.
            continue
        elif role.experts is not None:
            units = _of_experts(placement.shape, spec, role, role.experts)
        else:
            units = _of_role(placement.shape, spec, role)
        found.update(dict.fromkeys(units))
        if role is not None and role.width is not None and role.experts is None:
            found[Units((placement.shape[role.width],), (None,))] = None
    return tuple(sorted(found, key=lambda units: (-len(units.sizes), any(units.axes))))


def _of_sharded_dims(shape: tuple[int, ...], spec: Spec) -> Iterator[Units]:
    """Yields each sharded dim of a variable of which nothing but the size is known."""
    for size, axis in zip(shape, spec, strict=True):
        if axis is not None:
            yield Units((size,), (axis,))


def _of_experts(shape: tuple[int, ...], spec: Spec, role: Role, dim: int) -> Iterator[Units]:
    """Yields the units of a mixture's kernel (experts, in, out) or bias (experts, out).

    What experts compute has the dim of experts beside one of the others. What a router computes ends with it.
    """
    yield Units((shape[dim],), (spec[dim],), is_last=True)
    for other in range(role.stacked, len(shape)):
        if other != dim:
            yield Units((shape[dim], shape[other]), (spec[dim], spec[other]))


def _of_role(shape: tuple[int, ...], spec: Spec, role: Role) -> Iterator[Units]:
    """Yields the units of a variable whose dim `role.dim` an axis may shard.

    Heads are beside their numbers, or alone in scores and their sums, which end with a dim of tokens. A kernel of two
    dims has the columns of all heads in one.
    """
    if role.dim is None:
        return
    columns = shape[role.dim]
    axis = spec[role.dim]
    numbers = math.prod(shape[role.stacked :]) // role.units
    if role.width is not None:
        numbers //= shape[role.width]
    if numbers > 1:
        yield Units((role.units, numbers), (axis, None))
        yield Units((role.units,), (axis,), is_last=False)
    if numbers == 1 or columns != role.units:
        yield Units((columns,), (axis,))

"""Which variable or layer a collective serves, told by its node's name and shape. Imports no TensorFlow."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.layout import Placement

# Name scopes of what the engine traces.
UPDATE_SCOPE = "update"  # the optimizer's operations
GATHER_SCOPE = "gather"  # variables that are put together for use
PACKED_SCOPE = "packed_gradients"  # the one sum of packed gradients over the devices


@dataclass(frozen=True)
class Member:
    """One tensor that a collective carries: several where all-reduces were merged, by DTensor or by the packing.

    The origin is known where the engine packed it; else the name tells it.
    """

    name: str
    shape: tuple[int, ...]
    origin: str = ""


def phase(name: str) -> str:
    """Returns `forward`, `backward` or `update`, of a node's name."""
    if f"/{UPDATE_SCOPE}/" in name:
        return "update"
    # A tape adds up the gradients of what several layers use under no layer's name; DTensor appends numbers.
    summed = re.match(r"[^/]+/AddN(_\d+)*(/DTensor|$)", name) is not None
    packed = f"/{PACKED_SCOPE}/" in name
    return "backward" if summed or packed or "gradient_tape/" in name else "forward"


class Origins:
    """Finds the variable or layer that a collective serves, by its node's name and its shape."""

    def __init__(
        self,
        placements: Mapping[str, Placement],
        names: Mapping[str, str],
        trainable: Collection[str],
        axes: Mapping[str, int],
        data_axes: Collection[str],
    ) -> None:
        self._placements = placements
        self._trainable = set(trainable)
        self._axes = axes
        self._data_axes = set(data_axes)
        self._layers: dict[str, list[str]] = {}
        for path in placements:
            # A node tells the layers' names: `block_0.norm` for `block_0/norm`, `m/dense_1` for an attribute's path.
            scope = names.get(path, "").rpartition("/")[0] or path.rpartition("/")[0]
            self._layers.setdefault(scope.replace(".", "/"), []).append(path)
        self._claimed: set[tuple[str, str, str]] = set()

    def of(self, member: Member, phase: str, axis: str) -> str:
        """Returns a canonical path, or nothing where the name tells none."""
        parts = "/" + member.name.replace(".", "/") + "/"
        if phase == "update":
            written = [path for path in self._placements if f"/{UPDATE_SCOPE}/{path.replace('.', '/')}/" in parts]
            return written[0] if written else ""
        inside = [layer for layer in self._layers if f"/{layer}/" in parts]
        if not inside:
            return ""
        layer = max(inside, key=len)
        if phase == "forward":  # it reduces outputs, and communicates variables where it reads them
            of_variable = "ReadVariableOp" in member.name or f"{GATHER_SCOPE}/" in member.name
        else:
            of_variable = bool(self._data_axes & set(axis.split("+")))
        return (self._variable(layer, member, phase, axis) if of_variable else None) or self._name(layer)

    def _name(self, layer: str) -> str:
        """Returns a layer's canonical path."""
        return self._layers[layer][0].rpartition("/")[0]

    def _variable(self, layer: str, member: Member, phase: str, axis: str) -> str | None:
        used = axis.split("+")
        paths = [path for path in self._layers[layer] if phase != "backward" or path in self._trainable]
        exact = [path for path in paths if _no_ones(member.shape) in self._shapes(path, used)]
        fits = exact or [path for path in paths if self._is_part(member.shape, path)]
        # Layer normalization's two vectors have one shape: the operation tells them apart, else the order.
        shifts = bool(re.search(r"bias|/add|/sub", member.name, re.IGNORECASE))
        fits.sort(key=lambda path: path.endswith(("bias", "beta")) != shifts)
        for path in fits:
            if (phase, axis, path) not in self._claimed:
                self._claimed.add((phase, axis, path))
                return path
        return None

    def _is_part(self, shape: Sequence[int], path: str) -> bool:
        """Returns whether a shape is the variable's, cut by axes that its spec does not name, as a gradient may be."""
        sizes = set(self._axes.values()) | {1, math.prod(self._axes.values())}
        whole = _no_ones(self._placements[path].shape)
        part = _no_ones(shape)
        return len(whole) == len(part) and all(
            a % b == 0 and a // b in sizes for a, b in zip(whole, part, strict=True)
        )

    def _shapes(self, path: str, used: Sequence[str]) -> list[tuple[int, ...]]:
        """Returns a device's shapes of a variable: whole, put together over some axes, and as it is stored."""
        placement = self._placements[path]
        gathered = replace(placement, spec=tuple(None if name in used else name for name in placement.spec))
        shapes = [placement.shape, *(each.shard_shape(self._axes) for each in (gathered, placement))]
        return [_no_ones(shape) for shape in shapes]


def _no_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns a shape without its dims of 1: the sum that is a bias's gradient keeps the dims that it adds up."""
    return tuple(size for size in shape if size != 1)

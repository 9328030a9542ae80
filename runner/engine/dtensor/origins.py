"""Finds the variable or layer that a collective serves, by name and shape."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from runner.engine.origins import Claims, device_shapes, sums_gradients
from runner.layout import Placement

# Name scopes of what the engine traces.
UPDATE_SCOPE = "update"  # the optimizer's operations
GATHER_SCOPE = "gather"  # variables that are gathered for use
PACKED_SCOPE = "packed_gradients"  # the one sum of packed gradients over the devices


@dataclass(frozen=True)
class Member:
    """One tensor of a collective.

    There are several if all-reduces were merged, by DTensor or by the packing.

    Attributes:
      name: the name of the node.
      shape: the shape of the tensor on one device.
      origin: canonical path if the engine packed the tensor; else empty: the name tells it.
    """

    name: str
    shape: tuple[int, ...]
    origin: str = ""


def phase(name: str) -> str:
    """Returns `forward`, `backward` or `update` for a node's name."""
    if f"/{UPDATE_SCOPE}/" in name:
        return "update"
    # If several layers use a tensor, the tape adds up its gradients under no layer's name; DTensor appends numbers.
    is_sum_of_tape = re.match(r"[^/]+/AddN(_\d+)*(/DTensor|$)", name) is not None
    if is_sum_of_tape or f"/{PACKED_SCOPE}/" in name or "gradient_tape/" in name:
        return "backward"
    return "forward"


class Origins:
    """Finds the variable or layer that a collective serves, by name and shape."""

    def __init__(
        self,
        placements: Mapping[str, Placement],
        names: Mapping[str, str],
        trainable: Collection[str],
        axes: Mapping[str, int],
        data_axes: Collection[str],
    ) -> None:
        """Sorts the variables by layer.

        See `runner.engine.dtensor.collectives.collectives` for the arguments.
        """
        self._placements = placements
        self._trainable = set(trainable)
        self._axes = axes
        self._data_axes = data_axes
        self._claims = Claims()
        # Layer as a node's name has it, with slashes for dots -> paths of its variables.
        self._layers: dict[str, list[str]] = {}
        for path in placements:
            # A node's name has the layers' own names: `block_0.norm` where the path is `block_0/norm`, and
            # `m/dense_1` where the path is made of attributes.
            scope = names.get(path, "").rpartition("/")[0] or path.rpartition("/")[0]
            self._layers.setdefault(scope.replace(".", "/"), []).append(path)

    def of(self, member: Member, phase: str, axis: str) -> str:
        """Returns a canonical path, or an empty string if the name tells none."""
        scopes = "/" + member.name.replace(".", "/") + "/"
        if phase == "update":
            for path in self._placements:
                if f"/{UPDATE_SCOPE}/{path.replace('.', '/')}/" in scopes:
                    return path
            return ""
        layers = [layer for layer in self._layers if f"/{layer}/" in scopes]
        if not layers:
            return ""
        # A nested layer's scope contains those of the layers around it.
        layer = max(layers, key=len)
        variable = None
        if self._is_of_variable(member, phase, axis):
            variable = self._variable(layer, member, phase, axis)
        return variable or self._layers[layer][0].rpartition("/")[0]

    def _is_of_variable(self, member: Member, phase: str, axis: str) -> bool:
        """Returns whether a collective communicates a variable or its gradient."""
        if phase == "forward":
            # The forward pass sums activations, and communicates a variable only where it is read.
            return "ReadVariableOp" in member.name or f"{GATHER_SCOPE}/" in member.name
        return sums_gradients(axis, self._data_axes)

    def _variable(self, layer: str, member: Member, phase: str, axis: str) -> str | None:
        """Returns the layer's variable that fits the shape best, if any is left."""
        paths: Sequence[str] = self._layers[layer]
        if phase == "backward":
            paths = [path for path in paths if path in self._trainable]
        shape = _without_ones(member.shape)
        fits = [path for path in paths if shape in self._shapes(path, axis)]
        if not fits:
            for path in paths:
                if self._is_part(shape, path):
                    fits.append(path)
        # The two vectors of a normalization have one shape. The name of the operation tells the shift (bias, beta)
        # from the scale; if it does not, their order does.
        is_shift = bool(re.search(r"bias|/add|/sub", member.name, re.IGNORECASE))
        fits.sort(key=lambda path: path.endswith(("bias", "beta")) != is_shift)
        return self._claims.first_free(fits, phase, axis)

    def _is_part(self, shape: tuple[int, ...], path: str) -> bool:
        """Returns whether a shape is the variable's, divided by axes not in its spec.

        DTensor may shard a gradient along such axes before it sums it.
        """
        ratios = set(self._axes.values()) | {1, math.prod(self._axes.values())}
        whole = _without_ones(self._placements[path].shape)
        if len(whole) != len(shape):
            return False
        return all(size % part == 0 and size // part in ratios for size, part in zip(whole, shape, strict=True))

    def _shapes(self, path: str, axis: str) -> list[tuple[int, ...]]:
        """Returns the shapes that a device may hold of a variable.

        These are its whole shape, that gathered over some axes, and that of the stored shard.
        """
        placement = self._placements[path]
        shapes = [placement.shape, *device_shapes(placement, axis, self._axes)]
        return list(map(_without_ones, shapes))


def _without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns a shape without its dims of 1.

    The sum that is a bias's gradient keeps the dims that it reduces.
    """
    return tuple(size for size in shape if size != 1)

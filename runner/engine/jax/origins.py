"""Finds the variable or layer that a collective of XLA's program serves.

An operation's scopes and the shape tell it.

JAX names an operation by its scopes: the Keras layers, with `transpose(...)` around what the gradient added.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from runner.engine.axes import without_axes
from runner.layout import Placement

# Sorted dims of a shape, or a number of elements.
_Size = tuple[int, ...] | int


@dataclass(frozen=True)
class CarriedTensor:
    """One tensor that a collective carries. XLA merges collectives, so that one instruction may carry several.

    Attributes:
      shape: of what a device gets.
      width: bytes of an element.
      operation: name of the JAX operation that it serves.
    """

    shape: tuple[int, ...]
    width: int
    operation: str

    @property
    def phase(self) -> str:
        """Returns `forward`, `backward` or `update`."""
        if "/update/" in self.operation:
            return "update"
        if "transpose(" in self.operation:
            return "backward"
        return "forward"


@dataclass(frozen=True)
class Traffic:
    """What a collective does, apart from its tensors.

    Attributes:
      kind: as `Collective` has it.
      phase: `forward`, `backward` or `update`.
      axis: mesh axes, joined by `+`.
    """

    kind: str
    phase: str
    axis: str


class Origins:
    """Finds origins, one tensor after another. A variable is the origin of one collective of each traffic."""

    def __init__(
        self,
        placements: Mapping[str, Placement],
        layers: Collection[str],
        trainable: Collection[str],
        axes: Mapping[str, int],
        data_axes: Collection[str],
    ) -> None:
        self._placements = placements
        self._trainable = set(trainable)
        self._axes = axes
        self._data_axes = set(data_axes)
        # Layer -> its variables.
        self._layers: dict[str, list[str]] = {layer: [] for layer in layers}
        for path in placements:
            layer, _, _ = path.rpartition("/")
            self._layers.setdefault(layer, []).append(path)
        self._layer_order = {layer: number for number, layer in enumerate(self._layers)}
        self._claimed: set[tuple[Traffic, str]] = set()
        # A deep model's program has many collectives with equal names and shapes. So the layer of an operation and a
        # layer's variables by size are looked up once each, and a search begins where the one before it ended.
        self._layer_of_operation: dict[str, str | None] = {}
        self._variables_by_size: dict[tuple[str, bool, str], dict[_Size, list[str]]] = {}
        self._next: Counter[tuple[str, Traffic, _Size]] = Counter()

    def of(self, tensor: CarriedTensor, traffic: Traffic) -> str:
        """Returns the canonical path of a variable or layer. It is empty if the operation's name has neither."""
        # Collectives of the update serve no layer.
        layer = None
        if traffic.phase != "update":
            layer = self._layer(tensor.operation)
        if layer is None:
            return ""
        gathers_variable = traffic.kind == "all_gather"
        sums_gradient = traffic.phase == "backward" and _sums_gradients(traffic.axis, self._data_axes)
        if gathers_variable or sums_gradient:
            return self._claim_variable(layer, tensor, traffic) or layer
        return layer

    def _layer(self, operation: str) -> str | None:
        """Returns the layer with the longest path in an operation's scopes.

        Returns None if there is none.

        Every run of scopes is looked up among the layers, and not every layer in the scopes: a deep model has more
        layers, but no longer scopes.
        """
        if operation not in self._layer_of_operation:
            scopes = re.sub(r"transpose\(|jvp\(|\)", "", operation).replace(".", "/").split("/")
            candidates = set[str]()
            for stop in range(1, len(scopes) + 1):
                for start in range(stop):
                    path = "/".join(scopes[start:stop])
                    if path in self._layer_order:
                        candidates.add(path)
            self._layer_of_operation[operation] = max(
                candidates, key=lambda path: (len(path), -self._layer_order[path]), default=None
            )
        return self._layer_of_operation[operation]

    def _claim_variable(self, layer: str, tensor: CarriedTensor, traffic: Traffic) -> str | None:
        """Claims the layer's next variable of the tensor's dims, or of its size."""
        gathers = traffic.kind == "all_gather"
        index = (layer, gathers, traffic.axis)
        if index not in self._variables_by_size:
            self._variables_by_size[index] = self._by_size(layer, traffic.axis, gathers=gathers)
        variables = self._variables_by_size[index]
        size: _Size = tuple(sorted(tensor.shape))
        if size not in variables:
            size = math.prod(tensor.shape)
        candidates = variables.get(size, [])
        search = (layer, traffic, size)
        while self._next[search] < len(candidates):
            path = candidates[self._next[search]]
            self._next[search] += 1
            if (traffic, path) not in self._claimed:
                self._claimed.add((traffic, path))
                return path
        return None

    def _by_size(self, layer: str, axis: str, *, gathers: bool) -> dict[_Size, list[str]]:
        """Returns a layer's variables that a collective may serve, by size."""
        variables: dict[_Size, list[str]] = {}
        for path in self._layers[layer]:
            if not gathers and path not in self._trainable:
                continue
            shapes = _device_shapes(self._placements[path], axis, self._axes)
            sizes: list[_Size] = [tuple(sorted(shape)) for shape in shapes]
            sizes += map(math.prod, shapes)
            for size in dict.fromkeys(sizes):
                variables.setdefault(size, []).append(path)
        return variables


def _sums_gradients(axis: str, data_axes: Collection[str]) -> bool:
    """Returns whether a sum in the backward pass is one of gradients. It runs over an axis that shards the inputs."""
    return not set(data_axes).isdisjoint(axis.split("+"))


def _device_shapes(placement: Placement, axis: str, axes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Returns the shapes that one device may hold of a variable.

    The first is that of the shard gathered over the collective's axes, the second that of the stored shard.
    """
    gathered = replace(placement, spec=without_axes(placement.spec, axis.split("+")))
    return [gathered.shard_shape(axes), placement.shard_shape(axes)]

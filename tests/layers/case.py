"""What a case of the table is: a layer, its arguments, and what it is called with."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from runner.data.base import Array, ArraySpec


@dataclass(frozen=True)
class Of:
    """An object of the library that an argument holds, as a layer in a wrapper or a constraint.

    Attributes:
      path: below the library, as `constraints.MaxNorm`; a layer goes by its name alone.
      arguments: of its class.
    """

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def made(self, library: ModuleType, **more: Any) -> Any:
        """Returns the object."""
        return found(library, self.path)(**values(library, self.arguments), **more)

    def __str__(self) -> str:
        return f"{self.path}({text(self.arguments)})"


@dataclass(frozen=True)
class By:
    """An argument that only code can give, as a function.

    Attributes:
      name: of it, for the page.
      make: returns it, of the library.
    """

    name: str
    make: Callable[[ModuleType], Any]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Tensor:
    """One array that a layer is called with.

    Attributes:
      shape: of an example.
      dtype: `float32`, or `int32` of whole numbers, which have no gradient.
      low: least value; of normal numbers None.
      high: of values below it.
      keyword: of the call, for what is no plain input.
      as_bool: handed on as true or false.
      masked: what the numbers of an example's last steps are, from another step on in each example; None: none is.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float | None = None
    high: float = 1.0
    keyword: str = ""
    as_bool: bool = False
    masked: float | None = None

    @property
    def spec(self) -> ArraySpec:
        """Spec of the dataset's array."""
        return ArraySpec(self.shape, self.dtype)

    def drawn(self, count: int, name: str) -> Array:
        """Returns (count, *shape), a function of the name."""
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        size = (count, *self.shape)
        if self.dtype != "float32":
            return rng.integers(int(self.low or 0), int(self.high), size).astype(self.dtype)
        drawn = rng.normal(size=size) if self.low is None else rng.uniform(self.low, self.high, size)
        if self.masked is not None:
            for row in range(count):
                drawn[row, 1 + row % self.shape[0] :] = self.masked
        return drawn.astype(np.float32)


def numbers(*shape: int, **more: Any) -> Tensor:
    """Normal numbers."""
    return Tensor(shape, **more)


def counts(*shape: int, below: int, **more: Any) -> Tensor:
    """Whole numbers from 0 on."""
    return Tensor(shape, "int32", 0, below, **more)


def flags(*shape: int, keyword: str) -> Tensor:
    """Mask whose rows are true or false, the first always true."""
    return Tensor(shape, "int32", 0, 4, keyword, as_bool=True)


def pixels(*shape: int, most: float = 1.0) -> Tensor:
    """Values of an image."""
    return Tensor(shape, low=0.02 * most, high=0.98 * most)


@dataclass(frozen=True)
class Case:
    """One layer with one set of arguments.

    Attributes:
      layer: its class.
      arguments: of it.
      inputs: what it is called with.
      call: further arguments of the call.
      within: a layer that the layer is handed to, as a cell to RNN; empty: it stands by itself.
      before: layers that its first input goes through first, as Masking.
      then: layers that its output goes through, before it is flattened.
      style: how inputs are given: `list`; `spread`, one argument each; `dict`; `state`, those behind the first as a
        recurrent layer's state; `reverse`, by a second call that turns the first one round.
      tolerance: relative, of the largest entry; more than float32's where it computes in less.
      again: how often it is called in one model.
    """

    layer: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[Tensor, ...] = ()
    call: Mapping[str, Any] = field(default_factory=dict)
    within: str = ""
    before: tuple[Of, ...] = ()
    then: tuple[Of, ...] = ()
    style: str = "list"
    tolerance: float = 1e-4
    again: int = 1

    @property
    def told(self) -> str:
        """The arguments in words, as a user writes them; with all that makes it another case."""
        parts = [text(self.arguments), *(f"called with {key}={value}" for key, value in self.call.items())]
        parts += [f"called with {tensor.keyword}" for tensor in self.inputs if tensor.keyword]
        parts += [f"{'after' if where == 'before' else 'before'} {each}" for where, each in self._around()]
        parts += ["there and back"] if self.style == "reverse" else []
        parts += ["with its first state"] if self.style == "state" else []
        parts += [f"called {self.again} times"] if self.again > 1 else []
        shapes = " and ".join(str(list(tensor.shape)) for tensor in self.inputs)
        return f"{', '.join(part for part in parts if part)} on {shapes}".removeprefix(" ")

    def _around(self) -> list[tuple[str, Of]]:
        return [("before", each) for each in self.before] + [("then", each) for each in self.then]

    @property
    def name(self) -> str:
        """The case's own name: layer and arguments."""
        return f"{self.layer}: {self.told}"


def found(library: ModuleType, path: str) -> Any:
    """Returns what a path names below a library; of a name alone, the layer."""
    held: Any = library if "." in path and not path.startswith("experimental.") else library.layers
    for part in path.split("."):
        held = getattr(held, part)
    return held


def values(library: ModuleType, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments with their objects made."""
    return {key: _value(library, value) for key, value in arguments.items()}


def _value(library: ModuleType, value: Any) -> Any:
    if isinstance(value, Of):
        return value.made(library)
    if isinstance(value, By):
        return value.make(library)
    if isinstance(value, list) and any(isinstance(each, Of) for each in value):
        return [_value(library, each) for each in value]
    return value


def text(arguments: Mapping[str, Any]) -> str:
    """Returns arguments as a user writes them."""
    return ", ".join(f"{key}={_written(value)}" for key, value in arguments.items())


def _written(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return str(value) if isinstance(value, Of | By) else repr(value).replace("'", '"')

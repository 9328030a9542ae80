"""What a variable is to a transformer, and the words of its path that tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from runner.layout.specs import Shape


@dataclass(frozen=True)
class Role:
    """What of a variable can be split.

    Attributes:
      noun: of what is shared out, as "heads".
      owner: the layer or block that it belongs to.
      units: how many there are; a model axis must divide them.
      dim: of the variable in which they stand; None: it is whole on every device.
      whole: why, of one that is whole.
      width: the dim of the model's width, which may be split in store.
      experts: the dim of a mixture's experts.
      stacked: 1 where dim 0 counts the layers of a scan.
      adapter: half of one of low rank; why it is whole is told of its kernel.
    """

    noun: str
    owner: str
    units: int
    dim: int | None = None
    whole: str = ""
    width: int | None = None
    experts: int | None = None
    stacked: int = 0
    adapter: bool = False

    @property
    def count(self) -> str:
        """Returns what is shared out, as "4 heads"."""
        return f"{self.units:,} {self.noun.removesuffix('s') if self.units == 1 else self.noun}"

    @property
    def words(self) -> str:
        """Returns what is shared out and whose, as "4 heads of block_0/attention"."""
        return f"{self.count} of {self.owner or 'the model'}"

    def below(self, stacked: int) -> Role:
        """Returns the role of a variable of stacked layers, every dim one further."""
        dims = (dim if dim is None else dim + stacked for dim in (self.dim, self.width, self.experts))
        dim, width, experts = dims
        return replace(self, stacked=stacked, dim=dim, width=width, experts=experts)


@dataclass(frozen=True)
class Layer:
    """A layer with a kernel.

    Attributes:
      path: of the layer.
      name: its last part.
      kernel: path of the kernel.
      shape: the kernel's, without a dim of stacked layers.
      bias: the bias's shape likewise; None: it has none.
    """

    path: str
    kernel: str
    shape: Shape
    bias: Shape | None

    @property
    def name(self) -> str:
        """Returns the last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> str:
        """Returns the path of what holds the layer."""
        return self.path.rpartition("/")[0]

    @property
    def bias_path(self) -> str:
        """Returns the path of the bias."""
        return f"{self.path}/bias"


def layers(variables: Mapping[str, Shape]) -> list[Layer]:
    """Returns the layers that have a kernel of two dims or more, in order."""
    found = []
    for path, shape in variables.items():
        layer, _, name = path.rpartition("/")
        if name == "kernel" and layer and len(shape) >= 2:
            found.append(Layer(layer, path, shape, variables.get(f"{layer}/bias")))
    return found


def tokens(name: str) -> set[str]:
    """Returns the words of a layer's name, as {"query", "dense"} of `query_dense`."""
    return set(re.findall(r"[a-z]+", name.lower()))


def above(path: str) -> Iterator[str]:
    """Yields what holds a path, from the nearest; not the model itself."""
    while path := path.rpartition("/")[0]:
        yield path

"""Roles of variables in a transformer, and the words of paths that indicate them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from runner.layout.axes import Shape


@dataclass(frozen=True)
class Role:
    """Sharding of a variable of a transformer, by the units that a dim counts.

    Attributes:
      units: number of units; a model axis must divide it.
      dim: of the variable, which counts the units; None: it is replicated over a model axis.
      why_replicated: the reason, if `dim` is None.
      width: the dim of the model width, which FSDP may shard.
      experts: the dim of a mixture's experts.
      stacked: 1 if dim 0 counts the layers of a scan.
      adapter: one of the two kernels of LoRA; the reason for its sharding is that of the adapted kernel.
    """

    noun: str
    owner: str
    units: int
    dim: int | None = None
    why_replicated: str = ""
    width: int | None = None
    experts: int | None = None
    stacked: int = 0
    adapter: bool = False

    @property
    def count(self) -> str:
        """The units, for example "4 heads"."""
        noun = self.noun
        if self.units == 1:
            noun = noun.removesuffix("s")
        return f"{self.units:,} {noun}"

    @property
    def description(self) -> str:
        """The units and their owner, for example "4 heads of block_0/attention"."""
        return f"{self.count} of {self.owner or 'the model'}"

    def below_stack(self) -> Role:
        """Returns the role of the same variable of stacked layers, its dims shifted by one."""
        # Dim 0 of stacked variables counts the layers, so each dim of the single variable comes one later.
        return replace(
            self,
            stacked=1,
            dim=_next_dim(self.dim),
            width=_next_dim(self.width),
            experts=_next_dim(self.experts),
        )


def _next_dim(dim: int | None) -> int | None:
    if dim is None:
        return None
    return dim + 1


@dataclass(frozen=True)
class Layer:
    """A layer: its path, and path and shape of its kernel and bias, without a dim of stacked layers."""

    path: str
    kernel: str
    shape: Shape
    bias: Shape | None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> str:
        """The path without its last part."""
        return self.path.rpartition("/")[0]

    @property
    def bias_path(self) -> str:
        """The path of the bias."""
        return f"{self.path}/bias"


def layers(variables: Mapping[str, Shape]) -> list[Layer]:
    """Returns the layers that have a kernel of two or more dims, in order."""
    with_kernel = []
    for path, shape in variables.items():
        layer, _, name = path.rpartition("/")
        if name == "kernel" and layer and len(shape) >= 2:
            with_kernel.append(Layer(layer, path, shape, variables.get(f"{layer}/bias")))
    return with_kernel


def words_of(name: str) -> set[str]:
    """Returns the words of a layer's name: {"query", "dense"} of `query_dense`."""
    # Numbers are left out: `query_1` is a query too.
    return set(re.findall(r"[a-z]+", name.lower()))


def ancestors(path: str) -> Iterator[str]:
    """Yields the paths that contain a path, from the nearest, without the model itself."""
    parent = path.rpartition("/")[0]
    while parent:
        yield parent
        parent = parent.rpartition("/")[0]

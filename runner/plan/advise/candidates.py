"""Candidates: meshes, layouts, activation checkpointing, gradient accumulation and precision of the state.

Pure functions of what the model allows. Nothing here knows of memory or time.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.layout import mesh

BATCH = "batch"
EXPERTS = "experts"
SEQUENCE = "sequence"
MODEL = "model"
# The option whose axes a candidate replaces.
MESH = "mesh=single"
REPLICATED = "replicated"
FSDP = "fsdp"
MEGATRON = "megatron"
FSDP_MEGATRON = "fsdp_megatron"
EXPERTS_LAYOUT = "experts"
# Layouts that shard over the model axis.
TENSOR = (MEGATRON, FSDP_MEGATRON)
# Values of the options that save memory, those first that cost the least time.
_REMATS = ("none", "dots_saveable", "full")
_BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class Candidate:
    """One combination of options.

    Attributes:
      axes: (name, size) of each mesh axis; the last fills a node first.
      sequence: tokens are sharded over the axis `sequence`.
      remat: `model.remat`; None: the model has no such option, or the command line sets it.
    """

    axes: tuple[tuple[str, int], ...]
    layout: str
    sequence: bool
    remat: str | None
    accumulate: int
    state: str

    @property
    def sizes(self) -> dict[str, int]:
        """Returns size by mesh axis."""
        return dict(self.axes)

    @property
    def savings(self) -> int:
        """Returns in how many ways it saves memory: activation checkpointing, accumulation, precision of the state."""
        return (self.remat not in (None, "none")) + (self.accumulate > 1) + (self.state != "float32")

    def overrides(self) -> list[str]:
        """Returns the candidate as on a command line."""
        # The axes of the option are replaced by those of the second override, see `runner.config.short_keys`.
        words = [MESH, f"mesh.axes={mesh.braced(self.sizes)}", f"layout={self.layout}"]
        if self.sequence:
            words.append(f"layout.sequence={SEQUENCE}")
        if self.remat is not None:
            words.append(f"model.remat={self.remat}")
        words.append(f"trainer.accumulate_steps={self.accumulate}")
        words.append(f"engine.state={self.state}")
        return words


@dataclass(frozen=True)
class Allowed:
    """What the model, its data and the command line leave open.

    Attributes:
      axes: names of the axes that may have more than one device.
      layouts: options of the group; empty: all that suit the axes.
      remats: values of `model.remat`, those first that cost the least time; (None,): nothing to choose.
      accumulates: values of `trainer.accumulate_steps`, ascending.
      states: values of `engine.state`, those first that cost no precision.
    """

    axes: tuple[str, ...]
    layouts: tuple[str, ...]
    remats: tuple[str | None, ...]
    accumulates: tuple[int, ...]
    states: tuple[str, ...]


def allowed(start: Candidate, batch_size: int, precision: str, typed: Collection[str], axes: Sequence[str]) -> Allowed:
    """Returns what a command line leaves open: the keys and groups that it has `typed` are those of `start`."""
    layouts: tuple[str, ...] = ()
    if "layout" in typed:
        layouts = (start.layout,)
    remats: tuple[str | None, ...] = (None,)
    if start.remat is not None and "model.remat" not in typed:
        remats = _REMATS
    accumulates = _divisors(batch_size)
    if "trainer.accumulate_steps" in typed:
        accumulates = (start.accumulate,)
    states: tuple[str, ...] = (start.state,)
    # The checks of the engine reject another state than float32 with other precisions.
    if precision == _BFLOAT16 and "engine.state" not in typed:
        states = ("float32", "master", _BFLOAT16)
    return Allowed(tuple(axes), layouts, remats, accumulates, states)


def _divisors(batch_size: int) -> tuple[int, ...]:
    """Returns the powers of two that divide a batch: 1, 2, 4 and 8 of 24, 1 of 7."""
    divisors = [1]
    while batch_size % (2 * divisors[-1]) == 0:
        divisors.append(2 * divisors[-1])
    return tuple(divisors)


def meshes(devices: int, axes: Sequence[str]) -> list[tuple[tuple[str, int], ...]]:
    """Returns every mesh of so many devices: each way to write their number as a product over the axes, outermost
    first.

    The first of `axes` is the batch axis, which is always in the mesh; others are if they have several devices.

    Example:
      >>> meshes(4, ["batch", "model"])
      [(('batch', 4),), (('batch', 2), ('model', 2)), (('batch', 1), ('model', 4))]
    """
    others = axes[1:]
    products = []
    for sizes in _factorizations(devices, len(others)):
        inner = []
        for name, size in zip(others, sizes, strict=False):
            if size > 1:
                inner.append((name, size))
        products.append(((BATCH, sizes[-1]), *inner))
    return products


def _factorizations(number: int, others: int) -> Iterator[tuple[int, ...]]:
    """Yields the factors of a number, of which the last is what the others leave."""
    if others == 0:
        yield (number,)
        return
    for divisor in range(1, number + 1):
        if number % divisor == 0:
            for rest in _factorizations(number // divisor, others - 1):
                yield (divisor, *rest)


def layouts_of(sizes: Mapping[str, int], layouts: Sequence[str] = ()) -> list[str]:
    """Returns which of some layouts, or of the presets for transformers, use every axis of a mesh but `sequence`."""
    if layouts:
        return list(layouts)
    if MODEL in sizes:
        suited = [MEGATRON, FSDP_MEGATRON]
    elif EXPERTS in sizes:
        suited = [EXPERTS_LAYOUT]
    else:
        suited = [REPLICATED, FSDP]
    if sizes[BATCH] == 1:
        # The second shards weights over the batch axis, which has no effect.
        return suited[:1]
    return suited


def placements(devices: int, options: Allowed) -> list[Candidate]:
    """Returns one candidate per mesh and layout, with the first of the other options."""
    starts = []
    for axes in meshes(devices, options.axes):
        sizes = dict(axes)
        for layout in layouts_of(sizes, options.layouts):
            start = Candidate(
                axes=axes,
                layout=layout,
                sequence=SEQUENCE in sizes,
                remat=options.remats[0],
                accumulate=options.accumulates[0],
                state=options.states[0],
            )
            starts.append(start)
    return starts


def savers(options: Allowed) -> list[tuple[str, str | None, int]]:
    """Returns all combinations of state, remat and accumulation; after each come those that save more."""
    ranks = itertools.product(range(len(options.states)), range(len(options.remats)), range(len(options.accumulates)))
    combinations = []
    # A combination that saves no more than another one in any of the three has a smaller sum of ranks, so `explored`
    # tries it first. The sort is stable.
    for state, remat, steps in sorted(ranks, key=sum):
        combinations.append((options.states[state], options.remats[remat], options.accumulates[steps]))
    return combinations


def is_beyond(options: Allowed, saver: tuple[str, str | None, int], other: tuple[str, str | None, int]) -> bool:
    """Returns whether a combination saves as much as another in state, remat and accumulation, or more.

    If the other fits, such a combination only costs time or precision.
    """
    is_later = options.states.index(saver[0]) >= options.states.index(other[0])
    recomputes = options.remats.index(saver[1]) >= options.remats.index(other[1])
    return is_later and recomputes and saver[2] >= other[2]

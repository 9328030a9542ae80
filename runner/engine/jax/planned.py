# ruff: noqa: D102 - an engine overrides what Engine documents
"""The engine `jax` for devices that are not here: it traces and compiles, and never runs a step.

A plan by arithmetic needs a mesh of names and sizes only. A plan by the target's compiler needs a description of its
devices, which the plugins of JAX make on a machine that has none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.stages import Lowered

from runner import layout
from runner.config.schema import HardwareConfig
from runner.data.base import WEIGHT
from runner.engine.base import HostBatches, LossShapes, LossSplit, PlacedBatches, TracedSizes
from runner.engine.calls import cut
from runner.engine.common import splits_examples_alone
from runner.engine.devices import COMPILERS, has_compiler
from runner.engine.jax import private, residuals
from runner.engine.jax.compile import Options
from runner.engine.jax.engine import JaxEngine
from runner.engine.jax.layers.chunked_loss import Pair, bytes_of_chunk, chunk_count
from runner.engine.jax.layers.fused_attention import divide_heads, head_counts
from runner.engine.jax.partitioning import MeshLayout, Partitioning, token_parts
from runner.engine.jax.step import Step
from runner.errors import invalid
from runner.layout.axes import names_of
from runner.layout.mesh import device_kind

ARITHMETIC = "arithmetic"
TARGET = "target"
_GPU = "gpu"
# XLA's description of a GPU: runner/engine/jax/targets/<name>.txtpb.
_DESCRIPTIONS = Path(__file__).with_name("targets")
# Chips of one host of a TPU topology, as its compiler names them, and the number of dims of its torus.
_TORUS_DIMS = {"v4": 3, "v5p": 3, "v5e": 2, "v6e": 2}
# cuDNN's fused attention takes heads up to this size (Hopper and later take 256, which JAX does not use in training).
_LARGEST_FUSED_HEAD = 128


class PlannedEngine(JaxEngine):
    """Keras 3 on JAX for a plan: by arithmetic, or compiled by the compiler of the config's hardware."""

    # Another engine has checked the same model, which takes a trace of its own.
    is_checked = False

    def _make_mesh(self) -> Mesh:
        config = self._config
        return make_mesh(config.mesh.axes, config.plan.compiler, config.hardware)

    def _attention(self) -> AbstractContextManager[None]:
        config = self._config
        return attention_of(config.hardware.kind or config.mesh.device, config.plan.compiler)

    def _make_programs(self) -> None:
        if self._config.plan.compiler == ARITHMETIC:
            # Nothing is compiled.
            self._make_step()
            return
        with self._attention():
            super()._make_programs()

    def _check_model(self) -> None:
        if not self.is_checked:
            super()._check_model()

    def _step_on(self, partitioning: Partitioning) -> Step:
        step = super()._step_on(partitioning)
        head_losses = step.ops.head_losses
        assert head_losses is not None
        self._losses: dict[LossShapes, None] = {}

        def noted(hidden: jax.Array, head: jax.Array, *others: jax.Array) -> Pair:
            self._losses[LossShapes(hidden.shape[1], *head.shape)] = None
            losses: Pair = head_losses(hidden, head, *others)
            return losses

        step.ops = replace(step.ops, head_losses=noted)
        return step

    def _noting_heads(self, attention: private.ArrayFunction) -> private.ArrayFunction:

        def noted(query: jax.Array, key: jax.Array, value: jax.Array, **options: object) -> jax.Array:
            self._head_counts[head_counts((query, key))] = None
            attended: jax.Array = attention(query, key, value, **options)
            return attended

        return noted

    def traced_sizes(self) -> TracedSizes:
        """Returns the sizes of losses and attentions that `saved_activations` has traced."""
        return TracedSizes(tuple(self._losses), tuple(self._head_counts))

    def traced_as(
        self, shapes: Mapping[str, tuple[int, ...]], sizes: TracedSizes
    ) -> tuple[tuple[Hashable, ...], LossSplit]:
        """Returns what the traced forward pass depends on beside model and config, and how it splits the losses.

        Two meshes with the same first value have the same forward pass, except for the sizes of C, P and S in the
        arrays of the losses. It may be asked before the engine is built.
        """
        config = self._config
        mesh = self._make_mesh()
        placements = layout.resolve(config.layout, shapes, self.axes)
        on = MeshLayout(mesh, config.layout, placements, self._array_specs)
        parts = token_parts(on, self._data, on.roles())
        most_bytes = bytes_of_chunk(device_kind(config.mesh))
        chunks = []
        for loss in sizes.losses:
            count = chunk_count(parts, self._microbatch_size, loss.tokens, loss.vocabulary, most_bytes)
            # A loss in one chunk is computed whole if there are several parts, see `chunked`.
            is_whole = count == 1 and parts.examples * parts.sequence > 1
            if is_whole:
                count = 0
            chunks.append(count)
        split = LossSplit(tuple(chunks), parts.examples, parts.sequence)
        splits_tokens = parts.sequence > 1
        splits_rows = not splits_examples_alone(self._array_specs)
        # Fused attention is left out where tokens are split, and where an axis does not divide the heads.
        (batch_axis,) = self._array_specs[WEIGHT]
        others = [size for axis, size in self.axes.items() if axis not in names_of(batch_axis)]
        fused = tuple(not splits_tokens and divide_heads(others, heads) for heads in sizes.heads)
        return (split.joined.chunks, splits_rows, fused), split

    def place(self, batches: HostBatches) -> PlacedBatches:
        arrays: dict[str, jax.ShapeDtypeStruct] = {}
        for name, array in cut(batches, self._microbatches).items():
            dtype = jax.dtypes.canonicalize_dtype(array.dtype)
            arrays[name] = jax.ShapeDtypeStruct(array.shape, dtype, sharding=self._stacked_shardings[name])
        return PlacedBatches(arrays, batches.weights, batches.steps)

    def _lowered(self, arguments: Sequence[object]) -> Lowered:
        with self._attention():
            return super()._lowered(arguments)

    def _compiler_options(self) -> Options:
        return {}

    def saved_activations(self) -> list[tuple[tuple[int, ...], str]]:
        count = jax.ShapeDtypeStruct((), np.float32)
        microstep = jax.ShapeDtypeStruct((), np.int32)
        step = self._functions

        def losses(trainable: list[jax.Array], *arguments: Any) -> tuple[jax.Array, object]:
            return step.losses(step.used_weights(trainable), *arguments)

        state = self._state
        self._head_counts: dict[tuple[int, ...], None] = {}
        with self._attention(), private.attention_replaced(self._noting_heads):
            saved, self._scores = saved_arrays(
                losses,
                state.trainable,
                state.non_trainable,
                self._microbatch_shapes(),
                count,
                microstep,
            )
        return _described(saved)

    def attention_scores(self) -> list[list[tuple[tuple[int, ...], str]]]:
        """Returns the scores of attention that `saved_activations` has traced, by block."""
        return [_described(scores) for scores in self._scores]


def _described(arrays: Iterable[residuals.Aval]) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(array.shape), str(array.dtype)) for array in arrays]


# The name under which `runner.engine.registry` finds the engine.
make = PlannedEngine


def make_mesh(axes: Mapping[str, int], compiler: str, hardware: HardwareConfig) -> Mesh:
    """Returns the mesh of a plan, whose devices need not exist; raises ConfigError if no compiler has them."""
    if compiler == ARITHMETIC:
        # Whatever reads shapes and shardings takes the abstract mesh as it takes a mesh of devices. From JAX 0.11 on,
        # the axes of an abstract mesh are explicit by default.
        kinds = (AxisType.Auto,) * len(axes)
        abstract: Any = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)
        return abstract
    devices = _target_devices(axes, hardware)
    return Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes))


def _target_devices(axes: Mapping[str, int], hardware: HardwareConfig) -> list[jax.Device]:
    kind = hardware.kind or ""
    target = hardware.target or ""
    if not has_compiler(kind):
        _, extra = COMPILERS[kind]
        problem = f"the compiler of hardware={hardware.name} is not installed"
        fix = f"pip install -e '.[{extra}]', which needs no {kind.upper()}, or set plan.compiler={ARITHMETIC}"
        raise invalid("plan.compiler", TARGET, problem=problem, fix=fix)
    count = math.prod(axes.values())
    if kind == _GPU:
        return _gpus(target, count, hardware.node_devices or count)
    return _tpus(axes, target, hardware.name)


def _gpus(target: str, count: int, per_node: int) -> list[jax.Device]:
    description = _DESCRIPTIONS / f"{target}.txtpb"
    if not description.is_file():
        fix = f"add {description.name} to {description.parent.name}/, or set plan.compiler={ARITHMETIC}"
        raise invalid("hardware.target", target, problem="there is no description of this GPU for XLA", fix=fix)
    per_node = math.gcd(count, per_node)
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=description.read_text(), topology=f"1x{count // per_node}x{per_node}"
    )
    return list(topology.devices)


def _tpus(axes: Mapping[str, int], target: str, hardware: str | None) -> list[jax.Device]:
    # Without the first, the compiler asks Google Cloud's metadata server; without the second, two plans at a time
    # abort on a lock file.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    shape = torus(math.prod(axes.values()), _TORUS_DIMS.get(target, 2))
    name = f"{target}:{'x'.join(map(str, shape))}"
    try:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=name)
    except Exception as error:  # libtpu raises errors of several types.
        problem = f"the compiler of hardware={hardware} has no topology {name}"
        fix = "choose a number of devices that is a slice of this TPU, such as 64 or 256"
        raise invalid("mesh.axes", axes, problem=problem, fix=fix) from error
    return list(topology.devices)


def torus(count: int, dims: int) -> tuple[int, ...]:
    """Returns the sizes of a torus of so many devices, as equal as they can be, ascending.

    >>> torus(256, 3)
    (4, 8, 8)
    """
    sizes = [1] * dims
    left = count
    divisor = 2
    factors = []
    while left > 1:
        while left % divisor == 0:
            factors.append(divisor)
            left //= divisor
        divisor += 1
    for factor in reversed(factors):
        sizes[sizes.index(min(sizes))] *= factor
    return tuple(sorted(sizes))


@contextmanager
def attention_of(kind: str | None, compiler: str) -> Iterator[None]:
    """Makes Keras choose attention as it would on the plan's devices, while the context lasts.

    Keras asks `jax.devices()`, which are those of this machine. On GPUs it takes cuDNN's fused attention in 16 bits.
    On TPUs its splash attention falls back to plain attention, because a causal mask under jit is traced.
    """
    if kind != _GPU:
        yield
        return
    if compiler == TARGET:
        with private.gpu_attention(_can_fuse):
            yield
        return
    with private.attention_replaced(_with_fused_shapes):
        yield


def _can_fuse(query: jax.Array, key: jax.Array, value: jax.Array, bias: object, **_: object) -> bool:
    """Returns whether cuDNN's fused attention takes these arrays (B, T, H, K)."""
    del bias
    for array in (query, key, value):
        if array.dtype.itemsize != 2 or array.shape[-1] % 8 or array.shape[-1] > _LARGEST_FUSED_HEAD:
            return False
    return True


def _with_fused_shapes(stock_attention: private.ArrayFunction) -> private.ArrayFunction:
    """Returns an attention whose saved arrays have the shapes of cuDNN's; it is traced and never run."""

    def attention(
        query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None = None, **options: object
    ) -> jax.Array:
        if options.get("flash_attention") is False or not _can_fuse(query, key, value, bias):
            return stock_attention(query, key, value, bias=bias, **options)
        attended: jax.Array = _fused(query, key, value)
        return attended

    return attention


@partial(jax.custom_vjp)
def _fused(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Returns an array of the shape and dtype of the attended values."""
    return query + (jnp.sum(key) + jnp.sum(value)).astype(query.dtype)


def _fused_forward(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    attended = _fused(query, key, value)
    # cuDNN keeps the logarithms of the softmax's sums, (B, H, T).
    sums = jnp.sum(attended.astype(jnp.float32), axis=-1).swapaxes(1, 2)
    return attended, (query, key, value, attended, sums)


def _fused_backward(saved: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, ...]:
    query, key, value, attended, sums = saved
    factor = (jnp.sum(sums) + jnp.sum(attended) + jnp.sum(gradient)).astype(query.dtype)
    return query * factor, key * factor, value * factor


_fused.defvjp(_fused_forward, _fused_backward)


def saved_arrays(
    function: Callable[..., Any], weights: object, *others: object
) -> tuple[list[residuals.Aval], list[list[residuals.Aval]]]:
    """Returns the arrays that a forward pass keeps for the backward pass, and its scores of attention by block.

    All have their whole shapes. Weights and arguments themselves are left out, and so is what XLA computes again from
    other arrays, or what is offloaded to host memory. Activation checkpointing is applied as it is in a step. The
    function returns (loss, anything).
    """

    def forward(weights: object, *others: object) -> object:
        _, backward, _ = jax.vjp(lambda variables: function(variables, *others), weights, has_aux=True)
        return backward

    trace = jax.make_jaxpr(forward)(weights, *others).jaxpr
    saved = []
    for aval in residuals.held(trace, trace.outvars):
        if aval.memory_space != jax.memory.Space.Host:
            saved.append(aval)
    return saved, residuals.scores(trace)

"""The partition of a step's computation over the mesh: shardings that steps pin, parts that layers and losses use.

XLA's partitioner chooses the sharding of every array between the state and the batch. The shardings here replace
choices of its own that are wrong, or that communicate more than needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runner.config.schema import LayoutConfig, RuleConfig
from runner.data.base import WEIGHT
from runner.engine.jax import private
from runner.engine.jax.layers.chunked_loss import WHOLE, TokenParts
from runner.engine.jax.layers.gradients import Spread, spread_over, unused_axes
from runner.engine.mappings import map_values, shapes_of
from runner.errors import ConfigError, invalid
from runner.layout import Placement, Spec, transformers
from runner.layout.axes import JOIN, axis_size, data_axes, inner_batch_axis, names_of, without_axes
from runner.layout.roles import Role
from runner.task.base import DataSpec
from runner.task.language_model import HIDDEN


@dataclass(frozen=True)
class Partitioning:
    """The partition of a step's computation over the mesh.

    Attributes:
      state: shardings of the step's state, in a tree of its structure.
      arrays: shardings of a micro-batch's arrays (B, ...), of `row` and of `weight`, by name.
      sums: sharding of the numbers of a call's examples, (K, B).
      gathered: shardings of trainable variables that the step gathers before the model uses them, by their index.
      heads_axis: axis that splits the heads of queries, keys and values in every attention; None: no such axis.
      spread_images: see `runner.engine.jax.layers.gradients.exact_gradients`.
    """

    state: Any
    arrays: Mapping[str, NamedSharding]
    sums: NamedSharding
    gathered: Mapping[int, NamedSharding]
    heads_axis: str | None
    spread_images: Spread | None
    tokens: TokenParts


@dataclass(frozen=True)
class MeshLayout:
    """The inputs of a partitioning; `array_specs` are those of a batch's arrays, of `weight` and of `row`."""

    mesh: Mesh
    layout: LayoutConfig
    placements: Mapping[str, Placement]
    array_specs: Mapping[str, Spec]

    @property
    def axes(self) -> dict[str, int]:
        """Returns mesh axis -> size."""
        return dict(self.mesh.shape)

    @property
    def data_axes(self) -> set[str]:
        """Returns the axes that split batches."""
        return set(data_axes(self.layout, self.axes))

    def sharding(self, spec: Sequence[object]) -> NamedSharding:
        """Returns the sharding of a spec, one entry per dim."""
        return sharding(self.mesh, spec)

    def roles(self) -> dict[str, Role]:
        """Returns the roles by path, of attentions and of the vocabulary's variables."""
        return dict(transformers.read(shapes_of(self.placements)).roles)


def sharding(mesh: Mesh, spec: Sequence[object]) -> NamedSharding:
    """Returns the sharding of a spec, one entry per dim. An axis, several joined by `+`, None, or UNCONSTRAINED."""
    entries = [tuple(names_of(entry)) if isinstance(entry, str) and JOIN in entry else entry for entry in spec]
    return NamedSharding(mesh, PartitionSpec(*entries))


def partition(
    on: MeshLayout,
    model: keras.Model | None,
    trainable: Sequence[str],
    data: DataSpec,
    state: Any,
) -> Partitioning:
    """Returns how a mesh splits what a step computes.

    The model is None for a custom step, which has several: XLA gathers their vocabularies by itself.
    """
    roles = on.roles()
    gathered = {}
    if model is not None:
        gathered = _gathered_for_logits(on, model, trainable, roles)
    spread_images = None
    if _copies_images(on, data):
        spread_images = spread_over(on.mesh)
    return Partitioning(
        state=state,
        arrays=map_values(on.sharding, on.array_specs),
        sums=on.sharding((None, *on.array_specs[WEIGHT])),
        gathered=gathered,
        heads_axis=_heads_axis(on, roles),
        spread_images=spread_images,
        tokens=token_parts(on, data, roles),
    )


def unsplit(own: Partitioning, arrays: Mapping[str, NamedSharding]) -> Partitioning:
    """Returns the partition of a batch whose examples are on every device, with these shardings."""
    tokens = replace(own.tokens, examples=1, constrain=WHOLE.constrain)
    return replace(own, arrays=arrays, tokens=tokens)


def _copies_images(on: MeshLayout, data: DataSpec) -> bool:
    """Returns whether an axis splits devices but no array that a convolution may take, so that devices hold copies."""
    image_specs = []
    for name in data.inputs:
        spec = on.array_specs[name]
        # An image has a spatial dim at least, next to examples and channels.
        if len(spec) > 2:
            image_specs.append(spec)
    if not image_specs:
        # Without images among the inputs, a model may still make some of a vector per example.
        image_specs.append(on.array_specs[WEIGHT])
    return any(unused_axes(on.axes, spec) for spec in image_specs)


def token_parts(on: MeshLayout, data: DataSpec, roles: Mapping[str, Role]) -> TokenParts:
    """Returns how the mesh splits examples, tokens and logits.

    The tokens are along the first dim of the first input's examples.
    """
    spec = on.array_specs[data.task.input_names[0]]
    batch_axis = spec[0]
    sequence_axis = None
    if len(spec) > 1:
        sequence_axis = spec[1]

    def constrain(array: jax.Array, dim: int) -> jax.Array:
        # XLA chooses the sharding of the other dims.
        free = PartitionSpec.UNCONSTRAINED
        before = [free] * dim
        after = [free] * (array.ndim - dim - 2)
        return jax.lax.with_sharding_constraint(array, on.sharding([*before, batch_axis, sequence_axis, *after]))

    examples = axis_size(on.axes, batch_axis)
    sequence = axis_size(on.axes, sequence_axis)
    return TokenParts(examples, sequence, constrain, _vocabulary_parts(on, roles))


def _heads_axis(on: MeshLayout, roles: Mapping[str, Role]) -> str | None:
    """Returns the axis that splits the heads of all attentions alike; None: none does, or they differ."""
    axes_of_heads = set()
    for path, role in roles.items():
        if "heads" in role.noun and role.dim is not None and not role.adapter:
            axes_of_heads.add(on.placements[path].spec[role.dim])
    if len(axes_of_heads) != 1:
        return None
    (axis,) = axes_of_heads
    # Sharded over an axis of batches, kernels are gathered for use, and the heads that they make are whole.
    if axis in on.data_axes:
        return None
    return axis


def _gathered_for_logits(
    on: MeshLayout, model: keras.Model, trainable: Sequence[str], roles: Mapping[str, Role]
) -> dict[int, NamedSharding]:
    """Returns gathered shardings of those tables and heads of the vocabulary that are split twice, by their index.

    Of a head (D, V) with D sharded over `batch` and V over `model`, XLA would leave D sharded, gather the examples
    instead and sum whole logits over `batch`, and logits are the largest array of the step. A loss in chunks
    constrains the head by itself; a head that is sharded once is gathered by XLA.
    """
    if private.is_functional(model):
        # A Sequential model that was never called with symbolic inputs has no output: Keras raises AttributeError.
        outputs = getattr(model, "output", None)
        if isinstance(outputs, Mapping) and HIDDEN in outputs:
            return {}
    batch_axes = on.data_axes
    gathered = {}
    for index, path in enumerate(trainable):
        if path not in roles or roles[path].noun != transformers.VOCABULARY:
            continue
        spec = on.placements[path].spec
        used_axes = {axis for axis in spec if axis is not None and on.axes[axis] > 1}
        if used_axes & batch_axes and used_axes - batch_axes:
            gathered[index] = on.sharding(without_axes(spec, batch_axes))
    return gathered


def _vocabulary_parts(on: MeshLayout, roles: Mapping[str, Role]) -> int:
    """Returns the number of parts into which the vocabulary's tables and heads split a token's logits.

    The least of them if they differ, as only the model's code says which of them makes the logits.
    """
    parts = []
    for path, role in roles.items():
        if role.noun == transformers.VOCABULARY and role.dim is not None and not role.adapter:
            axis = on.placements[path].spec[role.dim]
            count = 1
            if axis is not None and axis not in on.data_axes:
                count = on.axes[axis]
            parts.append(count)
    return min(parts, default=1)


def with_own_map(
    config: LayoutConfig, model: keras.Model, variables: Mapping[str, keras.Variable], axes: Mapping[str, int]
) -> LayoutConfig:
    """Returns the layout with the model's own map as rules after the config's, one rule per variable.

    Raises:
      ConfigError: no layer of the model has a map, or the mesh lacks the map's axes.
    """
    kind: Any = None
    for layer in (model, *private.all_layers(model)):
        if hasattr(type(layer), "get_layout_map"):
            kind = type(layer)
            break
    if kind is None:
        raise _invalid_map("no layer of the model has a get_layout_map; KerasHub's Gemma, Llama and Qwen have one")
    # Keras wants devices for a mesh; the map reads only the mesh's axes. So one device may represent all of them,
    # as a plan needs that has more devices than this machine.
    devices = np.array(jax.devices()[:1] * math.prod(axes.values()))
    device_mesh = keras.distribution.DeviceMesh(tuple(axes.values()), tuple(axes), devices)
    data_axis = inner_batch_axis(config, axes)
    rules = []
    try:
        layout_map = kind.get_layout_map(device_mesh, "model", data_axis)
        for path, variable in variables.items():
            layout = layout_map[variable.path]
            if layout is None:
                continue
            # Optional: a rule of the config may match the variable first.
            rules.append(RuleConfig(re.escape(path), list(layout.axes), optional=True))
    except ValueError as error:  # Raised by Keras, for example for a mesh without an axis of the name.
        message = " ".join(str(error).split())
        raise _invalid_map(f"{kind.__name__}.get_layout_map raised: {message}") from error
    return replace(config, from_model=False, rules=[*config.rules, *rules])


def _invalid_map(problem: str) -> ConfigError:
    fix = "set layout=megatron or layout=auto, which derive rules from the structure of a transformer"
    return invalid("layout.from_model", "true", problem=problem, fix=fix)

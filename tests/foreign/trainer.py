"""A data-parallel training step by hand, around any loss, sound or with one of the bugs of public threads.

A *net* is a loss per example of `(weights, statistics, batch, key)`, which returns (B,) and new statistics. The
reference takes the whole batch on one device; the step on a mesh takes a part of it on each device and adds up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Tree = Any
Step = Callable[[Tree, Tree], tuple[Tree, Tree]]
# Bug -> the public threads that it is made after.
BUGS: Mapping[str, str] = {
    "gradients are not averaged": "torchtitan 3560",
    "one leaf is not averaged": "Megatron-LM 1736",
    "one leaf is averaged twice": "Megatron-LM 906",
    "gradients are summed": "jax 36886",
    "psum in the loss is differentiated": "jax 3970",
    "mean over unequal shards": "anemoi-core 1403",
    "padded rows are counted": "keras 19340",
    "gradients are scaled by the microbatches": "Megatron-LM 1754",
    "one key for all devices": "torchtitan 1799",
    "another key on each device": "torchtitan 1799",
    "batch statistics of a device": "keras-hub 2809",
    "a slot is stale": "pytorch 160285",
    "weight decay on each device": "pytorch 190746",
    "clipping by a device's norm": "pytorch 190746",
    "average of a device's weights": "torchtitan 3029",
    "sums in integers": "openxla 40034",
    "one leaf is off by 1.2": "Megatron-LM 1736",
    "a device's rows are read twice": "keras 19891",
}


@dataclass(frozen=True)
class Net:
    """A model with its loss.

    Attributes:
      loss: `(weights, statistics, batch, key, axis) -> (losses (B,), statistics)`; the axis is that of the devices,
        over which statistics go, and None on one device.
      weights: initial.
      batch: `(rows, rng) -> batch`, a mapping of arrays (rows, ...).
      bugs: those that show in it.
      statistics: initial, which the loss updates; None: it has none.
      clip: norm of the gradients.
      average: decay of moving averages of the weights.
      row_keys: the loss gets a key per row.
      padded: rows at the end of each batch that do not count.
    """

    loss: Callable[..., tuple[jax.Array, Tree]]
    weights: Tree
    batch: Callable[[int, np.random.Generator], Mapping[str, np.ndarray]]
    bugs: tuple[str, ...] = ()
    statistics: Tree = None
    optimizer: optax.GradientTransformation = field(default_factory=lambda: optax.adamw(1e-2, weight_decay=0.05))
    clip: float | None = None
    average: float | None = None
    microbatches: int = 1
    row_keys: bool = False
    padded: int = 0


@dataclass(frozen=True)
class Made:
    """A step, its reference and what they begin with."""

    step: Step
    reference: Step
    state: Tree
    batches: list[Tree]
    place: Callable[[Tree], Tree]
    place_batch: Callable[[Tree], Tree]


ROWS = 16


def make(net: Net, devices: int, bug: str = "") -> Made:
    """Returns the step on a mesh of devices, with a bug if one is named, and the reference."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(3):
        batch = dict(net.batch(ROWS, rng))
        batch["real"] = np.ones(ROWS, np.float32)
        batch["real"][ROWS - net.padded :] = 0
        batches.append(batch)
    tx = net.optimizer
    state = {
        "weights": net.weights,
        "statistics": net.statistics,
        "slots": tx.init(net.weights),
        "key": jax.random.key(1),
    }
    if net.average is not None:
        state["average"] = jax.tree.map(jnp.array, net.weights)
    spec = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    places = [partial(jax.tree.map, partial(_put, sharding=each)) for each in spec]
    return Made(_on_mesh(net, mesh, bug), jax.jit(partial(_whole, net)), state, batches, places[0], places[1])


def make_compiled(net: Net, devices: int, bug: str = "") -> Made:
    """Returns the whole step, which the compiler divides: rows over the devices, and weights by their last dim."""
    del bug
    made = make(net, devices)
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))

    def place(state: Tree) -> Tree:
        def sharding(leaf: Any) -> NamedSharding:
            sharded = leaf.ndim > 1 and leaf.shape[-1] % devices == 0
            return NamedSharding(
                mesh, PartitionSpec(*[None] * (leaf.ndim - 1), "data") if sharded else PartitionSpec()
            )

        return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding(leaf)), state)

    return replace(made, step=made.reference, place=place)


def _put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    return jax.device_put(leaf, sharding)


def _keys(net: Net, key: jax.Array, rows: int) -> jax.Array:
    """Returns a key per row of the whole batch, or one for all."""
    return jax.random.split(key, rows) if net.row_keys else key


def _part(tree: Tree, number: int, count: int) -> Tree:
    """Returns the rows of one of `count` microbatches."""
    return jax.tree.map(lambda leaf: leaf[number * (len(leaf) // count) : (number + 1) * (len(leaf) // count)], tree)


def _whole(net: Net, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
    key, own = jax.random.split(state["key"])
    count = batch["real"].sum()
    keys = _keys(net, own, ROWS)

    def mean(weights: Tree) -> tuple[jax.Array, Tree]:
        each, statistics = net.loss(weights, state["statistics"], batch, keys, axis=None)
        return jnp.where(batch["real"] > 0, each, 0).sum() / count, statistics

    (loss, statistics), gradients = jax.value_and_grad(mean, has_aux=True)(state["weights"])
    return _updated(net, state, gradients, statistics, key), {"loss": loss}


def _updated(net: Net, state: Tree, gradients: Tree, statistics: Tree, key: jax.Array, bug: str = "") -> Tree:
    if net.clip is not None:
        norm = optax.global_norm(gradients)
        gradients = jax.tree.map(lambda g: g * jnp.minimum(1.0, net.clip / norm), gradients)
    updates, slots = net.optimizer.update(gradients, state["slots"], state["weights"])
    weights = optax.apply_updates(state["weights"], updates)
    if bug == "weight decay on each device":
        weights = jax.tree.map(lambda new, old: new - 5e-4 * old, weights, state["weights"])
    if bug == "a slot is stale":
        leaves, structure = jax.tree.flatten(slots)
        leaves[-1] = jax.tree.leaves(state["slots"])[-1]
        slots = jax.tree.unflatten(structure, leaves)
    new = {"weights": weights, "statistics": statistics, "slots": slots, "key": key}
    if net.average is not None:
        source = state["weights"] if bug == "average of a device's weights" else weights
        new["average"] = jax.tree.map(lambda a, w: net.average * a + (1 - net.average) * w, state["average"], source)
    return new


def _on_mesh(net: Net, mesh: Mesh, bug: str) -> Step:
    devices = mesh.size

    def part(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        key, own = jax.random.split(state["key"])
        place = jax.lax.axis_index("data")
        keys = _keys(net, own, ROWS)
        if net.row_keys:
            first = 0 if bug == "one key for all devices" else place * (ROWS // devices)
            keys = jax.lax.dynamic_slice_in_dim(keys, first, ROWS // devices)
        if bug == "another key on each device":
            folded = jax.vmap(jax.random.fold_in, (0, None)) if net.row_keys else jax.random.fold_in
            keys = folded(keys, place)
        if bug == "a device's rows are read twice":
            batch = jax.tree.map(
                lambda leaf: jnp.where(place == 0, jnp.roll(leaf, 1, 0).at[0].set(leaf[0]), leaf), batch
            )
        real = batch["real"]
        count = jax.lax.psum(real.sum(), "data")
        if bug == "padded rows are counted":
            real, count = jnp.ones_like(real), jnp.float32(ROWS)
        if bug == "mean over unequal shards":
            count = jnp.maximum(real.sum(), 1) * devices
        axis = None if bug == "batch statistics of a device" else "data"

        def total(weights: Tree, statistics: Tree, batch: Tree, keys: Any) -> tuple[jax.Array, Tree]:
            each, statistics = net.loss(weights, statistics, batch, keys, axis=axis)
            loss = jnp.where(batch["real"] > 0, each, 0).sum() / count
            return (jax.lax.psum(loss, "data") if bug == "psum in the loss is differentiated" else loss), statistics

        loss, gradients, statistics = jnp.float32(0), None, state["statistics"]
        batch = batch | {"real": real}
        for number in range(net.microbatches):
            rows = _part(batch, number, net.microbatches)
            own_keys = _part(keys, number, net.microbatches) if net.row_keys else keys
            taken = jax.value_and_grad(total, has_aux=True)(state["weights"], statistics, rows, own_keys)
            (of_part, statistics), found = taken
            loss += of_part
            gradients = found if gradients is None else jax.tree.map(jnp.add, gradients, found)
        if bug == "gradients are scaled by the microbatches":
            gradients = jax.tree.map(lambda g: g * net.microbatches, gradients)
        loss = loss if bug == "psum in the loss is differentiated" else jax.lax.psum(loss, "data")
        gradients = _summed(gradients, devices, bug, net)
        if bug == "batch statistics of a device" and statistics is not None:
            statistics = jax.tree.map(lambda leaf: jax.lax.pmean(leaf, "data"), statistics)
        return _updated(net, state, gradients, statistics, key, bug), {"loss": loss}

    specs = (PartitionSpec(), PartitionSpec("data"))
    return jax.jit(jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False))


def _summed(gradients: Tree, devices: int, bug: str, net: Net) -> Tree:
    """Returns the gradients of the whole batch, from those of each device's part of its mean."""
    if bug == "gradients are not averaged":
        return jax.tree.map(lambda g: g * devices, gradients)
    if bug == "clipping by a device's norm" and net.clip is not None:
        norm = optax.global_norm(jax.tree.map(lambda g: g * devices, gradients))
        gradients = jax.tree.map(lambda g: g * jnp.minimum(1.0, net.clip / norm), gradients)
    if bug == "sums in integers":
        return jax.tree.map(lambda g: jax.lax.psum(jnp.round(g * 4096).astype(jnp.int32), "data") / 4096, gradients)
    summed = jax.tree.map(lambda g: jax.lax.psum(g, "data"), gradients)
    if bug == "gradients are summed":
        return jax.tree.map(lambda g: g * devices, summed)
    leaves, structure = jax.tree.flatten(summed)
    own = jax.tree.leaves(gradients)
    if bug == "one leaf is not averaged":
        leaves[0] = own[0] * devices
    if bug == "one leaf is averaged twice":
        leaves[0] = leaves[0] / devices
    if bug == "one leaf is off by 1.2":
        leaves[0] = leaves[0] * 1.2
    return jax.tree.unflatten(structure, leaves)

"""Steps whose weights are sharded, by hand and by the compiler: `HANDS` by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.foreign.trainer import ROWS, Made, Tree

WIDTH, HIDDEN, VOCABULARY, LENGTH = 8, 16, 16, 8
WHOLE = PartitionSpec()
DATA = PartitionSpec("data")
Loss = Callable[[Tree, Tree], jax.Array]


@dataclass(frozen=True)
class Hand:
    """A loss on one device and the same on a mesh, whose weights have specs.

    Attributes:
      whole: `(weights, batch) -> loss` on one device.
      part: the same of a device's parts inside `shard_map`, by bug.
      specs: of the weights.
      batch_spec: of each array of a batch.
    """

    weights: Tree
    whole: Loss
    part: Callable[[str], Loss]
    specs: Tree
    bugs: tuple[str, ...]
    batch: Callable[[np.random.Generator], Mapping[str, np.ndarray]]
    batch_spec: PartitionSpec = DATA


def make(hand: Hand, devices: int, bug: str = "") -> Made:
    """Returns Adam's step on a mesh of devices / 2 x 2, with a bug if one is named, and the reference."""
    mesh = Mesh(np.array(jax.devices()[:devices]).reshape(-1, 2), ("data", "model"))
    sharded = jax.shard_map(
        hand.part(bug), mesh=mesh, in_specs=(hand.specs, hand.batch_spec), out_specs=WHOLE, check_vma=False
    )
    tx = optax.adam(1e-2)

    def step(loss: Loss, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        value, gradients = jax.value_and_grad(loss)(state["weights"], batch)
        updates, slots = tx.update(gradients, state["slots"])
        return {"weights": optax.apply_updates(state["weights"], updates), "slots": slots}, {"loss": value}

    def place(state: Tree) -> Tree:
        return jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, WHOLE)), state)

    def place_batch(batch: Tree) -> Tree:
        return jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, hand.batch_spec)), batch)

    rng = np.random.default_rng(0)
    batches = [dict(hand.batch(rng)) for _ in range(3)]
    state = {"weights": hand.weights, "slots": tx.init(hand.weights)}
    return Made(
        jax.jit(partial(step, sharded)), jax.jit(partial(step, hand.whole)), state, batches, place, place_batch
    )


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape) * 0.3


def labelled(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    return {
        "x": rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
        "label": rng.integers(0, VOCABULARY, ROWS).astype(np.int32),
    }


@jax.custom_vjp
def identity_backward(x: jax.Array) -> jax.Array:
    """A sum over the devices whose gradient is passed on as it is, though each device's part has its own."""
    return jax.lax.psum(x, "model")


identity_backward.defvjp(lambda x: (identity_backward(x), None), lambda _, gradient: (gradient * 0.5,))


def megatron() -> Hand:
    """Columns, rows, and a loss whose logits are sharded over the vocabulary."""
    weights = {
        "up": {"w": normal(0, WIDTH, HIDDEN), "b": normal(1, HIDDEN)},
        "down": {"w": normal(2, HIDDEN, WIDTH), "b": normal(3, WIDTH)},
        "logits": normal(4, WIDTH, VOCABULARY),
    }
    specs = {
        "up": {"w": PartitionSpec(None, "model"), "b": PartitionSpec("model")},
        "down": {"w": PartitionSpec("model", None), "b": WHOLE},
        "logits": PartitionSpec(None, "model"),
    }

    def whole(weights: Tree, batch: Tree) -> jax.Array:
        x = jax.nn.gelu(batch["x"] @ weights["up"]["w"] + weights["up"]["b"])
        x = x @ weights["down"]["w"] + weights["down"]["b"]
        return optax.softmax_cross_entropy_with_integer_labels(x @ weights["logits"], batch["label"]).mean()

    def part(bug: str) -> Loss:
        def loss(weights: Tree, batch: Tree) -> jax.Array:
            axis = "data" if bug == "a collective over the wrong axis" else "model"
            x = jax.nn.gelu(batch["x"] @ weights["up"]["w"] + weights["up"]["b"])
            x = x @ weights["down"]["w"]
            if bug == "a bias is added on each device":
                x = x + weights["down"]["b"]
            x = jax.lax.psum(x, axis)
            if bug != "a bias is added on each device":
                x = x + weights["down"]["b"]
            logits = x @ weights["logits"]
            first = jax.lax.axis_index("model") * logits.shape[-1]
            own = jax.nn.one_hot(batch["label"] - first, logits.shape[-1])
            exponentials = jnp.exp(logits).sum(-1)
            add = identity_backward if bug == "the gradient of a parallel loss is the identity" else _sum_of_model
            return jax.lax.pmean((jnp.log(add(exponentials)) - _sum_of_model((logits * own).sum(-1))).mean(), "data")

        return loss

    bugs = (
        *("a collective over the wrong axis", "a bias is added on each device"),
        "the gradient of a parallel loss is the identity",
    )
    return Hand(weights, whole, part, specs, bugs, labelled)


def _sum_of_model(x: jax.Array) -> jax.Array:
    return jax.lax.psum(x, "model")


def embedding() -> Hand:
    """A table whose rows are sharded."""
    weights = {"table": normal(0, VOCABULARY, WIDTH), "out": normal(1, WIDTH, WIDTH)}
    specs = {"table": PartitionSpec("model", None), "out": WHOLE}

    def whole(weights: Tree, batch: Tree) -> jax.Array:
        return jnp.mean((jnp.tanh(weights["table"][batch["tokens"]]) @ weights["out"] - batch["y"]) ** 2)

    def part(bug: str) -> Loss:
        def loss(weights: Tree, batch: Tree) -> jax.Array:
            table = weights["table"]
            place = batch["tokens"] - jax.lax.axis_index("model") * len(table)
            is_own = (place >= 0) & (place < len(table))
            found = jnp.where(is_own[..., None], table[jnp.clip(place, 0, len(table) - 1)], 0)
            if bug == "the gradient of a row leaks to others":
                leaked = table[jnp.clip(place, 0, len(table) - 1)]
                found = found + 0.5 * (leaked - jax.lax.stop_gradient(leaked))
            x = jnp.tanh(jax.lax.psum(found, "model")) @ weights["out"]
            return jax.lax.pmean(jnp.mean((x - batch["y"]) ** 2), "data")

        return loss

    def batch(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        y = rng.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32)
        return {"tokens": rng.integers(0, VOCABULARY, (ROWS, LENGTH)).astype(np.int32), "y": y}

    return Hand(weights, whole, part, specs, ("the gradient of a row leaks to others",), batch)


def experts() -> Hand:
    """Four experts on two devices; each token goes to one, by a router."""
    weights = {
        "router": normal(0, WIDTH, 4),
        "up": normal(1, 4, WIDTH, HIDDEN),
        "down": normal(2, 4, HIDDEN, VOCABULARY),
    }
    specs = {"router": WHOLE, "up": PartitionSpec("model"), "down": PartitionSpec("model")}

    def mixed(weights: Tree, x: jax.Array, gates: jax.Array) -> jax.Array:
        hidden = jax.nn.silu(jnp.einsum("bw,ewh->beh", x, weights["up"]))
        return jnp.einsum("beh,eho,be->bo", hidden, weights["down"], gates)

    def gates_of(weights: Tree, x: jax.Array) -> jax.Array:
        scores = jax.nn.softmax(x @ weights["router"])
        return jnp.where(scores == scores.max(-1, keepdims=True), scores, 0)

    def whole(weights: Tree, batch: Tree) -> jax.Array:
        logits = mixed(weights, batch["x"], gates_of(weights, batch["x"]))
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    def part(bug: str) -> Loss:
        def loss(weights: Tree, batch: Tree) -> jax.Array:
            count = len(weights["up"])
            gates = gates_of(weights, batch["x"])
            own = jax.lax.dynamic_slice_in_dim(gates, jax.lax.axis_index("model") * count, count, 1)
            used = weights
            if bug == "the gradients of experts are doubled":
                double = {name: 2 * weights[name] - jax.lax.stop_gradient(weights[name]) for name in ("up", "down")}
                used = weights | double
            logits = jax.lax.psum(mixed(used, batch["x"], own), "model")
            each = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
            return jax.lax.pmean(each.mean(), "data")

        return loss

    return Hand(weights, whole, part, specs, ("the gradients of experts are doubled",), labelled)


def sequence() -> Hand:
    """Layer normalization of a sequence that is sharded; the gradients of its scale are of all positions."""
    weights = {"scale": jnp.ones(WIDTH), "offset": jnp.zeros(WIDTH), "out": normal(0, WIDTH, WIDTH)}
    specs = dict.fromkeys(weights, WHOLE)

    def each(weights: Tree, batch: Tree) -> jax.Array:
        x = batch["x"] - batch["x"].mean(-1, keepdims=True)
        x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weights["scale"] + weights["offset"]
        return jnp.mean((jnp.tanh(x @ weights["out"]) - batch["y"]) ** 2)

    def part(bug: str) -> Loss:
        factors = {"the gradient of a norm is off by 1.2": 1.2, "the gradient of a norm is off by the axis": 2.0}

        def loss(weights: Tree, batch: Tree) -> jax.Array:
            factor = factors.get(bug, 1.0)
            scale = weights["scale"]
            scale = factor * scale + jax.lax.stop_gradient(scale - factor * scale)
            return jax.lax.pmean(each(weights | {"scale": scale}, batch), ("data", "model"))

        return loss

    def batch(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        x, y = (rng.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32) for _ in range(2))
        return {"x": x, "y": y}

    bugs = ("the gradient of a norm is off by 1.2", "the gradient of a norm is off by the axis")
    return Hand(weights, each, part, specs, bugs, batch, PartitionSpec("data", "model"))


def gathered() -> Hand:
    """Weights that are sharded over the data's axis and gathered where they are used."""
    weights = {"up": normal(0, WIDTH, HIDDEN), "down": normal(1, HIDDEN, VOCABULARY)}
    specs = {"up": PartitionSpec(None, "data"), "down": PartitionSpec("data", None)}

    def whole(weights: Tree, batch: Tree) -> jax.Array:
        logits = jax.nn.relu(batch["x"] @ weights["up"]) @ weights["down"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    def part(bug: str) -> Loss:
        def loss(weights: Tree, batch: Tree) -> jax.Array:
            up = jax.lax.all_gather(weights["up"], "data", axis=1, tiled=True)
            down = jax.lax.all_gather(weights["down"], "data", axis=0, tiled=True)
            if bug == "a gathered weight keeps its own gradient alone":
                own = jax.lax.axis_index("data") == 0
                down = jnp.where(own, down, jax.lax.stop_gradient(down))
            if bug == "the shards of a gathered weight are in another order":
                down = jnp.roll(down, len(weights["down"]), 0)
            return jax.lax.pmean(whole({"up": up, "down": down}, batch), ("data", "model"))

        return loss

    bugs = ("a gathered weight keeps its own gradient alone", "the shards of a gathered weight are in another order")
    return Hand(weights, whole, part, specs, bugs, labelled)


HANDS: dict[str, Callable[[], Hand]] = {
    f"jax: {function.__name__}": function for function in (megatron, embedding, experts, sequence, gathered)
}

"""Steps that are proven on four devices, each right or wrong in one way."""

import functools
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from runner.verify import meshproof
from runner.verify.meshproof.call import _Comparison
from runner.verify.meshproof.step import Side

jax.config.update("jax_num_cpu_devices", 4)
MESH = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
RATE, DECAY = 0.05, 0.9
Tree = Any


class State(NamedTuple):
    weights: Tree
    velocity: Tree
    key: jax.Array
    count: int
    none: None = None


def initial(dtype: Any = jnp.float32) -> State:
    made = np.random.default_rng(0)
    layers = {"first": (6, 8), "last": (8, 3)}
    weights = {}
    for name, shape in layers.items():
        kernel = jnp.asarray(made.normal(size=shape) * 0.4, dtype)
        weights[name] = {"kernel": kernel, "bias": jnp.zeros(shape[1], dtype)}
    return State(weights, jax.tree.map(jnp.zeros_like, weights), jax.random.key(7), 0)


def in_float64() -> State:
    """A state of NumPy's default floats, which a device rounds to float32."""
    state = initial()
    return state._replace(weights=jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) / 3, state.weights))


def batches(rows: int = 8) -> list[Tree]:
    made = np.random.default_rng(1)
    found = []
    for _ in range(2):
        x = made.normal(size=(rows, 6)).astype(np.float32)
        found.append({"x": x, "label": made.integers(0, 3, rows), "real": np.ones(rows, np.float32)})
    return found


def losses(weights: Tree, batch: Tree, key: jax.Array, low: bool = False) -> jax.Array:
    x = batch["x"].astype(jnp.bfloat16) if low else batch["x"]
    hidden = jax.nn.relu(x @ weights["first"]["kernel"].astype(x.dtype) + weights["first"]["bias"])
    hidden = hidden * jax.random.bernoulli(key, 0.8, hidden.shape[1:])
    logits = (hidden @ weights["last"]["kernel"] + weights["last"]["bias"]).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["label"][:, None], 1)[:, 0]


def update(state: State, gradients: Tree, key: jax.Array) -> State:
    velocity = jax.tree.map(lambda v, g: DECAY * v + g, state.velocity, gradients)
    weights = jax.tree.map(lambda w, v: w - RATE * v, state.weights, velocity)
    return State(weights, velocity, key, state.count + 1)


@functools.partial(jax.jit, static_argnames="low")
def reference(state: State, batch: Tree, low: bool = False) -> tuple[State, Tree]:
    key, drop = jax.random.split(state.key)

    def mean(weights: Tree) -> jax.Array:
        return (losses(weights, batch, drop, low) * batch["real"]).sum() / batch["real"].sum()

    loss, gradients = jax.value_and_grad(mean)(state.weights)
    return update(state, gradients, key), {"loss": loss}


low = functools.partial(reference, low=True)


@jax.jit
def gradients_of(state: State, batch: Tree) -> Tree:
    drop = jax.random.split(state.key)[1]
    return jax.grad(lambda weights: losses(weights, batch, drop).mean())(state.weights)


def on_mesh(bug: str = "") -> Callable[[State, Tree], tuple[State, Tree]]:
    """Returns the step by hand on four devices."""

    def part(state: State, batch: Tree) -> tuple[Tree, jax.Array]:
        drop = jax.random.split(state.key)[1]
        if bug == "another key on each device":
            drop = jax.random.fold_in(drop, jax.lax.axis_index("data"))

        def local(weights: Tree) -> jax.Array:
            return (losses(weights, batch, drop) * batch["real"]).sum()

        total, gradients = jax.value_and_grad(local)(state.weights)
        count = jax.lax.psum(batch["real"].sum(), "data")
        if bug == "padding counts":
            count = jnp.float32(batch["real"].size * 4)
        if bug == "no sum over the devices":
            return jax.tree.map(lambda g: 4 * g / count, gradients), jax.lax.psum(total, "data") / count
        summed = jax.tree.map(lambda g: jax.lax.psum(g, "data") / count, gradients)
        if bug == "one leaf is not summed":
            summed["last"]["bias"] = 4 * gradients["last"]["bias"] / count
        if bug == "one leaf is 1% too large":
            summed["first"]["bias"] = 1.01 * summed["first"]["bias"]
        return summed, jax.lax.psum(total, "data") / count

    specs = (PartitionSpec(), PartitionSpec("data"))
    shard = jax.shard_map(part, mesh=MESH, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)

    whole = {"mesh": MESH, "in_specs": PartitionSpec(), "out_specs": PartitionSpec(), "check_vma": False}

    def stale(new: Tree, old: Tree) -> Tree:
        return jax.tree.map(lambda n, o: jnp.where(jax.lax.axis_index("data") == 2, o, n), new, old)

    def step(state: State, batch: Tree) -> tuple[State, Tree]:
        summed, loss = shard(state, batch)
        new = update(state, summed, jax.random.split(state.key)[0])
        if bug == "a stale slot":
            new = new._replace(velocity=state.velocity)
        if bug == "one device is not updated":
            new = new._replace(velocity=jax.shard_map(stale, **whole)(new.velocity, state.velocity))
        if bug == "the same key again":
            new = new._replace(key=state.key)
        return new, {"loss": loss}

    return jax.jit(step, donate_argnums=0)


def placed(spec: PartitionSpec) -> Callable[[Tree], Tree]:
    return lambda tree: jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(MESH, spec)), tree)


def edited(**changes: Callable[[State], Tree]) -> Callable[[State, Tree], tuple[State, Tree]]:
    """Returns the reference with a changed field of its new state."""

    def step(state: State, batch: Tree) -> tuple[State, Tree]:
        new, outputs = reference(state, batch)
        return new._replace(**{name: change(new) for name, change in changes.items()}), outputs

    return step


def still(state: State, batch: Tree) -> tuple[State, Tree]:
    each = losses(state.weights, batch, state.key)
    return state, {"loss": each.mean(), "each": each}


def still_wrong(state: State, batch: Tree) -> tuple[State, Tree]:
    outputs = still(state, batch)[1]
    return state, outputs | {"loss": outputs["loss"] * batch["x"].shape[0] / 8}


def of_scaled(function: Callable[[State, Tree], Any], rows: int = 8) -> Callable[[State, Tree], Any]:
    """Returns a function of other numbers in batches of so many rows."""
    return lambda state, batch: function(state, batch | {"x": batch["x"] * (1.01 if len(batch["x"]) == rows else 1)})


def factors() -> Tree:
    """Returns a kernel that stays and the two factors of what is added to it, as LoRA has them: one begins at 0."""
    made = np.random.default_rng(2)
    kernel, a = (jnp.asarray(made.normal(size=size), jnp.float32) for size in ((6, 4), (6, 2)))
    return {"kernel": kernel, "factors": {"a": a, "b": jnp.zeros((2, 4))}}


def opposite_rows() -> list[Tree]:
    """Returns rows in pairs whose gradients cancel at these factors, in integers, to which no noise is added."""
    x = np.random.default_rng(3).integers(-9, 9, (8, 6))
    far = np.random.default_rng(4).normal(size=(8, 4)) * 2**20
    label = x @ np.asarray(factors()["kernel"]) * 2**20
    return [{"x": np.concatenate([x, x]), "label": np.concatenate([label + far, label - far]).astype(np.int32)}]


def scaled(order: int) -> Callable[[Tree, Tree], tuple[Tree, Tree]]:
    """Returns an evaluation with a scale in bfloat16 that begins at 1, used in its order or against it."""
    return lambda state, batch: (state, {"scaled": batch["x"] * state["scale"][::order]})


@jax.jit
def adapted(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
    def mean(factors: Tree) -> jax.Array:
        predicted = batch["x"].astype(jnp.float32) @ (state["kernel"] + factors["a"] @ factors["b"])
        return jnp.square(predicted - batch["label"] / 2**20).mean()

    loss, gradients = jax.value_and_grad(mean)(state["factors"])
    # As Adam's first step, which keeps no more than the sign of what is far above its epsilon.
    new = jax.tree.map(lambda w, g: w - RATE * g / (jnp.abs(g) + 1e-7), state["factors"], gradients)
    return state | {"factors": new}, {"loss": loss}


BUGS = (
    *("", "no sum over the devices", "one leaf is not summed", "one leaf is 1% too large", "padding counts"),
    *("another key on each device", "a stale slot", "the same key again", "one device is not updated"),
)


def cases() -> Iterator[tuple[str, Callable[[], meshproof.StepReport]]]:
    padded = batches()
    for batch in padded:
        batch["real"][-3:] = 0
    split = {"place": placed(PartitionSpec()), "place_batch": placed(PartitionSpec("data"))}
    for bug in BUGS:
        yield f"mesh: {bug}", lambda bug=bug: compare(on_mesh(bug), given=padded, **split)
    yield "jitted, sharded as it is", lambda: compare(jax.jit(reference), state=placed(PartitionSpec())(initial()))
    yield "gradients", lambda: compare(on_mesh(), gradients=gradients_of, **split)
    yield "gradients, wrong", lambda: compare(reference, gradients=(of_scaled(gradients_of), gradients_of))
    opposed = {"state": factors(), "given": opposite_rows(), "parameters": "factors"} | split
    yield "a factor of 0", lambda: compare(adapted, adapted, **opposed)
    yield "bfloat16 state", lambda: compare(jax.jit(reference), state=initial(jnp.bfloat16))
    yield "float64 of NumPy", lambda: compare(on_mesh(), jax.jit(reference), state=in_float64(), **split)
    yield "bfloat16 products", lambda: compare(low)
    yield "bfloat16 products, wrong", lambda: compare(lambda s, b: low(s, b | {"x": b["x"] * 1.1}))
    state = {"w": np.arange(6) * (1 - 0.5j), "still": np.asarray([complex(-1.0, -0.0)])}
    in_plane = {"one": complex_step, "state": state} | split
    yield "complex weights", lambda: compare(jax.jit(complex_step), **in_plane)
    yield "complex weights, not conjugated", lambda: compare(functools.partial(complex_step, sign=-1), **in_plane)
    partial = {"steps": 0, "given": [*batches(), *batches(5)]}
    yield "evaluation", lambda: compare(still, still, **partial)
    yield "evaluation, partial batch wrong", lambda: compare(still_wrong, still, **partial)
    scale = {"state": {"scale": jnp.ones(6, jnp.bfloat16)}, "steps": 0}
    yield "evaluation, a scale of ones reversed", lambda: compare(scaled(-1), scaled(1), **scale)
    yield "inside", lambda: compare(of_scaled(reference), intermediates=(of_scaled(inside), inside))
    # No point reads the last batch.
    late = {"given": [*batches(), batches()[0], batches(5)[0]], "intermediates": (of_scaled(inside, 5), inside)}
    yield "inside a later batch", lambda: compare(of_scaled(reference, 5), **late)
    yield "inside an evaluation", lambda: compare(of_scaled(still, 5), still, steps=0, **late)
    yield "one weight", lambda: compare(reference, parameters="weights/last")
    yield "another structure", lambda: compare(edited(weights=lambda new: new.weights["first"]))
    yield "another shape", lambda: compare(edited(velocity=lambda new: jax.tree.map(lambda x: x[:1], new.velocity)))
    yield "another dtype", lambda: compare(edited(velocity=lambda new: jax.tree.map(jnp.bfloat16, new.velocity)))
    yield "no pair", lambda: compare(lambda s, b: reference(s, b)[0])
    yield "other outputs", lambda: compare(lambda s, b: (reference(s, b)[0], {"accuracy": 0.0}))
    yield "random", lambda: compare(lambda s, b: (reference(s, b)[0], {"loss": random.random()}))
    yield "NaN", lambda: compare(edited(weights=lambda new: jax.tree.map(lambda x: x * jnp.nan, new.weights)))
    yield "no movement", lambda: compare(lambda s, b: (s, reference(s, b)[1]))
    yield "no fit", lambda: compare(reference, lambda s, b: reference(s, b | {"x": b["x"][:, :2]}))
    yield "no batches", lambda: compare(reference, given=[])
    yield "one batch", lambda: compare(reference, given=batches()[0])
    yield "15 rows", lambda: compare(reference, given=batches(15), **split)
    yield "no parameters", lambda: compare(reference, parameters="nothing")


def complex_step(state: Tree, batch: Tree, sign: int = 1) -> tuple[Tree, Tree]:
    loss, gradient = jax.value_and_grad(lambda weights: jnp.mean(jnp.abs(batch["x"] @ weights - 1) ** 2))(state["w"])
    moved = state["w"] - RATE * (gradient.real - 1j * sign * gradient.imag)
    return state | {"w": moved}, {"loss": loss, "sum": moved.sum()}


def inside(state: State, batch: Tree) -> Tree:
    x, hidden = batch["label"], batch["x"] @ state.weights["first"]["kernel"]
    return {"a label": x, "hidden": hidden, "output": jax.nn.relu(hidden)}


def compare(step: Any, one: Any = reference, state: Any = None, given: Any = None, **options: Any) -> Any:
    state = initial() if state is None else state
    return meshproof.compare(step, one, state, batches() if given is None else given, **options)


def found(make: Callable[[], meshproof.StepReport]) -> dict[str, object]:
    try:
        report = make()
    except ValueError as error:
        return {"error": str(error)}
    first = report.first.variable if report.first else None
    detects = max((row.resolution for row in report.variables), default=0)
    return {"verdict": report.verdict, "first": first, "detects": detects, "inside": report.inside}


class OfUnequalCopies(_Comparison):
    """The smaller copies differ within the spread of more runs, and the larger ones at a point."""

    def _report(self, side: Side, arrays: Any, spread: Any) -> meshproof.StepReport:
        side.unequal["weights/first"] = None
        is_smaller = side.merge is np.minimum
        passes = is_smaller and spread is not self._reference.spread
        report = super()._report(side, arrays, spread)
        check = replace(report.checks[0], kind="loss" if is_smaller else "point", ratio=0.0 if passes else 2.0)
        return replace(report, checks=(check,))


def surroundings() -> dict[str, object]:
    """Returns what a report is beside its verdict, and what the other calls do."""
    report = compare(
        on_mesh("one leaf is not summed"), place=placed(PartitionSpec()), place_batch=placed(PartitionSpec("data"))
    )
    with tempfile.TemporaryDirectory() as folder:
        report.to_html(Path(folder) / "page.html")
        page = (Path(folder) / "page.html").read_text()
    steps = {"right": reference, "wrong": of_scaled(reference), "lower": low}
    table = meshproof.matrix(steps, reference, initial(), batches())
    with pytest.raises(AssertionError) as raised:
        meshproof.assert_same(steps["wrong"], reference, initial(), batches())
    meshproof.assert_same(reference, reference, initial(), batches())
    unequal = OfUnequalCopies(reference, initial(), batches(), None, None, None, 0)
    return {
        "of unequal copies": unequal.with_step(reference, None, None, None).verdict,
        "text": str(report),
        "page": page,
        "dict": json.loads(json.dumps(report.to_dict())),
        "matrix": {name: each.verdict for name, each in table.reports.items()},
        "matrix text": str(table),
        "raised": str(raised.value),
    }

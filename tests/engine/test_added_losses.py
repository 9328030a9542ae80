"""The losses that layers add are in the loss of a step, however often the step is traced."""

from __future__ import annotations

import pytest

from tests.engine.jax_runs import answers

# `Stale` is what a layer has recorded in an earlier trace: the addresses of losses that are gone, at which any loss of
# the next trace may be.
PROGRAM = r"""
import json
import numpy as np
from runner.data import loading
from runner.data.base import WEIGHT
from runner.engine import make_engine, registry
from runner.cli.notebook import compose
from runner.task.base import DataSpec
from runner.task.registry import make_task

class Stale(set):
    is_stale = True

    def __contains__(self, number):
        return self.is_stale or super().__contains__(number)

    def clear(self):
        self.is_stale = False
        super().clear()

config = compose(
    "engine=jax", "mesh.axes={batch: 1}", "model=gpt", "model.depth=3", "model.dim=16", "model.heads=2",
    "model.positions=rotary", "model.activation=swiglu", "model.bias=false", "model.feedforward=16", "model.experts=4",
    "model.router_loss=0.5", "task=language_model", "task.sample.prompt=null", "task.vocabulary=32",
    "dataset=synthetic", "dataset.vocabulary=32", "dataset.length=8", "dataset.batch_size=8",
)
registry.prepare(config)
data = loading.load(config.dataset, config.trainer.seed, task=config.task)
task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
spec = DataSpec(task.arrays, task)
engine = make_engine(config, spec, 1)
engine.build()
import jax, jax.numpy as jnp, keras

step, state = engine._functions, engine._state
blocks = [layer for layer in step._model.layers if layer.name.startswith("block_")]
numbers = np.random.default_rng(0)

def arrays(examples):
    made = {}
    for name, array in spec.arrays.items():
        made[name] = numbers.integers(0, 32, (examples, *array.shape)).astype(array.dtype)
    return made | {WEIGHT: np.ones(examples, np.float32)}

def regularization(batch):
    # A new function is traced again.
    def traced(*arguments):
        return step.losses(*arguments)[1][2]
    return float(jax.jit(traced)(state.trainable, state.non_trainable, batch, jnp.float32(1), jnp.int32(0)))

def by_hand(batch):
    # Each block alone, on the vectors that the blocks before it return.
    values = dict(zip(map(id, step._model.trainable_variables), state.trainable))
    total, x = 0.0, None
    for layer in step._model.layers:
        if layer.name == "token_embedding":
            x = called(layer, values, step._task.inputs(step.ops, batch))[0]
        if layer.name.startswith("block_"):
            x, _, losses = called(layer, values, x, training=True)
            (loss,) = losses
            total += float(loss)
    return total

def called(layer, values, *inputs, **options):
    weights = [values[id(variable)] for variable in layer.trainable_variables]
    return layer.stateless_call(weights, [], *inputs, return_losses=True, **options)

found = []
for examples in (8, 3, 8):
    batch = arrays(examples)
    for block in blocks:
        # Not by Keras, which would copy it into a set of its own.
        object.__setattr__(block, "_loss_ids", Stale())
    found.append([len(blocks), regularization(batch), by_hand(batch)])
print(json.dumps(found))
"""

found = answers(PROGRAM)


@pytest.mark.parametrize("trace", [0, 1, 2])
def test_every_router_loss_counts_once_in_each_trace_of_a_step(found: list[list[float]], trace: int) -> None:
    blocks, regularization, expected = found[trace]
    assert blocks == 3
    # A router's loss is near 1 at first, times the factor 0.5.
    assert expected == pytest.approx(1.5, rel=0.2)
    assert regularization == pytest.approx(expected, rel=1e-5)

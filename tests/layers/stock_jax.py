"""Stock Keras 3 on one device: its own layers, optimizer and constraints, jitted as its trainer does."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np

from runner.engine.jax.adapter import Keras3Factory
from runner.engine.jax.layers.adopted import masks_from_scope
from runner.engine.jax.names import Names
from runner.model import scope
from tests.layers.setup import MOMENTUM, RATE, STEPS, Arrays, Setup, config, generic


def train(setup: Setup) -> Arrays:
    """Returns `start/`, `final/<path>`, `gradient0/<path>` and so on, `loss`, and `outputs` before training."""
    made = config("single", setup.names)
    model = Keras3Factory(made.model, setup.data, made.trainer.seed).build()
    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    optimizer.build(model.trainable_variables)
    variables = Names(model).variables
    paths = {id(variable): path for path, variable in variables.items()}
    start = generic({path: np.asarray(variable.value) for path, variable in variables.items()})

    def first(held: list[Any]) -> list[Any]:
        return [start[paths[id(v)]] if id(v) in paths else v.value for v in held]

    trained, others = model.trainable_variables, model.non_trainable_variables
    loss_of = keras.losses.MeanSquaredError()

    def loss(weights: list[Any], rest: list[Any], inputs: Any, target: Any, step: Any) -> tuple[Any, Any]:
        with scope.enter(scope.Scope(made.trainer.seed, step)), masks_from_scope(model):
            outputs, rest, added = model.stateless_call(weights, rest, inputs, training=True, return_losses=True)
        return loss_of(target, outputs) + sum(added), rest

    def step(weights: list[Any], rest: list[Any], kept: list[Any], inputs: Any, target: Any, number: Any) -> Any:
        (value, rest), gradients = jax.value_and_grad(loss, has_aux=True)(weights, rest, inputs, target, number)
        weights, kept = optimizer.stateless_apply(kept, gradients, weights)
        return value, gradients, weights, rest, kept

    def predict(weights: list[Any], rest: list[Any], inputs: Any) -> Any:
        with scope.enter(scope.Scope(made.trainer.seed)), masks_from_scope(model):
            return model.stateless_call(weights, rest, inputs, training=False)[0]

    weights, rest, kept = first(trained), first(others), [v.value for v in optimizer.variables]
    found = {f"start/{path}": value for path, value in start.items()}
    found["outputs"] = np.asarray(jax.jit(predict)(weights, rest, setup.inputs), np.float32)
    compiled, losses = jax.jit(step), []
    for number in range(STEPS):
        value, gradients, weights, rest, kept = compiled(
            weights, rest, kept, setup.inputs, setup.target, np.int32(number)
        )
        losses.append(float(value))
        named = zip(trained, gradients, strict=True)
        found |= {f"gradient{number}/{paths[id(v)]}": np.asarray(gradient) for v, gradient in named}
    for held, values in ((trained, weights), (others, rest)):
        pairs = zip(held, values, strict=True)
        found |= {f"final/{paths[id(v)]}": np.asarray(value) for v, value in pairs if id(v) in paths}
    return found | {"loss": np.asarray(losses)}

"""The places of the engine `jax`. Imports JAX and Keras."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from runner.config.schema import RunConfig
from runner.engine.jax import engine as jax_engine
from runner.engine.jax.adapter import Keras3Factory
from runner.engine.jax.step import Step
from tests.campaign.mutations_hooks import Gradients, Hooks, Tensor

Engine = jax_engine.JaxEngine


class JaxHooks(Hooks):
    """See `Hooks`."""

    engine, builder, update_method = Engine, Keras3Factory, (Step, "_update")

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, jnp)

    def gradients(self, change: Callable[[Gradients, Tensor], Gradients]) -> None:
        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            def gradients(step: Any, state: Any, batch: Any, count: Any, microstep: Any) -> Any:
                found, beside = sound(step, state, batch, count, microstep)
                return change(found, microstep), beside

            return gradients

        self.patches.wrap(Step, "gradients", make)

    def sums(self, change: Callable[[Gradients, Gradients, Tensor], Gradients]) -> None:
        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            def update(step: Any, state: Any, gradients: Any, done: Any, microbatch: Any, *given: Any) -> Any:
                changed = change(gradients, state.grad_accum, jnp.asarray(microbatch, jnp.float32))
                return sound(step, state, changed, done, microbatch, *given)

            return update

        self.patches.wrap(Step, "_update", make)

    def constraints(self, change: Callable[[str, Tensor, Callable[[Tensor], Tensor]], Tensor]) -> None:
        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            def constrained(step: Any, index: Any, weight: Any) -> Any:
                return change(self.paths[index], weight, lambda w: sound(step, index, w))

            return constrained

        self.patches.wrap(Step, "_constrained", make)

    def models(self, change: Callable[[Any], None]) -> None:
        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            def make_model(engine: Any) -> Any:
                shapes = sound(engine)
                change(engine._model)
                return shapes

            return make_model

        self.patches.wrap(Engine, "_make_model", make)

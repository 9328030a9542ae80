"""The places of the engine `keras_dtensor`. Imports TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from runner.config.schema import RunConfig
from runner.engine.dtensor import engine as dtensor_engine
from runner.engine.dtensor.adapters.keras import KerasAdapter
from runner.engine.dtensor.private import reads_by
from runner.engine.dtensor.step import Steps
from runner.engine.dtensor.update import Update
from runner.optim.paths import slot_path
from tests.campaign.mutations_hooks import Gradients, Hooks, Slots, Tensor

Engine = dtensor_engine.DTensorEngine
_FREE = 4  # where a call's numbers have room, between those of the call and the examples' counts


class DTensorHooks(Hooks):
    """See `Hooks`."""

    engine, builder, update_method = Engine, KerasAdapter, (Update, "apply")

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, tf)

    def gradients(self, change: Callable[[Gradients, Tensor], Gradients]) -> None:
        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            def gradients(steps: Any, batch: Any, share_b: Any, microstep: Any, *given: Any) -> Any:
                backward = sound(steps, batch, share_b, microstep, *given)
                return replace(backward, gradients=change(backward.gradients, microstep))

            return gradients

        self.patches.wrap(Steps, "_backward", make)

    def sums(self, change: Callable[[Gradients, Gradients, Tensor], Gradients]) -> None:
        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            def accumulated(update: Any, gradients: Any, index: Any) -> Any:
                state = update._state
                before = [state.grad_accum[path].read_value() for path in state.trainable]
                return sound(update, change(list(gradients), before, index), index)

            return accumulated

        self.patches.wrap(Update, "_accumulated", make)

    def reads(self, change: Callable[[str, Tensor, Slots], Tensor]) -> None:
        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            def gradients(steps: Any, *given: Any) -> Any:
                state = steps._state
                classes = {}
                for path in state.trainable:
                    names = {name: slot_path(name, path) for name in ("momentum", "m", "v")}
                    slots = {name: state.slots[of].read_value() for name, of in names.items() if of in state.slots}
                    variable = state.variables[path]
                    classes[path] = type(variable)

                    def other(_: Any, value: Any, path: str = path, slots: Any = slots) -> Any:
                        # The gradient is that of the variable, at another value.
                        return value + tf.stop_gradient(change(path, value, slots) - value)

                    variable.__class__ = reads_by(type(variable), other)
                try:
                    return sound(steps, *given)
                finally:
                    for path, stored in classes.items():
                        state.variables[path].__class__ = stored

            return gradients

        self.patches.wrap(Steps, "_backward", make)

    def constraints(self, change: Callable[[str, Tensor, Callable[[Tensor], Tensor]], Tensor]) -> None:
        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            def constrained(update: Any, path: Any, weight: Any, *given: Any) -> Any:
                return change(path, weight, lambda w: sound(update, path, w, *given))

            return constrained

        self.patches.wrap(Update, "_constrained", make)

    def models(self, change: Callable[[Any], None]) -> None:
        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            def make_state(engine: Any) -> Any:
                sound(engine)
                change(engine._model)

            return make_state

        self.patches.wrap(Engine, "_make_state", make)

    def layers(self, model: Any) -> list[Any]:
        return [each for each in model.submodules if isinstance(each, tf.Module) and hasattr(each, "call")]

    def scaled(self) -> None:
        def numbers(sound: Callable[..., Any]) -> Callable[..., Any]:
            def marked(engine: Any, *given: Any, **named: Any) -> Any:
                inner, packed = self.patches.__class__(), dtensor_engine.pack
                inner.put(dtensor_engine, "pack", lambda vector, _: vector)
                try:
                    vector = sound(engine, *given, **named)
                finally:
                    inner.undo()
                vector[_FREE : _FREE + 4] = self.chosen
                return packed(vector, engine._vector)

            return marked

        def traced(sound: Callable[..., Any]) -> Callable[..., Any]:
            def noted(steps: Any, arrays: Any, vector: Any) -> Any:
                self._traced = [tf.gather(vector, _FREE + index) for index in range(4)]
                return sound(steps, arrays, vector)

            return noted

        self.patches.wrap(Engine, "_numbers", numbers)
        for name in ("train", "gradients"):
            self.patches.wrap(Steps, name, traced)
        self.gradients(lambda found, _: self.changed(found, self._traced))

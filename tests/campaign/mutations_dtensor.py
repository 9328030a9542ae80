"""The places of the engine `keras_dtensor`. Imports TensorFlow."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from runner.config.schema import RunConfig
from runner.engine.base import HostBatches
from runner.engine.dtensor import engine as dtensor_engine
from runner.engine.dtensor.adapters.keras import KerasAdapter
from runner.engine.dtensor.state import Update
from runner.engine.dtensor.step import Steps
from tests.campaign.mutations_hooks import Gradients, Hooks, Tensor

Engine = dtensor_engine.DTensorEngine


def _unpacked(sound: Callable[..., None]) -> Callable[..., None]:
    return lambda *given, **_: sound(*given, packs=False)


class DTensorHooks(Hooks):
    """See `Hooks`."""

    engine, builder, update_method = Engine, KerasAdapter, (Update, "apply")

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, tf)
        # The hooks see each variable's update by itself.
        self.patches.wrap(Update, "__init__", _unpacked)

    def gradients(self, change: Callable[[Gradients, Tensor], Gradients]) -> None:
        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            def gradients(steps: Any, batch: Any, share_b: Any, microstep: Any, *given: Any) -> Any:
                backward = sound(steps, batch, share_b, microstep, *given)
                return replace(backward, gradients=change(backward.gradients, microstep))

            return gradients

        self.patches.wrap(Steps, "_backward", make)

    def sums(self, change: Callable[[Gradients, Gradients, Tensor], Gradients]) -> None:
        raise NotImplementedError("there are no micro-batches")

    def batches(self, change: Callable[[HostBatches], HostBatches]) -> None:
        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            return lambda engine, batches: sound(engine, change(batches))

        self.patches.wrap(Engine, "place", make)

    def constraints(self, change: Callable[[str, Tensor, Callable[[Tensor], Tensor]], Tensor]) -> None:
        del change  # none is applied

    def models(self, change: Callable[[Any], None]) -> None:
        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            def make_state(engine: Any) -> Any:
                sound(engine)
                change(engine._model)

            return make_state

        self.patches.wrap(Engine, "_make_state", make)

    def layers(self, model: Any) -> list[Any]:
        return [each for each in model.submodules if isinstance(each, tf.Module) and hasattr(each, "call")]

"""Builds the models and optimizers of a custom step; they depend on the seed alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import keras
from jax.extend.core import ClosedJaxpr

from runner.config.schema import RunConfig
from runner.data.base import Array
from runner.engine.jax import private
from runner.engine.jax.adapter import Keras3Factory, reason, under_policy
from runner.engine.jax.initial import (
    HostValue,
    Initial,
    TraceSlice,
    holds_traced,
    is_traced,
    trace_slices,
    traced_build,
)
from runner.engine.jax.own_step.parts import KEY, Parts, parts_of
from runner.engine.jax.shards import host_memory
from runner.engine.optim.stock import stock_optimizer
from runner.errors import ConfigError
from runner.host.imports import seeded
from runner.model import builder, preprocessing
from runner.model.stored import StoredValue
from runner.task.base import DataSpec
from runner.task.step import StepTask


class OwnStepFactory:
    """Makes the user's class and calls its `build` with Keras 3."""

    def __init__(self, config: RunConfig, data: DataSpec, total_steps: int) -> None:
        assert isinstance(data.task, StepTask)
        self._config = config
        self._data = data
        self._task = data.task
        self._total_steps = total_steps

    def build(self) -> Parts:
        """Returns the parts with their initial values; raises ConfigError if the class or its `build` is wrong."""
        path = self._task.path
        private.reset_layer_names()
        seed = self._config.trainer.seed
        with seeded(seed), under_policy(builder.policy_name(self._config.engine.precision)):
            try:
                step = self._task.make_step()
                step.build(**self._arguments(step, path))
            except (ConfigError, jax.errors.UnexpectedTracerError):
                raise
            except Exception as error:  # A user's class may raise anything.
                raise ConfigError(f"{KEY}={path}: build raised {reason(error)}; fix it") from error
            parts = parts_of(step, path)
        with jax.ensure_compile_time_eval():
            preprocessing.settle(self._task, parts.models.values())
        return parts

    def build_for_mesh(self, *, eager: bool = False) -> tuple[Parts, Initial]:
        """Returns the parts without values, and the initial values of their variables, not computed yet."""
        traced = None if eager else self._traced()
        values: dict[str, TraceSlice | StoredValue]
        if traced is None:
            with host_memory():
                parts = self.build()
            values = {path: HostValue(variable.value) for path, variable in parts.variables.items()}
        else:
            parts, trace = traced
            slices = zip(parts.variables, trace_slices(trace), strict=True)
            values = {path: part.source() for path, part in slices}
        for variable in parts.variables.values():
            private.release(variable)
        return parts, Initial(values)

    def build_with(self, values: Mapping[str, Array]) -> Parts:
        """Returns the parts on one device, with the given values of the models' variables by canonical path."""
        parts = self.build()
        for path, variable in parts.model_variables.items():
            with host_memory():
                variable.assign(values[path])
        return parts

    def _traced(self) -> tuple[Parts, ClosedJaxpr] | None:
        return traced_build(self.build, lambda parts: parts.variables.values(), _holds_traced)

    def _arguments(self, step: Any, path: str) -> dict[str, Any]:
        """Returns the arguments that `build` names."""
        makers: dict[str, Callable[[], Any]] = {
            "keras": lambda: keras,
            "inputs": lambda: self._data.inputs,
            "outputs": lambda: self._data.task.outputs,
            "model": self._model,
            "optimizer": lambda: stock_optimizer(self._config.optimizer, self._total_steps, keras),
        }
        arguments = {}
        for name, parameter in inspect.signature(step.build).parameters.items():
            if name in makers:
                arguments[name] = makers[name]()
            elif parameter.default is inspect.Parameter.empty:
                raise ConfigError(
                    f"{KEY}={path}: build takes {name}, but may take {', '.join(makers)} only; options are arguments "
                    f"of the class, set +task.arguments.{name}=..."
                )
        return arguments

    def _model(self) -> keras.Model:
        config = self._config
        return Keras3Factory(config.model, self._data, config.trainer.seed, config.engine.precision).call_builder()


def _holds_traced(parts: Parts) -> bool:
    own = {name: value for name, value in vars(parts.step).items() if not isinstance(value, keras.Model)}
    if is_traced(own) or any(is_traced(vars(optimizer)) for optimizer in parts.optimizers.values()):
        return True
    return any(map(holds_traced, parts.models.values()))

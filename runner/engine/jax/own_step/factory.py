"""Builds the models and optimizers of a custom step; they depend on the seed alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import keras

from runner.config.schema import RunConfig
from runner.data.base import Array
from runner.engine.jax import private
from runner.engine.jax.adapter import Keras3Factory, reason, under_policy
from runner.engine.jax.initial import HostValue, Initial, TraceSlice, holds_traced, is_traced, trace_slices
from runner.engine.jax.own_step.parts import KEY, Parts, parts_of
from runner.engine.jax.shards import host_memory
from runner.engine.optim.stock import stock_optimizer
from runner.errors import ConfigError
from runner.host.imports import seeded
from runner.model import builder, preprocessing
from runner.model.stored import StoredValue
from runner.task.base import DataSpec
from runner.task.step import StepTask

Sources = dict[str, TraceSlice | StoredValue]


class OwnStepFactory:
    """Makes the user's class and calls its `build` with Keras 3."""

    def __init__(self, config: RunConfig, data: DataSpec, total_steps: int) -> None:
        assert isinstance(data.task, StepTask)
        self._config = config
        self._data = data
        self._task = data.task
        self._total_steps = total_steps

    def build(self) -> Parts:
        """Returns the parts with their initial values, replicated on one device.

        Raises:
          ConfigError: the class or its `build` raised, or made no models and optimizers.
        """
        return self._call()

    def build_for_mesh(self, *, eager: bool = False) -> tuple[Parts, Initial]:
        """Returns the parts without values, and the initial values of their variables, not computed yet.

        Raises:
          ConfigError: as `build`.
        """
        traced = None
        if not eager:
            traced = self._trace()
        if traced is None:
            traced = self._build_on_host()
        parts, sources = traced
        for variable in parts.variables.values():
            private.release(variable)
        return parts, Initial(sources)

    def build_abstract(self, *, eager: bool = False) -> Parts:
        """Returns the parts, whose variables need no values, for a plan.

        Raises:
          ConfigError: as `build`.
        """
        built: list[Parts] = []
        if not eager:
            try:
                jax.eval_shape(lambda: built.append(self._call()))
            except ConfigError:
                # The build may need values. If it is wrong in itself, the one below raises the same error.
                built.clear()
        if not built or _holds_traced(built[0]):
            return self._call()
        return built[0]

    def build_with(self, values: Mapping[str, Array]) -> Parts:
        """Returns the parts on one device, with the given values of the models' variables.

        Raises:
          ConfigError: as `build`.
        """
        parts = self._call()
        for path, variable in parts.model_variables.items():
            with host_memory():
                variable.assign(values[path])
        return parts

    def _trace(self) -> tuple[Parts, Sources] | None:
        """Returns the parts and how their variables' values are computed; None if the build can't be traced."""
        built: list[Parts] = []

        def values() -> list[jax.Array]:
            built.append(self._call())
            return [variable.value for variable in built[0].variables.values()]

        try:
            trace = jax.make_jaxpr(values)()
        except ConfigError:
            # The build needs values. If it is wrong in itself, the eager build raises the same error.
            return None
        (parts,) = built
        if _holds_traced(parts):
            return None
        slices = zip(parts.variables, trace_slices(trace), strict=True)
        return parts, {path: part.source() for path, part in slices}

    def _build_on_host(self) -> tuple[Parts, Sources]:
        with host_memory():
            parts = self._call()
        return parts, {path: HostValue(variable.value) for path, variable in parts.variables.items()}

    def _call(self) -> Parts:
        """Returns the parts of a new instance, whose `build` was called."""
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
        """Returns the model of the config's group `model`."""
        config = self._config
        return Keras3Factory(config.model, self._data, config.trainer.seed, config.engine.precision).call_builder()


def _holds_traced(parts: Parts) -> bool:
    """Returns whether parts hold traced arrays outside of their variables."""
    own = {name: value for name, value in vars(parts.step).items() if not isinstance(value, keras.Model)}
    if is_traced(own) or any(is_traced(vars(optimizer)) for optimizer in parts.optimizers.values()):
        return True
    return any(map(holds_traced, parts.models.values()))

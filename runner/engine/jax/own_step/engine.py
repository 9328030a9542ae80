"""The engine `jax` for custom steps: several models and optimizers, and a user's functions for updates and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax
import keras
import numpy as np

from runner.config.schema import LayoutConfig
from runner.data.base import Array
from runner.engine.base import HostBatches, LayerOutput
from runner.engine.evaluation import BatchResult
from runner.engine.jax import private
from runner.engine.jax.adapter import outputs_of
from runner.engine.jax.engine import JaxEngine
from runner.engine.jax.names import Names
from runner.engine.jax.own_step.functions import Functions, OwnStep
from runner.engine.jax.own_step.parts import OwnStepFactory, slot_spec
from runner.engine.jax.precision import kind_of
from runner.engine.jax.rounds import call_numbers
from runner.engine.mappings import map_values, shapes_of, subset
from runner.errors import did_you_mean, invalid
from runner.task.base import Evaluation
from runner.task.custom import StepTask


class OwnStepEngine(JaxEngine):
    """Several Keras 3 models with a user's step; see `runner.engine.common.Engine` for what the methods promise."""

    # The state is a dict by canonical path, where the engine of one model has a `State`.
    _functions: Any

    def _make_model(self) -> Mapping[str, tuple[int, ...]]:
        task = self._data.task
        assert isinstance(task, StepTask)
        self._task = task
        self._model = None
        self._own_factory = OwnStepFactory(self._config, self._data, self._total_steps)
        self._parts, self._initial = self._own_factory.build_for_mesh()
        return shapes_of(self._parts.model_variables)

    def _layout(self) -> LayoutConfig:
        return self._config.layout

    def _make_state(self) -> None:
        """Draws the initial values; each variable of an optimizer is sharded as the variable that it belongs to."""
        parts = self._parts
        self._trainable = parts.trained
        specs = {path: self.placements[path].spec for path in parts.model_variables}
        for path, variable in parts.optimizer_variables.items():
            owner = parts.owners[path]
            specs[path] = (None,) * len(variable.shape)
            if owner:
                placement = self.placements[owner]
                specs[path] = slot_spec(tuple(variable.shape), placement.shape, placement.spec)
        self._kinds = self._placed_kinds(map_values(kind_of, parts.variables), specs)
        self._paths = {path: path for path in self._kinds}
        self._state = self._kinds
        if not self._planning:
            self._state = self._initial.place(self._kinds)

    def _make_programs(self) -> None:
        functions = Functions(self._parts, self._task, self._config.trainer.seed)
        step = OwnStep(functions, self._partitioning())
        self._functions = step
        losses = self._make_training(step, self._traced_step(step))
        self._evaluated = jax.jit(step.evaluated, out_shardings=(losses, self._replicated))
        self._outputs = jax.jit(step.outputs, static_argnums=1)

    def _traced_step(self, step: OwnStep) -> jax.core.Jaxpr:
        """Returns the trace of one round; a user's function that raises does so here."""
        arrays = {}
        for name, array in self._microbatch_shapes().items():
            arrays[name] = jax.ShapeDtypeStruct((1, *array.shape), array.dtype)
        numbers = call_numbers(1, 0, 1.0, np.ones(1, np.float32))
        return jax.make_jaxpr(step.step)(self._state, None, arrays, numbers, np.int32(0)).jaxpr

    def gradients(self, batches: HostBatches, step: int) -> dict[str, Array]:
        """Returns nothing: a custom step has no single gradient per variable."""
        del batches, step
        return {}

    def evaluate(self, batches: Iterable[HostBatches], *, keep_outputs: bool = False) -> Evaluation:
        """Evaluates batch by batch; the random key of a batch is a function of its place."""
        self._evaluated_batches = 0
        return super().evaluate(batches, keep_outputs=keep_outputs)

    def _start_evaluation(self, batch: HostBatches) -> BatchResult[jax.Array]:
        arrays = self._placed(batch, 1).arrays
        number = np.int32(self._evaluated_batches)
        self._evaluated_batches += 1
        loss, totals = self._run(self._evaluated, self._state, arrays, number)
        outputs = {}
        if self._task.keeps_outputs:
            outputs = self._run(self._outputs, self._state, self._exported, arrays)
        return BatchResult(loss, totals, outputs)

    @property
    def _exported(self) -> str:
        return exported_name(self._task, self._parts.models)

    def _layer_paths(self) -> list[str]:
        layers = []
        for model in self._parts.models.values():
            layers += list(filter(None, Names(model).layers.values()))
        return layers

    def layer_outputs(self) -> list[LayerOutput]:
        """Returns the outputs of each functional model's layers for one batch, as if each model was called once."""
        found = []
        for name, model in self._parts.models.items():
            if not private.is_functional(model):
                continue
            inputs = jax.tree.map(self._of_batch, private.inputs_of(model))
            for output in outputs_of(model, inputs):
                layer_inputs = []
                for layer_input in output.inputs:
                    layer_inputs.append(replace(layer_input, layer=f"{name}/{layer_input.layer}"))
                found.append(replace(output, layer=f"{name}/{output.layer}", inputs=tuple(layer_inputs)))
        return found

    def _of_batch(self, tensor: keras.KerasTensor) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self._microbatch_size, *tensor.shape[1:]), tensor.dtype)

    def plain_model(self) -> keras.Model:
        """Returns the exported model in the host's memory, with the present weights."""
        name = self._exported
        parts, _ = self._own_factory.build_for_mesh()
        prefix = f"{name}/"
        own = [path for path in parts.model_variables if path.startswith(prefix)]
        self._set_values(subset(parts.model_variables, own))
        return parts.models[name]


def exported_name(task: StepTask, models: Mapping[str, keras.Model]) -> str:
    """Returns the name of the model that a run exports; raises ConfigError if the class has no such model."""
    name = task.exported or next(iter(models))
    if name not in models:
        raise invalid("task.exported", name, problem="the class has no such model", fix=did_you_mean(name, models))
    return name


# The name under which `runner.engine.registry` finds the engine.
make = OwnStepEngine

"""The engine `jax` for custom steps: several models and optimizers, and a user's functions for updates and metrics.

Shapes: B examples of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax

from runner import arrays
from runner.config.import_path import raised
from runner.data.base import WEIGHT, Array
from runner.engine.base import HostBatches, LayerOutput
from runner.engine.evaluation import BatchResult
from runner.engine.jax import private
from runner.engine.jax.adapter import outputs_of
from runner.engine.jax.engine import JaxEngine
from runner.engine.jax.layers.gradients import exact_gradients
from runner.engine.jax.names import Names
from runner.engine.jax.own_step.parts import OwnStepFactory, Parts, Values
from runner.engine.jax.partitioning import Partitioning
from runner.engine.jax.precision import kind_of
from runner.engine.jax.shards import place_first
from runner.engine.jax.step import Arrays, Rounds, Sums, call_numbers, first_step, only_batch
from runner.engine.mappings import map_values, shapes_of, subset
from runner.errors import ConfigError, did_you_mean, invalid
from runner.task.base import LOSS, Evaluation, Outputs
from runner.task.custom import EXAMPLES, StepTask

# Numbers that random keys are derived by: of a step, of an evaluation, of the layers' generators in either.
_OF_STEPS = 0
_OF_EVALUATIONS = 1
_FOR_USER = 0
_FOR_LAYERS = 1


class Functions:
    """A user's functions with the runner's forms of state and metrics around them."""

    def __init__(self, parts: Parts, task: StepTask, seed: int) -> None:
        self.parts = parts
        self.task = task
        self._seed = seed
        self.ops = arrays.of(jnp)

    def train(self, values: Values, batch: Arrays, done: jax.Array | int) -> tuple[dict[str, jax.Array], Sums]:
        """Returns the new values after `done` steps, and each example's loss and metrics (B,) of a batch (B, ...)."""
        rng, layers_key = self._keys(_OF_STEPS, done)
        state = self.parts.structured(values, layers_key)
        result = self._called("train_step", state, batch, rng)
        if not isinstance(result, tuple) or len(result) != 2:
            raise self.parts.invalid("train_step must return (state, metrics)", "return both")
        new_state, metrics = result
        names = (LOSS, *self.task.step_metrics)
        return self.parts.flat(new_state), self._by_example("train_step", metrics, names, batch)

    def evaluate(self, values: Values, batch: Arrays, number: jax.Array | int) -> Sums:
        """Returns each example's loss and metrics (B,) of a batch (B, ...), the evaluation's one of this number."""
        rng, layers_key = self._keys(_OF_EVALUATIONS, number)
        state = self.parts.structured(values, layers_key)
        metrics = self._called("evaluate", state, batch, rng)
        return self._by_example("evaluate", metrics, tuple(self.task.directions), batch)

    def totals(self, metrics: Sums, batch: Arrays) -> Arrays:
        """Returns the sums of an evaluation's metrics over the examples of a batch, and their number."""
        is_real_b = batch[WEIGHT] > 0
        totals = {}
        for name, value_b in metrics.items():
            if name != LOSS:
                totals[name] = jnp.sum(jnp.where(is_real_b, value_b, 0.0))
        totals[EXAMPLES] = jnp.sum(is_real_b.astype(jnp.float32))
        return totals

    def _keys(self, purpose: int, number: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """Returns the random key of a user's function, and that of the layers' generators."""
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self._seed), purpose), number)
        return jax.random.fold_in(key, _FOR_USER), jax.random.fold_in(key, _FOR_LAYERS)

    def _called(self, name: str, state: dict[str, Any], batch: Arrays, rng: jax.Array) -> Any:
        try:
            # A copy: the function may change its dict, and `Parts.flat` compares the result with the state as it was.
            return getattr(self.parts.step, name)(dict(state), self.task.scaled(self.ops, batch), rng)
        except ConfigError:
            raise
        except Exception as error:  # A user's function may raise anything.
            raise self.parts.invalid(f"{name} raised {raised(error)}", "fix it") from error

    def _by_example(self, function: str, metrics: object, names: tuple[str, ...], batch: Arrays) -> Sums:
        """Returns metrics as float32 (B,); a number for the whole batch counts for each example."""
        if not isinstance(metrics, Mapping) or set(metrics) != set(names):
            raise self.parts.invalid(
                f"{function} must return metrics {', '.join(names)}, "
                f"but returned {', '.join(map(str, metrics)) if isinstance(metrics, Mapping) else 'no dict'}",
                "declare them in task.maximize, task.minimize and task.log",
            )
        size = batch[WEIGHT].shape[0]
        by_example = {}
        for name in names:
            value = jnp.asarray(metrics[name], jnp.float32)
            if value.shape not in ((), (size,)):
                raise self.parts.invalid(
                    f"{function} returned {name} with shape {list(value.shape)}",
                    "return one number per example, [batch], or one number",
                )
            by_example[name] = jnp.broadcast_to(value, (size,))
        return by_example


class OwnStep(Rounds[dict[str, jax.Array]]):
    """The functions on a mesh."""

    def __init__(self, functions: Functions, partitioning: Partitioning) -> None:
        super().__init__(partitioning, 1, functions.task.step_metrics)
        self._functions = functions

    def step(
        self, state: dict[str, jax.Array], split: Arrays | None, arrays: Arrays, numbers: jax.Array, index: jax.Array
    ) -> tuple[dict[str, jax.Array], Sums, jax.Array]:
        """Returns one round's new state, losses and metrics (B,), and regularization, 0; see the base class."""
        batch, _, _ = self._batch(split, arrays, numbers, index)
        with self._attention(), exact_gradients(self._partitioning.spread_images):
            new_state, sums = self._functions.train(state, batch, first_step(numbers) + index)
        placed: dict[str, jax.Array] = lax.with_sharding_constraint(new_state, self._partitioning.state)
        return placed, sums, jnp.zeros((), jnp.float32)

    def evaluated(self, state: dict[str, jax.Array], arrays: Arrays, number: jax.Array) -> tuple[jax.Array, Arrays]:
        """Returns each example's loss (B,) and the totals of a batch, arrays (1, B, ...)."""
        batch = only_batch(arrays)
        with self._attention(), exact_gradients(self._partitioning.spread_images):
            metrics = self._functions.evaluate(state, batch, number)
        return metrics[LOSS], self._functions.totals(metrics, batch)

    def outputs(self, state: dict[str, jax.Array], name: str, arrays: Arrays) -> Outputs:
        """Returns the float32 outputs of one model for the inputs of a batch, arrays (1, B, ...)."""
        model = self._functions.parts.models[name]
        # No layer draws numbers in an inference: the key is of no effect.
        entry = self._functions.parts.structured(state, jax.random.key(0))[name]
        inputs = self._functions.task.inputs(self._functions.ops, only_batch(arrays))
        training = private.training_argument(model, training=False)
        try:
            outputs, _ = model.stateless_call(entry.trainable, entry.non_trainable, inputs, **training)
        except Exception as error:  # A model may raise anything for inputs that are not its own.
            names = ", ".join(self._functions.task.input_names)
            problem = f"the model does not take the task's inputs, {names} ({raised(error)})"
            fix = "set task.inputs to the arrays that it takes, or task.exported to another model"
            raise invalid("task.exported", name, problem=problem, fix=fix) from error
        return jax.tree.map(lambda output: output.astype(jnp.float32), outputs)


class OwnStepEngine(JaxEngine):
    """Several Keras 3 models with a user's step; see `runner.engine.common.Engine` for what the methods promise."""

    # The state is a dict by canonical path, where the engine of one model has a `State`.
    _functions: Any

    @cached_property
    def _task(self) -> StepTask:
        task = self._data.task
        assert isinstance(task, StepTask)
        return task

    @cached_property
    def _own_factory(self) -> OwnStepFactory:
        return OwnStepFactory(self._config, self._data, self._total_steps)

    def _make_model(self) -> Mapping[str, tuple[int, ...]]:
        self._model = None
        self._parts, self._initial = self._own_factory.build_for_mesh()
        return shapes_of(self._parts.model_variables)

    def _make_state(self) -> None:
        """Draws the initial values; each variable of an optimizer is sharded as the variable that it belongs to."""
        parts = self._parts
        self._trainable = parts.trained
        specs = {path: self.placements[path].spec for path in parts.model_variables}
        for path, variable in parts.optimizer_variables.items():
            owner = self.placements.get(parts.owners[path])
            # Of another shape is a factored moment, or what belongs to no variable.
            specs[path] = (None,) * len(variable.shape)
            if owner is not None and owner.shape == tuple(variable.shape):
                specs[path] = owner.spec
        self._kinds = self._placed_kinds(map_values(kind_of, parts.variables), specs)
        self._paths = dict(zip(self._kinds, self._kinds, strict=True))
        self._state = self._kinds
        if not self._planning:
            self._state = place_first(self._initial, self._kinds)

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
            name = exported_name(self._task, self._parts.models)
            outputs = self._run(self._outputs, self._state, name, arrays)
        return BatchResult(loss, totals, outputs)

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

    def _stock_model(self) -> tuple[keras.Model, Mapping[str, keras.Variable]]:
        parts, _ = self._own_factory.build_for_mesh()
        name = exported_name(self._task, parts.models)
        own = [path for path in parts.model_variables if path.startswith(f"{name}/")]
        return parts.models[name], subset(parts.model_variables, own)


def exported_name(task: StepTask, models: Mapping[str, keras.Model]) -> str:
    """Returns the name of the model that a run exports; raises ConfigError if the class has no such model."""
    name = task.exported or next(iter(models))
    if name not in models:
        raise invalid("task.exported", name, problem="the class has no such model", fix=did_you_mean(name, models))
    return name


# The name under which `runner.engine.registry` finds the engine.
make = OwnStepEngine

"""The single device's side of the engine `jax`: plain Keras 3 on JAX with its stock optimizer, without a mesh.

Imports JAX and Keras, whose environment `runner.engine.registry.prepare` has set. Shapes: B examples per batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np

from runner import arrays
from runner.arrays import Tensor
from runner.config.schema import OptimizerConfig
from runner.data.base import Array
from runner.engine.jax import private
from runner.engine.jax.adapter import Keras3Factory, check_model, input_shapes, outputs_of
from runner.engine.jax.layers.gradients import exact_row_gradients
from runner.engine.jax.names import Names
from runner.engine.jax.precision import as_float32, rounded, set_dtypes
from runner.engine.jax.private import all_layers, forget_added_losses, in_float32, training_argument
from runner.engine.jax.randomness import seed_indices
from runner.engine.jax.updates import slots_of_transformation
from runner.engine.optim import groups, transformation
from runner.engine.optim.groups import Settings
from runner.engine.optim.rules import OPTIMIZERS, Slot
from runner.engine.optim.schedules import learning_rate
from runner.layout.paths import slot_path
from runner.verify.reference import GradientReference, Inputs
from runner.verify.request import Request
from runner.verify.stock import StockPart, stock_parts


class JaxReference(GradientReference):
    """A plain Keras 3 model; see the base classes for the methods.

    Its layers are Keras's own, and so is the arithmetic of a step. The states of random generators pass from step to
    step among the non-trainable variables, as in Keras's own training; they are not variables of the model, and are
    not compared.

    The gradients of rows that a layer takes of a bfloat16 table are added up in float32, as on the mesh: stock Keras's
    sums, in bfloat16, lose most of those of a token that is frequent (docs/bugs.md).

    Where the state is bfloat16, the results that the stock optimizer computes in float32 are rounded as they are
    stored. Its own arithmetic in bfloat16 takes Adam's 0.999 for 1, and changes nothing.
    """

    _weight_values: list[Tensor]

    def __init__(self, request: Request) -> None:
        """Builds the model from the config's seed; a ConfigError if that fails, or no mesh can train it."""
        super().__init__(request)
        config = request.config
        seed = config.trainer.seed
        self._ops = arrays.of(jnp)
        self._model = Keras3Factory(config.model, request.data, seed, config.engine.precision).build()
        check_model(self._model, config.model, request.data, pads=config.dataset.remainder == "pad")
        variables = Names(self._model).variables
        self._paths = {id(variable): path for path, variable in variables.items()}
        self._trainable = [self._paths[id(variable)] for variable in self._model.trainable_variables]
        self.settings = groups.settings(config.optimizer, self._trainable)
        if OPTIMIZERS[config.optimizer.name].is_transformation:
            stock = _TransformationOptimizer(config.optimizer, request.total_steps, self.settings)
            self.parts = [StockPart(stock, self._trainable)]
        else:
            self.parts = stock_parts(config.optimizer, request.total_steps, keras, self.settings)
        for part in self.parts:
            part.build(variables, self.settings)
        values = {path: variable.value for path, variable in variables.items()}
        self._kinds = set_dtypes(self._model, variables, config.engine.state)
        self.initial = {}
        for path, value in values.items():
            self.initial[path] = np.array(jnp.asarray(value, self._kinds[path].dtype))
        self._generators = seed_indices(self._model)
        # States of the generators by the number of microbatches before.
        self._seeds: dict[int, list[Tensor]] = {
            0: [self._model.non_trainable_variables[index].value for index in self._generators]
        }
        self._gradients_program = jax.jit(jax.value_and_grad(self._loss, has_aux=True))
        self._evaluate_program = jax.jit(self._evaluation)
        self._apply = jax.jit(self._applied, static_argnums=0)
        self._load(self.initial, 0)

    def _positions(self) -> int:
        # An output's last dims are features: one, or as many as the layer's bias has. The heads of an attention's
        # projection are dims of its bias too.
        feature_dims = {path.rpartition("/")[0]: 1 for path in self._paths.values()}
        for path, value in self.initial.items():
            if path.endswith("/bias"):
                feature_dims[path.removesuffix("/bias")] = value.ndim
        outputs = outputs_of(self._model, input_shapes(self._request.data, self._request.config.dataset.batch_size))
        most = 1
        for output in outputs:
            if output.layer in feature_dims:
                position_dims = output.shape[1 : -feature_dims[output.layer]]
                most = max(most, math.prod(position_dims))
        return most

    def _load_model(self, state: Mapping[str, Array], step: int) -> None:
        self._assign(state)
        seeds = iter(self._seeds[step * self._request.config.trainer.accumulate_steps])
        self._non_trainable = []
        for variable in self._model.non_trainable_variables:
            path = self._paths.get(id(variable))
            # The states of generators have no path.
            value = next(seeds) if path is None else jnp.asarray(state[path], self._kinds[path].dtype)
            self._non_trainable.append(value)
        # Of the stock optimizers' variables, by the variable's id.
        self._optimizer_values: dict[int, Tensor] = {}
        for part in self.parts:
            for variable in part.optimizer.variables:
                self._optimizer_values[id(variable)] = variable.value
            iterations = part.optimizer.iterations
            self._optimizer_values[id(iterations)] = jnp.asarray(step, iterations.dtype)
        for slot, variables in self.slot_variables:
            for path, variable in variables.items():
                key = slot_path(slot.name, path)
                if key in state:
                    self._optimizer_values[id(variable)] = jnp.asarray(state[key], variable.dtype)

    def _constrain(self) -> None:
        constrained = []
        for value, variable in zip(self._weight_values, self._model.trainable_variables, strict=True):
            if variable.constraint is not None:
                value = np.array(variable.constraint(jnp.asarray(value)), value.dtype)
            constrained.append(value)
        self._weight_values = constrained

    def _weights(self) -> dict[str, Array]:
        return {path: np.array(value) for path, value in zip(self._trainable, self._weight_values, strict=True)}

    def _assign(self, weights: Mapping[str, Array]) -> None:
        self._weight_values = [np.asarray(weights[path], self._kinds[path].dtype) for path in self._trainable]

    def _as_stored(self, slots: Mapping[str, Array]) -> dict[str, Array]:
        stored = {}
        for slot, variables in self.slot_variables:
            for path in variables:
                key = slot_path(slot.name, path)
                dtype = slot.dtype or self._kinds[path].dtype
                stored[key] = slots[key].astype(dtype)
        return stored

    def _compute_dtypes(self) -> Iterable[str | None]:
        return (layer.compute_dtype for layer in all_layers(self._model))

    def _gradients(
        self, inputs: Inputs, batch: Mapping[str, Array], share_b: Array, microstep: int, share: float
    ) -> tuple[float, dict[str, Array]]:
        self._seeds.setdefault(microstep, [self._non_trainable[index] for index in self._generators])
        (loss, self._non_trainable), gradients = self._gradients_program(
            self._weight_values, self._non_trainable, inputs, dict(batch), share_b, np.float32(share)
        )
        by_path = zip(self._trainable, gradients, strict=True)
        return float(loss), {path: np.array(as_float32(gradient)) for path, gradient in by_path}

    def _loss(
        self,
        weights: list[Tensor],
        non_trainable: list[Tensor],
        inputs: Tensor,
        batch: Mapping[str, Tensor],
        share_b: Tensor,
        share: Tensor,
    ) -> tuple[Tensor, list[Tensor]]:
        """Returns the mean loss with the regularization losses, and the new non-trainable variables."""
        forget_added_losses(self._model)
        with exact_row_gradients():
            outputs, non_trainable, penalties = self._model.stateless_call(
                weights, non_trainable, inputs, return_losses=True, **training_argument(self._model, training=True)
            )
        outputs = jax.tree.map(private.as_float32, outputs)
        loss_b = self._task.loss(self._ops, outputs, batch)
        # An example of weight 0 may have a loss of NaN, which times 0 is NaN.
        loss_b = jnp.where(share_b > 0, loss_b, 0.0) * share_b
        return loss_b.sum() + share * sum(jnp.sum(penalty) for penalty in penalties), non_trainable

    def _evaluate(self, inputs: Inputs, batch: Mapping[str, Array]) -> tuple[Array, dict[str, Array], float]:
        others = list(self._non_trainable)
        # Every evaluation of a run draws the random numbers of its first step.
        for index, seed in zip(self._generators, self._seeds[0], strict=True):
            others[index] = seed
        loss_b, totals, added = self._evaluate_program(self._weight_values, others, inputs, dict(batch))
        return np.array(loss_b), {name: np.array(total) for name, total in totals.items()}, float(added)

    def _evaluation(
        self, weights: list[Tensor], non_trainable: list[Tensor], inputs: Tensor, batch: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        arguments = training_argument(self._model, training=False)
        forget_added_losses(self._model)
        outputs, _, penalties = self._model.stateless_call(
            weights, non_trainable, inputs, return_losses=True, **arguments
        )
        outputs = jax.tree.map(private.as_float32, outputs)
        task = self._task.without_class_weights()
        added = jnp.asarray(sum(jnp.sum(penalty) for penalty in penalties), jnp.float32)
        return task.loss(self._ops, outputs, batch), task.totals(self._ops, outputs, batch), added

    def _apply_part(self, number: int, gradients: list[Array]) -> None:
        part = self.parts[number]
        weights = dict(zip(self._trainable, self._weight_values, strict=True))
        values = [self._optimizer_values[id(variable)] for variable in part.optimizer.variables]
        new_weights, new_values = self._apply(number, values, gradients, [weights[path] for path in part.paths])
        weights |= dict(zip(part.paths, new_weights, strict=True))
        self._weight_values = list(weights.values())
        self._optimizer_values |= dict(zip(map(id, part.optimizer.variables), new_values, strict=True))

    def _applied(
        self, number: int, optimizer_values: list[Tensor], gradients: list[Tensor], weights: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the new weights and optimizer values, rounded as a run stores both."""
        part = self.parts[number]
        with in_float32(self._model.trainable_variables):
            new_weights, new_values = part.optimizer.stateless_apply(
                optimizer_values, gradients, [as_float32(weight) for weight in weights]
            )
        indices = {id(variable): index for index, variable in enumerate(part.optimizer.variables)}
        for slot, variables in self.slot_variables:
            for path, variable in variables.items():
                # State with a dtype of its own is not rounded.
                if id(variable) not in indices or slot.dtype is not None:
                    continue
                index = indices[id(variable)]
                value = new_values[index]
                # The value stays float32, as the stock optimizer computes; only its digits are bfloat16's.
                new_values[index] = rounded(value, self._kinds[path].dtype).astype(value.dtype)
        dtypes = [self._kinds[path].dtype for path in part.paths]
        stored = [rounded(weight, dtype) for weight, dtype in zip(new_weights, dtypes, strict=True)]
        return stored, new_values

    def _variables(self) -> dict[str, Array]:
        variables = [*self._model.trainable_variables, *self._model.non_trainable_variables]
        current = [*self._weight_values, *self._non_trainable]
        values = {id(variable): value for variable, value in zip(variables, current, strict=True)}
        return {path: np.array(values[variable]) for variable, path in self._paths.items()}

    def _slot_value(self, variable: keras.Variable) -> Array:
        return np.array(self._optimizer_values[id(variable)])


class _TransformationOptimizer:
    """An Optax transformation, with the part of a Keras optimizer's interface that the reference uses.

    Updates weights by what the user's transformation returns, multiplied by the learning rate.

    Attributes:
      variables: the step count first, then the leaves of the transformation's state.
      by_slot: kinds of state, each with its variables by path; the path of state of the whole optimizer is empty.
    """

    def __init__(self, config: OptimizerConfig, total_steps: int, settings: Mapping[str, Settings]) -> None:
        """Calls the user's function; `build` makes the state."""
        self._config = config
        self._total_steps = total_steps
        self._settings = settings
        self._transformation = transformation.make(config)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Makes the first state from the variables' values, in the order of the settings."""
        self._variables = list(variables)
        # In float32, as the engine updates, whatever the layers compute in.
        values = dict(zip(self._settings, (jnp.asarray(one.value, jnp.float32) for one in variables), strict=True))
        state = self._transformation.init(values)
        leaves, self._structure = jax.tree.flatten(state)
        self.iterations = _variable(jnp.int32(0))
        state_variables = [_variable(jnp.asarray(leaf)) for leaf in leaves]
        self.variables = [self.iterations, *state_variables]
        self.by_slot: list[tuple[Slot, dict[str, keras.Variable]]] = []
        slots, places = slots_of_transformation(jax.eval_shape(lambda: state), values)
        for slot, numbers in zip(slots, places, strict=True):
            by_path = {path: state_variables[number] for path, number in zip(slot.paths, numbers, strict=True)}
            self.by_slot.append((slot, by_path))

    def stateless_apply(
        self, values: list[Tensor], gradients: list[Tensor], weights: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns new weights, after their constraints, and new values of the variables."""
        iterations, *leaves = values
        rate = learning_rate(self._config, iterations.astype(jnp.float32), self._total_steps, jnp)
        state = jax.tree.unflatten(self._structure, leaves)
        by_path = dict(zip(self._settings, weights, strict=True))
        changes, state = self._transformation.update(dict(zip(self._settings, gradients, strict=True)), state, by_path)
        new_weights = []
        for (path, own), variable in zip(self._settings.items(), self._variables, strict=True):
            # Optax's convention: updates are added, and a transformation that descends has negative ones.
            weight = by_path[path] + changes[path] * (rate * own.rate)
            if variable.constraint is not None:
                weight = variable.constraint(weight)
            new_weights.append(weight)
        return new_weights, [iterations + 1, *jax.tree.leaves(state)]


def _variable(value: jax.Array) -> keras.Variable:
    return keras.Variable(value, trainable=False, dtype=str(value.dtype))

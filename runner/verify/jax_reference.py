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
from runner.verify.meshproof.by_path import chosen
from runner.verify.reference import GradientReference, Inputs, on_host
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

    def __init__(self, request: Request) -> None:
        """Builds the model from the config's seed; a ConfigError if that fails, or no mesh can train it."""
        super().__init__(request)
        config = request.config
        seed = config.trainer.seed
        self._ops = arrays.of(jnp)
        self._model = Keras3Factory(config.model, request.data, seed, config.engine.precision).build()
        check_model(self._model, config.model, request.data, pads=config.dataset.remainder == "pad")
        variables = Names(self._model).variables
        paths = dict(zip(map(id, variables.values()), variables, strict=True))
        trainable = [paths[id(variable)] for variable in self._model.trainable_variables]
        self.settings = groups.settings(config.optimizer, trainable)
        if OPTIMIZERS[config.optimizer.name].is_transformation:
            stock = _TransformationOptimizer(config.optimizer, request.total_steps, self.settings)
            self.parts = [StockPart(stock, chosen(variables, trainable), self.settings)]
        else:
            self.parts = stock_parts(config.optimizer, request.total_steps, keras, self.settings, variables)
        values = {path: variable.value for path, variable in variables.items()}
        # The model's own are only called with values: it may use its weights in another dtype than a run stores.
        self._by_path = {}
        for path, kind in set_dtypes(self._model, variables, config.engine.state).items():
            self._by_path[path] = _variable(jnp.asarray(values[path], kind.dtype))
        self._trainable = chosen(self._by_path, trainable)
        self.initial = on_host(self._by_path)
        # In the model's order. The states of random generators have no path.
        self._others = []
        for variable in self._model.non_trainable_variables:
            if id(variable) in paths:
                variable = self._by_path[paths[id(variable)]]
            self._others.append(variable)
        self._generators = [self._others[index] for index in seed_indices(self._model)]
        # States of the generators by the number of microbatches before.
        self._seeds = {0: _values(self._generators)}
        self._gradients_program = jax.jit(jax.value_and_grad(self._loss, has_aux=True))
        self._evaluate_program = jax.jit(self._evaluation)
        self._apply = jax.jit(self._applied, static_argnums=0)
        self._load(self.initial, 0)

    def _positions(self) -> int:
        # An output's last dims are features: one, or as many as the layer's bias has. The heads of an attention's
        # projection are dims of its bias too.
        feature_dims: dict[str, int] = {}
        for path, value in self.initial.items():
            layer, _, name = path.rpartition("/")
            feature_dims.setdefault(layer, 1)
            if name == "bias":
                feature_dims[layer] = value.ndim
        outputs = outputs_of(self._model, input_shapes(self._request.data, self._request.config.dataset.batch_size))
        most = 1
        for output in outputs:
            if output.layer in feature_dims:
                position_dims = output.shape[1 : -feature_dims[output.layer]]
                most = max(most, math.prod(position_dims))
        return most

    def _load(self, state: Mapping[str, Array], step: int) -> None:
        super()._load(state, step)
        _set(self._generators, self._seeds[step * self._request.config.trainer.accumulate_steps])

    def _constrain(self) -> None:
        for weight, variable in zip(self._trainable.values(), self._model.trainable_variables, strict=True):
            if variable.constraint is not None:
                weight.assign(variable.constraint(weight.value))

    def _compute_dtypes(self) -> Iterable[str | None]:
        for layer in all_layers(self._model):
            yield layer.compute_dtype

    def _gradients(
        self, inputs: Inputs, batch: Mapping[str, Array], share_b: Array, microstep: int, share: float
    ) -> tuple[float, dict[str, Array]]:
        self._seeds.setdefault(microstep, _values(self._generators))
        trainable = _values(self._trainable.values())
        others = _values(self._others)
        (loss, new_others), gradients = self._gradients_program(
            trainable, others, inputs, dict(batch), share_b, np.float32(share)
        )
        _set(self._others, new_others)
        gradients = jax.tree.map(as_float32, gradients)
        return float(loss), dict(zip(self._trainable, map(np.array, gradients), strict=True))

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
        with exact_row_gradients():
            outputs, non_trainable, penalty = self._called(weights, non_trainable, inputs, training=True)
        loss_b = self._task.loss(self._ops, outputs, batch)
        # An example of weight 0 may have a loss of NaN, which times 0 is NaN.
        loss_b = jnp.where(share_b > 0, loss_b, 0.0) * share_b
        return loss_b.sum() + share * penalty, non_trainable

    def _called(
        self, weights: list[Tensor], non_trainable: list[Tensor], inputs: Tensor, *, training: bool
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Returns the outputs, the new non-trainable variables and the sum of the regularization losses."""
        forget_added_losses(self._model)
        arguments = training_argument(self._model, training=training)
        outputs, non_trainable, penalties = self._model.stateless_call(
            weights, non_trainable, inputs, return_losses=True, **arguments
        )
        return jax.tree.map(private.as_float32, outputs), non_trainable, sum(map(jnp.sum, penalties))

    def _evaluate(self, inputs: Inputs, batch: Mapping[str, Array]) -> tuple[Array, dict[str, Array], float]:
        # Every evaluation of a run draws the random numbers of its first step.
        seeds = dict(zip(map(id, self._generators), self._seeds[0], strict=True))
        others = [seeds.get(id(variable), variable.value) for variable in self._others]
        weights = _values(self._trainable.values())
        loss_b, totals, added = self._evaluate_program(weights, others, inputs, dict(batch))
        return np.array(loss_b), jax.tree.map(np.array, totals), float(added)

    def _evaluation(
        self, weights: list[Tensor], non_trainable: list[Tensor], inputs: Tensor, batch: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        outputs, _, penalty = self._called(weights, non_trainable, inputs, training=False)
        task = self._task.without_class_weights()
        added = jnp.asarray(penalty, jnp.float32)
        return task.loss(self._ops, outputs, batch), task.totals(self._ops, outputs, batch), added

    def _apply_part(self, number: int, gradients: list[Array]) -> None:
        part = self.parts[number]
        weights = chosen(self._trainable, part.paths).values()
        slots = part.optimizer.variables
        new_weights, new_slots = self._apply(number, _values(slots), gradients, _values(weights))
        _set(weights, new_weights)
        _set(slots, new_slots)

    def _applied(
        self, number: int, optimizer_values: list[Tensor], gradients: list[Tensor], weights: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the new weights and optimizer values, rounded as a run stores both."""
        part = self.parts[number]
        with in_float32(self._model.trainable_variables):
            new_weights, new_values = part.optimizer.stateless_apply(
                optimizer_values, gradients, list(map(as_float32, weights))
            )
        indices = {id(variable): index for index, variable in enumerate(part.optimizer.variables)}
        for slot, path, variable in self.slot_variables.values():
            # State with a dtype of its own is not rounded.
            index = indices.get(id(variable))
            if index is None or slot.dtype is not None:
                continue
            value = new_values[index]
            # The value stays float32, as the stock optimizer computes; only its digits are bfloat16's.
            new_values[index] = rounded(value, self.initial[path].dtype).astype(value.dtype)
        stored = []
        for path, weight in zip(part.paths, new_weights, strict=True):
            stored.append(rounded(weight, self.initial[path].dtype))
        return stored, new_values


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
        values = {}
        for path, variable in zip(self._settings, variables, strict=True):
            values[path] = jnp.asarray(variable.value, jnp.float32)
        state = self._transformation.init(values)
        leaves, self._structure = jax.tree.flatten(state)
        self.iterations = _variable(jnp.int32(0))
        state_variables = list(map(_variable, leaves))
        self.variables = [self.iterations, *state_variables]
        self.by_slot: list[tuple[Slot, dict[str, keras.Variable]]] = []
        slots, places = slots_of_transformation(jax.eval_shape(lambda: state), values)
        for slot, numbers in zip(slots, places, strict=True):
            by_path = {}
            for path, number in zip(slot.paths, numbers, strict=True):
                by_path[path] = state_variables[number]
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


def _values(variables: Iterable[keras.Variable]) -> list[Tensor]:
    return [variable.value for variable in variables]


def _set(variables: Iterable[keras.Variable], values: Iterable[Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _variable(value: Array | jax.Array) -> keras.Variable:
    array = jnp.asarray(value)
    return keras.Variable(array, trainable=False, dtype=str(array.dtype))

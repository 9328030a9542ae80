"""The single device's side of the engine `jax`: plain Keras 3 on JAX with its stock optimizer, without a mesh.

Imports JAX and Keras, whose environment `runner.engine.registry.load` has set. Shapes: B examples a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import keras
import numpy as np

from runner import arrays
from runner.arrays import Tensor
from runner.data.base import Array
from runner.engine.jax.adapter import Keras3Factory, check_model
from runner.engine.jax.layer_outputs import layer_outputs
from runner.engine.jax.layers.adopted import masks_from_scope
from runner.engine.jax.layers.rows import exact_row_gradients
from runner.engine.jax.names import Names
from runner.engine.jax.precision import as_float32, rounded, set_dtypes
from runner.engine.jax.private import all_layers, in_float32, training_argument
from runner.engine.jax.randomness import seed_indices
from runner.model import scope
from runner.optim.paths import owner_of, slot_path
from runner.optim.stock import stock_optimizer
from runner.verify.jax_float64 import in_float64
from runner.verify.reference import Inputs, Reference
from runner.verify.request import Request


class JaxReference(Reference):
    """A plain Keras 3 model; see `Reference` for what the methods promise.

    Its layers are Keras's own, and so is the arithmetic of a step; only dropout masks are handed in, functions of seed
    and micro-batch. The states of other layers' generators go from step to step among the non-trainable variables, as
    in Keras's own training; they are no variables of the model, and are not compared.

    The gradients of rows that a layer takes of a bfloat16 table are added up in float32, as on the mesh: stock Keras's
    sums, in bfloat16, lose most of those of a token that comes often (docs/bugs.md).

    Where the state is bfloat16, what the stock optimizer computes in float32 is rounded as it is kept; its own
    arithmetic in bfloat16 takes Adam's 0.999 for 1, and moves nothing.
    """

    def __init__(self, request: Request) -> None:
        """Builds the model from the config's seed.

        Raises:
          ConfigError: the builder fails, or made a model that no mesh can train.
        """
        super().__init__(request)
        config = request.config
        self._ops = arrays.of(jnp)
        self._task = request.data.task
        self._model = Keras3Factory(config.model, request.data, config.trainer.seed, config.engine.precision).build()
        check_model(self._model, config, request.data)
        self._stock = stock_optimizer(config.optimizer, request.total_steps, keras)
        self._stock.build(self._model.trainable_variables)
        variables = Names(self._model).variables
        self._paths = {id(variable): path for path, variable in variables.items()}
        first = {path: variable.value for path, variable in variables.items()}
        self._kinds = set_dtypes(self._model, variables, config.engine.state)
        self._first = {path: jnp.asarray(value, self._kinds[path].dtype) for path, value in first.items()}
        self._trainable = [self._paths[id(variable)] for variable in self._model.trainable_variables]
        self._generators = seed_indices(self._model)
        self._seeds: dict[int, list[Tensor]] = {}  # states of the generators after so many micro-batches
        self._gradients = jax.jit(jax.value_and_grad(self._loss, has_aux=True))
        self._judged = jax.jit(self._evaluation)
        self._apply = jax.jit(self._applied)
        self.reset()
        self.initial = self.variables()

    def positions(self) -> int:
        """Returns the most positions of a layer that has weights."""
        layers = dict.fromkeys((path.rpartition("/")[0] for path in self._paths.values()), 1)
        # The heads of an attention's projection are dims of its bias too.
        layers |= {
            path.removesuffix("/bias"): value.ndim for path, value in self.initial.items() if path.endswith("/bias")
        }
        outputs = layer_outputs(self._model, self._request.config.dataset.batch_size, self._request.data)
        found = (math.prod(each.shape[1 : -layers[each.layer]]) for each in outputs if each.layer in layers)
        return max(found, default=1)

    def reset(self) -> None:
        """Takes the values that the builder and the optimizer made; the variables themselves are never assigned."""
        self._weights = [self._first[path] for path in self._trainable]
        self._non_trainable = [
            self._first[self._paths[id(variable)]] if id(variable) in self._paths else variable.value
            for variable in self._model.non_trainable_variables
        ]
        self._kept = [variable.value for variable in self._stock.variables]

    def load(self, values: Mapping[str, Array], slots: Mapping[str, Array], step: int) -> None:
        """Takes a state; the generators' are those that the first training had at that step."""
        self.reset()
        self.assign(values)
        seeds = self._seeds[step * self._request.config.trainer.accumulate_steps]
        self._non_trainable = [
            seeds[self._generators.index(index)]
            if index in self._generators
            else jnp.asarray(values[path := self._paths[id(variable)]], self._kinds[path].dtype)
            for index, variable in enumerate(self._model.non_trainable_variables)
        ]
        places = {id(variable): index for index, variable in enumerate(self._stock.variables)}
        self._kept[places[id(self._stock.iterations)]] = jnp.asarray(step, self._stock.iterations.dtype)
        for slot, attribute in self._slot_attributes().items():
            for path, variable in zip(self._trainable, getattr(self._stock, attribute), strict=True):
                if slot_path(slot, path) in slots:
                    self._kept[places[id(variable)]] = jnp.asarray(slots[slot_path(slot, path)], variable.dtype)

    @contextmanager
    def in_float64(self) -> Iterator[JaxReference]:
        """Lets the gradients be computed in float64 while the context lasts."""
        plain = self._gradients
        self._gradients = in_float64(jax.value_and_grad(self._loss, has_aux=True))
        try:
            yield self
        finally:
            self._gradients = plain

    def constrain(self) -> None:
        """Applies the variables' own constraints."""
        self._weights = [
            value if variable.constraint is None else np.array(variable.constraint(jnp.asarray(value)), value.dtype)
            for value, variable in zip(self._weights, self._model.trainable_variables, strict=True)
        ]

    def weights(self) -> dict[str, Array]:
        """Returns the trainable variables by canonical path."""
        return {path: np.array(value) for path, value in zip(self._trainable, self._weights, strict=True)}

    def assign(self, weights: Mapping[str, Array]) -> None:
        """Sets the trainable variables."""
        self._weights = [np.asarray(weights[path], self._kinds[path].dtype) for path in self._trainable]

    def kept(self, slots: Mapping[str, Array]) -> dict[str, Array]:
        """Returns slots in the type in which a run keeps them."""
        return {path: value.astype(self._kinds[owner_of(path)].dtype) for path, value in slots.items()}

    def _compute_dtypes(self) -> Iterable[str | None]:
        return (layer.compute_dtype for layer in all_layers(self._model))

    def gradients(
        self, inputs: Inputs, batch: Mapping[str, Array], share_b: Array, microstep: int, share: float
    ) -> tuple[float, dict[str, Array]]:
        """Returns a micro-batch's loss and its gradients."""
        self._seeds.setdefault(microstep, [self._non_trainable[index] for index in self._generators])
        given = inputs, dict(batch), share_b, np.int32(microstep), np.float32(share)
        (loss, self._non_trainable), found = self._gradients(self._weights, self._non_trainable, *given)
        return float(loss), {
            path: np.array(as_float32(value)) for path, value in zip(self._trainable, found, strict=True)
        }

    def _loss(
        self,
        weights: list[Tensor],
        non_trainable: list[Tensor],
        inputs: Tensor,
        batch: Mapping[str, Tensor],
        share_b: Tensor,
        microstep: Tensor,
        share: Tensor,
    ) -> tuple[Tensor, list[Tensor]]:
        """Returns the mean loss with the regularization losses, and the new non-trainable variables."""
        in_scope = scope.enter(scope.Scope(self._request.config.trainer.seed, microstep))
        with in_scope, masks_from_scope(self._model), exact_row_gradients():
            outputs, non_trainable, penalties = self._model.stateless_call(
                weights, non_trainable, inputs, return_losses=True, **training_argument(self._model, training=True)
            )
        outputs = jax.tree.map(lambda each: each.astype(jnp.float32), outputs)
        loss_b = self._task.loss(self._ops, outputs, batch)
        loss_b = jnp.where(share_b > 0, loss_b, 0.0) * share_b
        return loss_b.sum() + share * sum(jnp.sum(penalty) for penalty in penalties), non_trainable

    def judged(self, inputs: Inputs, batch: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Returns each example's loss and the task's totals in an evaluation."""
        loss_b, totals = self._judged(self._weights, self._non_trainable, inputs, dict(batch))
        return np.array(loss_b), {name: np.array(total) for name, total in totals.items()}

    def _evaluation(
        self, weights: list[Tensor], non_trainable: list[Tensor], inputs: Tensor, batch: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        told = training_argument(self._model, training=False)
        outputs, _ = self._model.stateless_call(weights, non_trainable, inputs, **told)
        outputs = jax.tree.map(lambda each: each.astype(jnp.float32), outputs)
        return self._task.loss(self._ops, outputs, batch), self._task.totals(self._ops, outputs, batch)

    def apply(self, gradients: Mapping[str, Array]) -> None:
        """Lets the stock optimizer update the weights."""
        given = [gradients[path] for path in self._trainable]
        self._weights, self._kept = self._apply(self._kept, given, self._weights)

    def _applied(
        self, kept: list[Tensor], gradients: list[Tensor], weights: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the new weights, and what the stock optimizer keeps, rounded as a run keeps both."""
        with in_float32(self._model.trainable_variables):
            new, kept = self._stock.stateless_apply(kept, gradients, [as_float32(weight) for weight in weights])
        places = {id(variable): index for index, variable in enumerate(self._stock.variables)}
        for attribute in self._slot_attributes().values():
            for path, variable in zip(self._trainable, getattr(self._stock, attribute), strict=True):
                index = places[id(variable)]
                kept[index] = rounded(kept[index], self._kinds[path].dtype).astype(kept[index].dtype)
        kinds = [self._kinds[path].dtype for path in self._trainable]
        return [rounded(weight, kind) for weight, kind in zip(new, kinds, strict=True)], kept

    def variables(self) -> dict[str, Array]:
        """Returns every variable by canonical path."""
        variables = [*self._model.trainable_variables, *self._model.non_trainable_variables]
        values = {id(v): value for v, value in zip(variables, [*self._weights, *self._non_trainable], strict=True)}
        return {path: np.array(values[variable]) for variable, path in self._paths.items()}

    def slots(self, attribute: str) -> dict[str, Array]:
        """Returns what the stock optimizer keeps."""
        values = {id(v): value for v, value in zip(self._stock.variables, self._kept, strict=True)}
        kept = getattr(self._stock, attribute)
        return {path: np.array(values[id(v)]) for path, v in zip(self._trainable, kept, strict=False)}

"""Trial calls of a built Keras 3 model: variables that a training call changes, or that an evaluation would change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import keras
import numpy as np

from runner.config.schema import ModelConfig
from runner.data.base import Array, Batch
from runner.engine.base import as_called
from runner.engine.jax import private
from runner.engine.jax.names import Names
from runner.engine.mappings import keys_by_id, without
from runner.model import contract, padding
from runner.task.base import DataSpec

Values = list[jax.Array]


def check_kept(
    model: keras.Model,
    config: ModelConfig,
    microbatches: int,
    data: DataSpec,
    first: Callable[[], Mapping[str, jax.Array]],
    *,
    pads: bool,
) -> None:
    """Raises ConfigError if an evaluation changes a variable, or padding would count in variables, losses or examples.

    A model of Keras's own layers alone costs nothing here, except for one trace if batches are padded and it has such
    variables. A call is computed only if something is kept, or if a user's code may mix examples. `first` returns the
    variables' initial values by path; it gathers them from all processes, so it is called only for such a call.
    """
    layers = [model, *private.all_layers(model)]
    has_own_code = contract.has_own_code(layers)
    if not has_own_code and not pads:
        return
    # No gradient changes these; states of random generators are left out.
    kept = without(Names(model).variables, model.trainable_variables)
    if kept and has_own_code:
        for path in _changed(model, data, kept, training=False):
            raise contract.changed_by_evaluation(path, config)
    if not pads:
        return
    changed: list[str] = []
    if kept:
        changed = _changed(model, data, kept, training=True)
    if changed and microbatches > 1:
        # Some may be padding only, and would change the variable too.
        raise padding.invalid(f"variable {changed[0]}, which a training call of the model changes in each microbatch")
    if changed or has_own_code or contract.has_activity_loss(layers):
        padding.check(_call(model, changed, first()), data.inputs)


def _values(variables: Sequence[keras.Variable]) -> Values:
    return [variable.value for variable in variables]


def _changed(model: keras.Model, data: DataSpec, kept: dict[str, keras.Variable], *, training: bool) -> list[str]:
    """Returns the paths of the variables that a call changes, from a trace."""
    paths = keys_by_id(kept)
    others = model.non_trainable_variables
    changed: list[str] = []

    def call(trainable: Values, non_trainable: Values, inputs: object) -> None:
        _, new = model.stateless_call(
            trainable, non_trainable, inputs, **private.training_argument(model, training=training)
        )
        for variable, old_value, new_value in zip(others, non_trainable, new, strict=True):
            if new_value is not old_value and id(variable) in paths:
                changed.append(paths[id(variable)])

    # Two examples: a layer that computes over the batch may do otherwise with one alone.
    inputs = {name: jax.ShapeDtypeStruct((2, *spec.shape), spec.dtype) for name, spec in data.inputs.items()}
    jax.eval_shape(call, _values(model.trainable_variables), _values(others), as_called(inputs))
    return changed


def _call(model: keras.Model, kept: Sequence[str], values: Mapping[str, jax.Array]) -> padding.Call:
    """Returns the training call that `runner.model.padding` tries; it returns the kept variables' new values too."""
    others = model.non_trainable_variables
    variables = Names(model).variables
    # A random generator's state has no path: it keeps its own value.
    values_by_id = {id(variable): values[path] for path, variable in variables.items()}

    def values_of(group: Sequence[keras.Variable]) -> Values:
        return [values_by_id.get(id(variable), variable.value) for variable in group]

    trainable_values = values_of(model.trainable_variables)
    other_values = values_of(others)
    other_ids = list(map(id, others))
    kept_places = [other_ids.index(id(variables[path])) for path in kept]

    @jax.jit  # type: ignore[untyped-decorator]
    def train(trainable: Values, non_trainable: Values, inputs: object) -> tuple[Values, Values]:
        private.forget_added_losses(model)
        outputs, new, losses = model.stateless_call(
            trainable, non_trainable, inputs, return_losses=True, **private.training_argument(model, training=True)
        )
        return [*(new[place] for place in kept_places), *losses], jax.tree.leaves(outputs)

    def call(batch: Batch) -> tuple[list[Array], list[Array]]:
        found = train(trainable_values, other_values, as_called(dict(batch)))
        arrays: tuple[list[Array], list[Array]] = jax.tree.map(np.asarray, found)
        return arrays

    return call

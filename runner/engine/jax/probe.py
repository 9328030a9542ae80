"""Trial calls of a built Keras 3 model: what a training call keeps, and what an evaluation would change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import keras
import numpy as np

from runner.config.schema import RunConfig
from runner.data.base import Batch
from runner.engine.base import as_called
from runner.engine.jax import private
from runner.engine.jax.names import Names
from runner.errors import ConfigError
from runner.model import contract, padding, scope
from runner.task.base import DataSpec

Values = list[jax.Array]


def check_kept(
    model: keras.Model, config: RunConfig, data: DataSpec, first: Callable[[], Mapping[str, jax.Array]] | None = None
) -> None:
    """Checks what calls of a model leave in the variables that no gradient changes.

    A model of Keras's own layers alone costs nothing here, but for one trace where batches are padded and it has such
    variables; a call is computed only where something is kept, or where a user's code may mix examples.

    Args:
      model: built.
      config: the run's.
      data: what the engine is built for.
      first: gives what the variables begin with, by path; None: what they hold, and of those that hold nothing, as in
        a plan and before they are drawn, nothing is checked.

    Raises:
      ConfigError: an evaluation changes one; padding would count in one, in an added loss or in other examples.
    """
    layers = [model, *private.all_layers(model)]
    paths = _kept(model)
    pads = config.dataset.remainder == "pad"
    own = contract.has_own_code(layers)
    if (first is None and _is_abstract(model)) or not (own or pads):
        return
    if paths and own:
        for path in _changed(model, data, paths, training=False):
            raise ConfigError(
                f"model._target_={config.model.target}: variable {path} is changed by a call with "
                "training=False, and an evaluation may change nothing; change it where `training` is true"
            )
    changed = _changed(model, data, paths, training=True) if pads and paths else []
    if pads and (changed or own or contract.has_activity_loss(layers)):
        values = {path: one.value for path, one in Names(model).variables.items()} if first is None else first()
        before = {path: np.asarray(values[path]) for path in changed}
        padding.check(_call(model, config, changed, values), data.inputs, before, config.trainer.accumulate_steps)


def _is_abstract(model: keras.Model) -> bool:
    """Tells whether the variables have shapes and no values."""
    return any(isinstance(one.value, jax.core.Tracer | jax.ShapeDtypeStruct) for one in model.variables)


def _kept(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns path -> variable that no gradient changes, random generators' states left out."""
    trained = {id(variable) for variable in model.trainable_variables}
    return {path: variable for path, variable in Names(model).variables.items() if id(variable) not in trained}


def _values(variables: Sequence[keras.Variable]) -> Values:
    return [variable.value for variable in variables]


def _changed(model: keras.Model, data: DataSpec, paths: dict[str, keras.Variable], *, training: bool) -> list[str]:
    """Returns the paths of the variables that a call gives a new value, found by tracing it."""
    names = {id(variable): path for path, variable in paths.items()}
    others = model.non_trainable_variables
    changed: list[str] = []

    def traced(trainable: Values, non_trainable: Values, inputs: object) -> None:
        with scope.enter(scope.Scope(0, 0 if training else None)):
            _, new = model.stateless_call(
                trainable, non_trainable, inputs, **private.training_argument(model, training=training)
            )
        pairs = zip(others, non_trainable, new, strict=True)
        changed.extend(names[id(v)] for v, old, value in pairs if value is not old and id(v) in names)

    inputs = as_called({name: jax.ShapeDtypeStruct((2, *s.shape), s.dtype) for name, s in data.inputs.items()})
    jax.eval_shape(traced, _values(model.trainable_variables), _values(others), inputs)
    return changed


def _call(
    model: keras.Model, config: RunConfig, paths: Sequence[str], values: Mapping[str, jax.Array]
) -> padding.Call:
    """Returns the training call that `runner.model.padding` tries."""
    others = model.non_trainable_variables
    variables = Names(model).variables
    by_id = {id(variable): values[path] for path, variable in variables.items()}
    given = [[by_id.get(id(one), one.value) for one in each] for each in (model.trainable_variables, others)]
    indices = [next(i for i, each in enumerate(others) if each is variables[path]) for path in paths]

    def traced(trainable: Values, non_trainable: Values, inputs: object) -> tuple[Values, Values, Values]:
        with scope.enter(scope.Scope(config.trainer.seed, 0)):
            outputs, new, losses = model.stateless_call(
                trainable, non_trainable, inputs, return_losses=True, **private.training_argument(model, training=True)
            )
        return [new[index] for index in indices], list(losses), jax.tree.leaves(outputs)

    compiled = jax.jit(traced)

    def call(batch: Batch) -> padding.CallResult:
        found = compiled(*given, as_called(dict(batch)))
        kept, losses, outputs = ([np.asarray(each) for each in part] for part in found)
        return padding.CallResult(dict(zip(paths, kept, strict=True)), losses, outputs)

    return call

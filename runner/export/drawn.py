"""Detection of the answers of a model that depend on random numbers even in prediction. Imports JAX and Keras late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.engine.base import PlainModel
from runner.export.signature import Served
from runner.export.write import with_values
from runner.host.late import late

if TYPE_CHECKING:
    import jax

    from runner.engine.jax import adapter, private, randomness
else:
    jax = late("jax")
    adapter = late("runner.engine.jax.adapter")
    private = late("runner.engine.jax.private")
    randomness = late("runner.engine.jax.randomness")


def drawn_answers(plain: PlainModel, served: Served) -> frozenset[str]:
    """Returns the names of the answers that depend on the states of the model's random generators.

    A layer may draw numbers that prediction doesn't use, such as a recurrent layer with dropout; these don't count.

    Args:
      plain: the model. For tf_keras, whose generators no trace shows, the result is empty.
      served: its signature.
    """
    if plain.package != "keras":
        return frozenset()
    model = plain.model
    # Positions of the generators' states among the model's variables, trainable ones first.
    states = [len(model.trainable_variables) + index for index in randomness.seed_indices(model)]
    if not states:
        return frozenset()
    trainable, others = adapter.variable_shapes(model)
    variable_shapes = [*trainable, *others]
    array_shapes: dict[str, jax.ShapeDtypeStruct] = {}
    for name, spec in served.inputs.items():
        array_shapes[name] = jax.ShapeDtypeStruct((1, *spec.shape), spec.dtype)

    _, answer = with_values(plain, served)
    drawn: set[str] = set()
    for name in jax.eval_shape(answer, variable_shapes, array_shapes):
        # The program of this answer alone: a state is used if it is left when unused inputs are removed.
        traced = jax.make_jaxpr(lambda *taken, name=name: answer(*taken)[name])(variable_shapes, array_shapes)
        _, is_used = private.remove_unused(traced.jaxpr)
        if any(is_used[index] for index in states):
            drawn.add(name)
    return frozenset(drawn)

"""Which answers of a model come of random numbers, also when it predicts. Imports JAX and Keras when it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.arrays import Tensor
from runner.engine.base import PlainModel
from runner.export.signature import Served
from runner.export.write import answers
from runner.host.late import late

if TYPE_CHECKING:
    import jax
    import keras

    from runner.engine.jax import adapter, private, randomness
else:
    jax = late("jax")
    keras = late("keras")
    adapter, private, randomness = (late(f"runner.engine.jax.{name}") for name in ("adapter", "private", "randomness"))


def drawn_answers(plain: PlainModel, served: Served) -> frozenset[str]:
    """Returns the names of the answers that depend on the states of the model's random generators.

    A layer may draw numbers that nothing takes when it predicts, as a recurrent one with dropout; it is not counted.

    Args:
      plain: the model. Of tf_keras, whose generators no trace shows, none is named.
      served: what it takes and answers.
    """
    if plain.package != "keras":
        return frozenset()
    model = plain.model
    states = [len(model.trainable_variables) + index for index in randomness.seed_indices(model)]
    if not states:
        return frozenset()
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    trainable, others = adapter.variable_shapes(model)
    arrays = {name: jax.ShapeDtypeStruct((1, *spec.shape), spec.dtype) for name, spec in served.inputs.items()}

    def answer(values: list[Tensor], arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return answers(plain, served, jax.numpy, arrays)

    given = [*trainable, *others], arrays
    drawn = set()
    for name in jax.eval_shape(answer, *given):
        traced = jax.make_jaxpr(lambda *taken, name=name: answer(*taken)[name])(*given)
        _, used = private.without_unused(traced.jaxpr)
        if any(used[index] for index in states):
            drawn.add(name)
    return frozenset(drawn)

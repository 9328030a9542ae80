"""Loops over time, unrolled step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from runner.engine.dtensor.operations.order import reverse
from runner.engine.dtensor.private import BACKEND
from runner.errors import ConfigError
from runner.model import scope

_stock_rnn = BACKEND.rnn
_stock_key = BACKEND.ContextValueCache._key


class _Loop:
    """The key of one unrolled loop, by which cells cache their masks.

    tf_keras has the graph of the loop's body in its place.
    """


# The loops that are being unrolled, the innermost last.
_entered: list[_Loop] = []


def mask_context(cache: Any) -> object:
    """Replaces the key by which cells cache the masks that they draw.

    In a loop that is being unrolled, it is the loop's own.
    """
    if _entered:
        return _entered[-1]
    return _stock_key(cache)


def rnn(
    step_function: Callable[..., Any],
    inputs: Any,
    initial_states: Any,
    go_backwards: bool = False,
    mask: tf.Tensor | None = None,
    constants: Any = None,
    unroll: bool = False,
    input_length: Any = None,
    time_major: bool = False,
    zero_output_for_mask: bool = False,
    return_all_outputs: bool = True,
) -> Any:
    """Replaces tf_keras's function of that name.

    Unrolled, as the gradient of a loop has no rule.
    """
    time = 0 if time_major else 1
    if tf.nest.flatten(inputs)[0].shape[time] is None:
        raise ConfigError(
            "model._target_: a recurrent layer gets a sequence of unknown length, but engine=keras_dtensor unrolls "
            "its steps; give the model's input a fixed length, or set engine=jax"
        )
    if not time_major:
        inputs = tf.nest.map_structure(scope.by_batch, inputs)
    options = {
        "constants": constants,
        "unroll": True,
        "input_length": input_length,
        "time_major": time_major,
        "zero_output_for_mask": zero_output_for_mask,
        "return_all_outputs": return_all_outputs,
    }
    if unroll:
        # tf_keras unrolls by itself then, without the extra call of the step below.
        return _stock_rnn(step_function, inputs, initial_states, go_backwards, mask, **options)
    if go_backwards:
        # Reversed here, as tf_keras's own unrolled steps do not reverse the mask by which they set outputs to zero.
        inputs = tf.nest.map_structure(lambda x: reverse(x, [time]), inputs)
        if mask is not None:
            mask = reverse(mask, [time])
    # tf_keras calls the step once before its loop, and cells draw their masks again in the loop's body. The second
    # ones count, so the first draw must happen here too, or all later draws of the layer would differ from stock
    # Keras.
    states = tuple(initial_states) + tuple(constants or ())
    step_function(tf.nest.map_structure(lambda x: tf.gather(x, 0, axis=time), inputs), states)
    _entered.append(_Loop())
    try:
        return _stock_rnn(step_function, inputs, initial_states, False, mask, **options)
    finally:
        _entered.pop()

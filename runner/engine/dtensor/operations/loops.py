"""Loops over time, step by step."""

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
    """Stands for the graph of a loop's body, in which cells keep the masks that they draw there."""


_entered: list[_Loop] = []


def mask_context(cache: Any) -> object:
    """Stands for what tells cells where the masks that they keep were drawn: in a loop, or outside."""
    return _entered[-1] if _entered else _stock_key(cache)


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
    """Stands for tf_keras's function of that name: step by step in place of a loop, whose gradient has no rule."""
    first = tf.nest.flatten(inputs)[0]
    if first.shape[0 if time_major else 1] is None:
        raise ConfigError(
            "model._target_: a recurrent layer is given a sequence of unknown length, and "
            "engine=keras_dtensor computes it step by step; give the model's input a fixed length, or set engine=jax"
        )
    if not time_major:
        inputs = tf.nest.map_structure(scope.by_batch, inputs)
    rest = constants, True, input_length, time_major, zero_output_for_mask, return_all_outputs
    if unroll:  # without the loop's call before, which draws masks of its own
        return _stock_rnn(step_function, inputs, initial_states, go_backwards, mask, *rest)
    time = 0 if time_major else 1
    if go_backwards:  # by hand: tf_keras's steps in a row set outputs to zero by a mask that it forgets to reverse
        inputs = tf.nest.map_structure(lambda x: reverse(x, [time]), inputs)
        mask = None if mask is None else reverse(mask, [time])
    # tf_keras calls the step once before its loop, whose body draws masks again: those are the second ones.
    states = tuple(initial_states) + tuple(constants or ())
    step_function(tf.nest.map_structure(lambda x: tf.gather(x, 0, axis=time), inputs), states)
    _entered.append(_Loop())
    try:
        return _stock_rnn(step_function, inputs, initial_states, False, mask, *rest)
    finally:
        _entered.pop()

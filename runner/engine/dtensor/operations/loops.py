"""Loops over time, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from runner.config.errors import ConfigError
from runner.engine.dtensor.private import BACKEND
from runner.model import scope

_stock_rnn = BACKEND.rnn


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
    del unroll
    first = tf.nest.flatten(inputs)[0]
    if first.shape[0 if time_major else 1] is None:
        raise ConfigError(
            "model._target_ is refused: a recurrent layer is given a sequence of unknown length, and "
            "engine=keras_dtensor computes it step by step; give the model's input a fixed length, or set engine=jax"
        )
    if not time_major:
        inputs = tf.nest.map_structure(scope.by_batch, inputs)
    return _stock_rnn(
        step_function,
        inputs,
        initial_states,
        go_backwards,
        mask,
        constants,
        True,
        input_length,
        time_major,
        zero_output_for_mask,
        return_all_outputs,
    )

"""Variables whose readers get another value while a step is traced.

- `gather_for_use`: a variable is stored in shards and gathered for use, as FSDP and sharded convolution kernels need.
  Without it DTensor would keep a kernel that is sharded over the batch axis as it is, and gather the activations. Here
  a layer that reads the variable gets it gathered, by one all-gather, and its gradient is reduced and sharded again.
- `deferred`: assigned values are written at the end of the step, once per variable. A layer may set its own weights,
  as spectral normalization does, or be called twice and update its statistics each time, and DTensor's all-reduce
  combiner does not keep the order of reads and writes.

Both change the class of the variable; `.private.reads_by` says what of TensorFlow's private interface that relies on.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.engine.dtensor.private import reads_by


def gather_for_use(variable: dtensor.DVariable, layout: dtensor.Layout) -> None:
    """Makes every ordinary read of a DVariable return its value under a layout; `read_stored` is as before."""
    variable.use_layout = layout
    stored: type = type(variable)
    variable.__class__ = _gathered_class(stored)


def read_value(variable: tf.Variable) -> tf.Tensor:
    """Returns a variable's value as a layer reads it."""
    return variable.read_value()


def read_stored(variable: tf.Variable) -> tf.Tensor:
    """Returns a variable's value in the layout that it is stored in."""
    read = getattr(variable, "read_stored", variable.read_value)
    return read()


@functools.cache
def _gathered_class(stored: type) -> type:
    def gathered(variable: tf.Variable, read: Callable[[], tf.Tensor]) -> tf.Tensor:
        value = read()
        # Outside of a step nothing needs the gathered value, and a relayout would be a program of its own.
        if tf.executing_eagerly():
            return value
        return dtensor.relayout(value, variable.use_layout)

    subclass = reads_by(stored, gathered)
    subclass.read_stored = stored.read_value  # type: ignore[attr-defined]
    return subclass


@contextlib.contextmanager
def deferred(
    variables: Sequence[tf.Variable], lent: Mapping[int, tf.Tensor] | None = None, *, kept: bool = True
) -> Iterator[dict[int, tf.Tensor]]:
    """Defers assignments until the context ends, unless they are dropped; until then readers get the new values.

    `lent` tensors, by the id of their variable, are read in place of it, and not written. Yields id -> the value lent
    or assigned last. The gradient of a read after an assignment is that of the variable, as in TensorFlow.
    """
    lent = lent or {}
    assigned = dict(lent)
    classes: list[type] = list(map(type, variables))
    for variable, stored in zip(variables, classes, strict=True):
        variable.__class__ = _deferred_class(stored)
        variable.assigned = assigned
        variable.lent = lent
    try:
        yield assigned
    finally:
        for variable, stored in zip(variables, classes, strict=True):
            variable.__class__ = stored
            del variable.assigned, variable.lent
    if not kept:
        return
    for variable in variables:
        if id(variable) in assigned and id(variable) not in lent:
            variable.assign(assigned[id(variable)])


@functools.cache
def _deferred_class(stored: Any) -> type:
    def current_value(variable: tf.Variable, read: Callable[[], tf.Tensor]) -> tf.Tensor:
        new = variable.assigned.get(id(variable))
        if new is None:
            return read()
        lent = variable.lent.get(id(variable))
        if not variable.trainable or new is lent:
            return new
        value = read() if lent is None else lent
        # The difference is exactly 0. It gives the assigned value the gradient of the variable.
        return new + (value - tf.stop_gradient(value))

    def assign(variable: tf.Variable, value: tf.Tensor, *_: object, **__: object) -> tf.Tensor:
        # TensorFlow has no gradient of an assignment, so there must be none here.
        new = tf.stop_gradient(tf.cast(value, variable.dtype))
        variable.assigned[id(variable)] = new
        return new

    def assign_add(variable: tf.Variable, delta: tf.Tensor, *_: object, **__: object) -> tf.Tensor:
        return assign(variable, variable.read_value() + delta)

    def assign_sub(variable: tf.Variable, delta: tf.Tensor, *_: object, **__: object) -> tf.Tensor:
        return assign(variable, variable.read_value() - delta)

    subclass: Any = reads_by(stored, current_value)
    stored_before = getattr(stored, "read_stored", stored.read_value)

    def read_stored_value(variable: tf.Variable) -> tf.Tensor:
        new = variable.assigned.get(id(variable))
        if new is None:
            return stored_before(variable)
        return new

    subclass.read_stored = read_stored_value
    subclass.assign = assign
    subclass.assign_add = assign_add
    subclass.assign_sub = assign_sub
    return subclass  # type: ignore[no-any-return]

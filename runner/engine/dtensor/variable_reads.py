"""Variables whose readers get something else than what is stored.

`gather_for_use`: stored in shards and put together for use, as FSDP and sharded convolution kernels need. Left to
itself DTensor answers a kernel that is split over the batch axis by gathering the activations. Here a layer that reads
such a variable gets it gathered, by one all-gather, and its gradient comes back reduced and split likewise.

`lent`: a tensor in place of the variable, while a step is traced that carries its weights (see `.packing` here).

`deferred`: what was assigned while a step is traced, which is written at its end, once a variable: a layer may set its
own weights, as spectral normalization does, or be called twice and follow statistics, and DTensor's all-reduce
combiner does not keep the order of reads and writes.

All give a variable another class; see `.private` for what of TensorFlow's that leans on.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.engine.dtensor.origins import GATHER_SCOPE, UPDATE_SCOPE
from runner.engine.dtensor.private import reads_by


def gather_for_use(variable: dtensor.DVariable, path: str, layout: dtensor.Layout) -> None:
    """Makes every ordinary read of a DVariable give its value under another layout.

    Args:
      variable: DVariable; `read_stored` still reads it as it is stored.
      path: canonical path, which names the operations in the program.
      layout: DTensor layout of the value that layers see.
    """
    variable.use_layout = layout
    variable.use_name = path.replace("/", ".")
    stored: type = type(variable)
    variable.__class__ = _gathered_class(stored)


def read_stored(variable: tf.Variable) -> tf.Tensor:
    """Returns a variable's value in the layout that it is stored in."""
    read = getattr(variable, "read_stored", variable.read_value)
    return read()


@functools.cache
def _gathered_class(stored: type) -> type:
    """Returns the subclass of a variable class whose reads are gathered."""

    def gathered(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
        if tf.executing_eagerly():
            return value
        with tf.name_scope(f"{GATHER_SCOPE}/{variable.use_name}"):
            return dtensor.relayout(value, variable.use_layout)

    made = reads_by(stored, gathered)
    made.read_stored = stored.read_value  # type: ignore[attr-defined]
    return made


@contextlib.contextmanager
def _reclassed(
    variables: Sequence[tf.Variable], make: Callable[[type], type], attribute: str, values: Iterable[object]
) -> Iterator[None]:
    """Gives each variable another class while the context lasts, and a value that this reads in an attribute."""
    classes: list[type] = [type(variable) for variable in variables]
    for variable, stored, value in zip(variables, classes, values, strict=True):
        variable.__class__ = make(stored)
        setattr(variable, attribute, value)
    try:
        yield
    finally:
        for variable, stored in zip(variables, classes, strict=True):
            variable.__class__ = stored
            delattr(variable, attribute)


@contextlib.contextmanager
def lent(variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]) -> Iterator[None]:
    """Makes every ordinary read of a variable give a tensor in place of what it holds, while the context lasts."""
    with _reclassed(variables, _lent_class, "lent", values):
        yield


@functools.cache
def _lent_class(stored: type) -> type:
    """Returns the subclass of a variable class whose reads give what was lent."""
    return reads_by(stored, lambda variable, _: variable.lent, reads=False)


@contextlib.contextmanager
def deferred(variables: Sequence[tf.Variable], *, kept: bool = True) -> Iterator[None]:
    """Holds back what is assigned to variables until the context ends; meanwhile their readers get it.

    The gradient of a read after an assignment is that of the variable, as TensorFlow has it.

    Args:
      variables: each of which is given another class while the context lasts.
      kept: what was assigned is written at the end, else it is forgotten.
    """
    assigned: dict[int, tf.Tensor] = {}  # id of a variable -> what was assigned last
    with _reclassed(variables, _deferred_class, "assigned", [assigned] * len(variables)):
        yield
    with tf.name_scope(UPDATE_SCOPE):
        for variable in variables if kept else ():
            if id(variable) in assigned:
                variable.assign(assigned[id(variable)])


@functools.cache
def _deferred_class(stored: Any) -> type:
    """Returns the subclass of a variable class whose assignments are held back."""

    def given(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
        new = variable.assigned.get(id(variable))
        if new is None:
            return value
        if not variable.trainable:
            return new
        return new + (value - tf.stop_gradient(value))  # of which the second part is exactly 0

    def assign(variable: tf.Variable, value: tf.Tensor, *_: object, **__: object) -> tf.Tensor:
        # TensorFlow has no gradient of an assignment.
        variable.assigned[id(variable)] = tf.stop_gradient(tf.cast(value, variable.dtype))
        return variable.assigned[id(variable)]

    made: Any = reads_by(stored, given)
    read_before = getattr(stored, "read_stored", stored.read_value)

    def read_now(variable: tf.Variable) -> tf.Tensor:
        new = variable.assigned.get(id(variable))
        return read_before(variable) if new is None else new

    def assign_add(variable: tf.Variable, delta: tf.Tensor, *_: object, **__: object) -> tf.Tensor:
        return assign(variable, variable.read_value() + delta)

    def assign_sub(variable: tf.Variable, delta: tf.Tensor, *_: object, **__: object) -> tf.Tensor:
        return assign(variable, variable.read_value() - delta)

    made.read_stored = read_now
    made.assign = assign
    made.assign_add = assign_add
    made.assign_sub = assign_sub
    return made  # type: ignore[no-any-return]

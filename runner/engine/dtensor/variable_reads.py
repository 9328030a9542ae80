"""Variables whose readers get something else than what is stored.

`gather_for_use`: stored in shards and put together for use, as FSDP and sharded convolution kernels need.

Left to itself DTensor answers a kernel that is split over the batch axis by gathering the activations. Here a layer
that reads such a variable gets it gathered, by one all-gather, and its gradient comes back reduced and split likewise.

`lent`: a tensor in place of the variable, while a step is traced that carries its weights (see `.packing` here).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

SCOPE = "gather"


def gather_for_use(variable: Any, path: str, layout: Any) -> None:
    """Makes every ordinary read of a DVariable give its value under another layout.

    Args:
      variable: DVariable; `read_held` still reads it as it is stored.
      path: canonical path, which names the operations in the program.
      layout: DTensor layout of the value that layers see.
    """
    variable._use_layout, variable._use_name = layout, path.replace("/", ".")
    variable.__class__ = _gathered_class(type(variable))


def read_held(variable: Any) -> Any:
    """Returns a variable's value in the layout that it is stored in."""
    read = getattr(variable, "read_stored", variable.read_value)
    return read()


_classes: dict[type, type] = {}


def _gathered_class(stored: Any) -> type:
    """Returns the subclass of a variable class whose reads are gathered."""
    if stored in _classes:
        return _classes[stored]
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    class Gathered(stored):  # type: ignore[misc]
        """A DVariable whose readers get it in the layout that it is used in."""

        def read_stored(self) -> Any:
            return super().read_value()

        def read_value(self) -> Any:
            return self._gathered(super().read_value())

        def value(self) -> Any:
            return self._gathered(super().value())

        def _dense_var_to_tensor(self, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Any:
            del name, as_ref
            value = self.value()
            return value if dtype is None else tf.cast(value, dtype)

        def _gathered(self, value: Any) -> Any:
            if tf.executing_eagerly():
                return value
            with tf.name_scope(f"{SCOPE}/{self._use_name}"):
                return dtensor.relayout(value, self._use_layout)

    _classes[stored] = Gathered
    return Gathered


@contextlib.contextmanager
def lent(variables: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    """Makes every ordinary read of a variable give a tensor in place of what it holds, while the context lasts."""
    classes = [type(variable) for variable in variables]
    for variable, value in zip(variables, values, strict=True):
        variable.__class__, variable._lent = _lent_class(type(variable)), value
    try:
        yield
    finally:
        for variable, stored in zip(variables, classes, strict=True):
            variable.__class__ = stored
            del variable._lent


_lent_classes: dict[type, type] = {}


def _lent_class(stored: Any) -> type:
    """Returns the subclass of a variable class whose reads give what was lent."""
    if stored in _lent_classes:
        return _lent_classes[stored]
    import tensorflow as tf

    class Lent(stored):  # type: ignore[misc]
        """A DVariable that stands for a tensor."""

        def read_value(self) -> Any:
            return self._lent

        def value(self) -> Any:
            return self._lent

        def _dense_var_to_tensor(self, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Any:
            del name, as_ref
            return self._lent if dtype is None else tf.cast(self._lent, dtype)

    _lent_classes[stored] = Lent
    return Lent

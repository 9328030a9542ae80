"""Variables that are stored in shards and put together for use, as FSDP and sharded convolution kernels need.

Left to itself DTensor answers a kernel that is split over the batch axis by gathering the activations. Here a layer
that reads such a variable gets it gathered, by one all-gather, and its gradient comes back reduced and split likewise.
"""

from __future__ import annotations

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

"""Private interfaces of Keras's that KerasHub's presets need, with what breaks without each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import h5py
import jax.numpy as jnp
import keras
import numpy as np
from keras.src.backend.common import KerasVariable
from keras.src.saving import saving_lib


def giver(tensor: keras.KerasTensor) -> object:
    """Returns the layer that gives a symbolic tensor.

    Without it nothing tells whether a model's logits are a plain product.
    """
    return tensor._keras_history.operation


@dataclass(frozen=True)
class Stored:
    """A value in a file of Keras's weights, read in parts.

    Attributes:
      file: HDF5.
      dataset: where in it.
      shape: of the whole.
      bfloat16: it is held as bytes of that type.
    """

    file: str
    dataset: str
    shape: tuple[int, ...]
    bfloat16: bool

    def read(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """Returns a part of it, one slice a dim."""
        with h5py.File(self.file, "r") as held:
            part = held[self.dataset][index]
        return np.asarray(part).view(jnp.bfloat16) if self.bfloat16 else np.asarray(part)

    def whole(self) -> np.ndarray[Any, Any]:
        """Returns it whole."""
        return self.read((slice(None),) * len(self.shape))

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[Any, Any]:
        """Returns it whole, for loaders that compute with what they read."""
        del dtype, copy
        return self.whole()


@dataclass(frozen=True)
class Computed:
    """A value that a loader computed of what it read.

    Attributes:
      array: whole.
    """

    array: np.ndarray[Any, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""
        return tuple(self.array.shape)

    def read(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """Returns a part of it, one slice a dim."""
        return self.array[index]


@contextmanager
def loads_noted() -> Iterator[dict[int, Stored | Computed]]:
    """Notes what `load_weights` would assign, in place of reading and assigning it, while the context lasts.

    Yields:
      id of a variable -> its value, where it lies.
    """
    found: dict[int, Stored | Computed] = {}
    read = saving_lib.H5IOStore.__getitem__
    assign = KerasVariable.assign

    def stored(store: Any, key: str) -> Stored:
        dataset = saving_lib.safe_get_h5_dataset(store._h5_entry_group, key)
        bfloat16 = dataset.attrs.get("dtype") == "bfloat16"
        return Stored(dataset.file.filename, dataset.name, tuple(dataset.shape), bfloat16)

    def noted(variable: keras.Variable, value: Any) -> Any:
        if tuple(value.shape) != tuple(variable.shape):
            raise ValueError(f"{variable.path} has shape {list(variable.shape)}, the file {list(value.shape)}")
        found[id(variable)] = value if isinstance(value, Stored) else Computed(np.asarray(value))
        return value

    saving_lib.H5IOStore.__getitem__ = stored
    KerasVariable.assign = noted
    try:
        yield found
    finally:
        saving_lib.H5IOStore.__getitem__ = read
        KerasVariable.assign = assign

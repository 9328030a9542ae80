"""Private interfaces of Keras that KerasHub's presets and heads need, each with what breaks without it."""

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


def producer(tensor: keras.KerasTensor) -> object:
    """Returns the layer whose output a symbolic tensor is.

    Private: `KerasTensor._keras_history`. Without it, `model.fused_head` could not check that a model's logits are a
    plain product with the embeddings, and would silently leave out what else the model computes.
    """
    return tensor._keras_history.operation


@dataclass(frozen=True)
class FileValue:
    """A variable's value in a Keras weights file, read by parts.

    `is_bfloat16`: the file stores its elements as bytes of an opaque type; HDF5 has no bfloat16.
    """

    file: str
    dataset: str
    shape: tuple[int, ...]
    is_bfloat16: bool

    def read(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """Returns a part, one slice per dim."""
        with h5py.File(self.file, "r") as file:
            part = np.asarray(file[self.dataset][index])
        if self.is_bfloat16:
            part = part.view(jnp.bfloat16)
        return part

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[Any, Any]:
        del dtype, copy
        return self.read((slice(None),) * len(self.shape))


@dataclass(frozen=True)
class ComputedValue:
    """A variable's whole value that a loader computed from what it read."""

    array: np.ndarray[Any, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole value."""
        return tuple(self.array.shape)

    def read(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """Returns a part, one slice per dim."""
        return self.array[index]


@contextmanager
def recorded_loads() -> Iterator[dict[int, FileValue | ComputedValue]]:
    """Lets `load_weights` record where values are, instead of reading them.

    Private: `saving_lib.H5IOStore.__getitem__`, `H5IOStore._h5_entry_group`, `saving_lib.safe_get_h5_dataset` and
    `KerasVariable.assign`, which every loader calls. Without them every process would load the whole preset, however
    small its own shards are.

    Yields:
      id of a variable -> its value, filled by the loads while the context lasts.
    """
    values: dict[int, FileValue | ComputedValue] = {}
    # Restored in any case: other models of this process are loaded as usual.
    original_getitem = saving_lib.H5IOStore.__getitem__
    original_assign = KerasVariable.assign

    def getitem(store: Any, key: str) -> FileValue:
        dataset = saving_lib.safe_get_h5_dataset(store._h5_entry_group, key)
        is_bfloat16 = dataset.attrs.get("dtype") == "bfloat16"
        return FileValue(dataset.file.filename, dataset.name, tuple(dataset.shape), is_bfloat16)

    def assign(variable: keras.Variable, value: Any) -> Any:
        if tuple(value.shape) != tuple(variable.shape):
            raise ValueError(f"{variable.path} has shape {list(variable.shape)}, the file has {list(value.shape)}")
        if isinstance(value, FileValue):
            values[id(variable)] = value
        else:
            values[id(variable)] = ComputedValue(np.asarray(value))
        return value

    saving_lib.H5IOStore.__getitem__ = getitem
    KerasVariable.assign = assign
    try:
        yield values
    finally:
        saving_lib.H5IOStore.__getitem__ = original_getitem
        KerasVariable.assign = original_assign

"""Keras's preprocessing layers, for `tests.data.test_layers`; it calls this in another process than pytest's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def results(name: str, options: Mapping[str, Any], train: Any, other: Any, as_rows: bool = True) -> list[np.ndarray]:
    """Returns what a layer that is adapted to `train` makes of `train` and of `other`.

    Args:
      name: the class in `keras.layers`.
      options: its arguments.
      train: values, or examples of vectors.
      other: more of them.
      as_rows: give single values as vectors of size 1.
    """
    import keras  # not by what pytest's own process imports

    arguments = {
        key: tuple(value) if key == "ngrams" and isinstance(value, list) else value for key, value in options.items()
    }
    layer = getattr(keras.layers, name)(**arguments)
    columns = [np.asarray(values) for values in (train, other)]
    if as_rows:
        columns = [values[:, None] if values.ndim == 1 else values for values in columns]
    given = {"vocabulary", "bin_boundaries", "mean"}
    if not given & {*options} and hasattr(layer, "adapt"):
        layer.adapt(columns[0])
    return [np.asarray(layer(values)) for values in columns]

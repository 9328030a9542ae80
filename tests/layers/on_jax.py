"""The models as a user of Keras 3 writes them: `import keras` stands at the top, no other Keras is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tests.layers.network import network
from tests.layers.table import by_name


class Weighted(keras.layers.Layer):
    """A weight and a bias on each number of an example."""

    supports_masking = True

    def build(self, shape: Sequence[int | None]) -> None:
        self.scale = self.add_weight(shape=tuple(shape[1:]), initializer="ones", name="scale")
        self.shift = self.add_weight(shape=tuple(shape[1:]), initializer="zeros", name="shift")

    def call(self, inputs: Any) -> Any:
        return inputs * self.scale + self.shift


def build(inputs: Mapping[str, object], num_classes: int, cases: Sequence[str], **_: object) -> Any:  # noqa: ARG001
    """Returns the model of some cases, by name."""
    known = by_name()
    return network(keras, Weighted, [known[name] for name in cases])

"""Models whose variables begin in different ways, and a program that draws them by shards and compares."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runner.config.schema import ModelConfig
from runner.engine.jax.adapter import Keras3Factory
from runner.engine.jax.names import Names
from runner.model import stored
from tests.engine import cases

_BUILDERS = ("drawn", "assigned", "regularized", "wants", "given", "constant", "numpy_drawn")
_INITIALIZERS = ("glorot_uniform", "he_normal", "random_normal", "truncated_normal", "random_uniform", "orthogonal")


def drawn(keras: Any, input_shape: Sequence[int], num_classes: int) -> Any:
    """Every kind of initializer, biases that are drawn about a mean, two layers alike, and a random generator."""
    return _stack(keras, input_shape, num_classes, [*_INITIALIZERS, "he_normal", "he_normal"])


def _stack(keras: Any, input_shape: Sequence[int], num_classes: int, initializers: Sequence[str]) -> Any:
    bias = keras.initializers.RandomNormal(0.3, 0.07)
    layers = [
        keras.layers.Dense(16, kernel_initializer=name, bias_initializer=bias, name=f"d{number}")
        for number, name in enumerate(initializers)
    ]
    head = [keras.layers.Dropout(0.5), keras.layers.Dense(num_classes, name="head")]
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), *layers, *head])


def assigned(keras: Any, input_shape: Sequence[int], num_classes: int) -> Any:
    """Values that the builder sets, and some that it computes of drawn ones, by products and sums too."""
    model = _stack(keras, input_shape, num_classes, _INITIALIZERS[:3])
    model.get_layer("d1").kernel.assign(np.arange(256, dtype=np.float32).reshape(16, 16))
    model.get_layer("d2").kernel.assign(model.get_layer("d2").kernel * 3.0 + 0.1)
    model.get_layer("d0").bias.assign(keras.ops.matmul(model.get_layer("d2").kernel, model.get_layer("d1").bias))
    model.get_layer("head").bias.assign(keras.ops.sum(model.get_layer("head").kernel, axis=0) / 3.0)
    return model


def regularized(keras: Any, input_shape: Sequence[int], num_classes: int) -> Any:
    """A layer whose regularizer keeps its factor as a tensor, which it makes when the layer is made."""
    head = keras.layers.Dense(num_classes, kernel_regularizer=keras.regularizers.L1(0.5), name="head")
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), head])


def wants(keras: Any, input_shape: Sequence[int], num_classes: int) -> Any:
    """A builder that looks at values."""
    model = _stack(keras, input_shape, num_classes, _INITIALIZERS[:2])
    assert float(np.asarray(model.get_layer("d1").kernel).std()) > 0
    return model


def constant(keras: Any, input_shape: Sequence[int], num_classes: int) -> Any:
    """A functional model that multiplies by a tensor which the builder computes, as KerasHub's Gemma does."""
    image = keras.Input(input_shape)
    hidden = keras.layers.Dense(16, kernel_initializer=_CountingInitializer(), name="d0")(
        keras.layers.Flatten()(image)
    )
    hidden = keras.layers.Dropout(0.5)(hidden * keras.ops.sqrt(keras.ops.cast(16, "float32")))
    return keras.Model(image, keras.layers.Dense(num_classes, name="head")(hidden))


class _CountingInitializer:
    """Draws as Keras does, and counts how often it draws outside of a trace."""

    drawn = 0

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Any:
        value = keras.initializers.HeNormal(seed=3)(shape, dtype)
        _CountingInitializer.drawn += not isinstance(value, jax.core.Tracer)
        return value


def numpy_drawn(keras: Any, input_shape: Sequence[int], num_classes: int) -> Any:
    """An initializer that draws from `np.random`."""

    def normal(shape: Sequence[int], dtype: Any = None) -> Any:
        del dtype
        return np.random.normal(size=shape).astype(np.float32)

    image = keras.Input(input_shape)
    hidden = keras.layers.Dense(16, kernel_initializer=normal, name="d0")(keras.layers.Flatten()(image))
    hidden = hidden * keras.ops.sqrt(keras.ops.cast(16, "float32"))
    return keras.Model(image, keras.layers.Dense(num_classes, name="head")(hidden))


class _Rows:
    """A kernel whose every element is the number of its row; counts how much of it is read at a time."""

    shape = (16, 1 << 15)
    largest = 0

    def read(self, index: tuple[slice, ...]) -> Any:
        spans = [each.indices(size) for each, size in zip(index, self.shape, strict=True)]
        found = np.broadcast_to(np.arange(*spans[0], dtype=np.float64)[:, None], [len(range(*one)) for one in spans])
        _Rows.largest = max(_Rows.largest, found.size)
        return found


def given(keras: Any, input_shape: Sequence[int], num_classes: int) -> Any:
    """A kernel that the builder says where to read."""
    wide = keras.layers.Dense(_Rows.shape[1], name="wide")
    layers = [keras.layers.Dense(_Rows.shape[0], name="narrow"), wide, keras.layers.Dense(num_classes, name="head")]
    model = keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), *layers])
    stored.give(model, {id(wide.kernel): _Rows()})
    return model


def _spec(shape: Sequence[int], size: int) -> PartitionSpec:
    """Returns a variable's spec: its last dim that the axis divides is split."""
    split = [dim for dim, length in enumerate(shape) if length % size == 0]
    return PartitionSpec(*("x" if dim == split[-1:][0] else None for dim in range(len(shape)) if split))


def main() -> None:
    """Prints, by model and number of devices, what is not as it should be; JSON."""
    jax.config.update("jax_num_cpu_devices", 8)
    found: dict[str, Any] = {}
    own = importlib.import_module("tests.engine.first_values")  # what builders are taken from
    for name in _BUILDERS:
        factory = Keras3Factory(ModelConfig(target=f"{own.__name__}.{name}", options={}), cases.data(), 5)
        # Keras's global seed generator draws from where the build before has left it.
        keras.utils.clear_session()
        whole = {path: np.asarray(each.value) for path, each in Names(factory.build()).variables.items()}
        for count in (1, 8) if name in ("drawn", "given") else (8,):
            keras.utils.clear_session()
            mesh, (model, first) = Mesh(np.array(jax.devices()[:count]), ("x",)), factory.build_for_mesh()
            variables = Names(model).variables
            lies = {path: NamedSharding(mesh, _spec(each.shape, count)) for path, each in variables.items()}
            kinds = {
                path: jax.ShapeDtypeStruct(tuple(each.shape), each.dtype, sharding=lies[path])
                for path, each in variables.items()
            }
            own._Rows.largest = 0
            placed = first.place(kinds)
            found[f"largest {name} {count}"] = own._Rows.largest
            other = [path for path, value in whole.items() if not np.array_equal(value, np.asarray(placed[path]))]
            astray = [path for path, value in placed.items() if value.sharding != lies[path]]
            values = [path for path, each in variables.items() if isinstance(each.value, jax.Array)]
            found[f"{name} {count}"] = [other, astray, values]
            if name == "regularized":
                regularizer, ones = model.get_layer("head").kernel_regularizer, np.ones(4, np.float32)
                found["penalty"] = float(jax.jit(lambda x, of=regularizer: of(x)).lower(ones).compile()(ones))
    factory = Keras3Factory(ModelConfig(target=f"{own.__name__}.constant", options={}), cases.data(), 5)
    own._CountingInitializer.drawn = 0
    factory.build_for_mesh()
    found["drawn whole"] = own._CountingInitializer.drawn
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

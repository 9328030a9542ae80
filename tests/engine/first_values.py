"""Models whose variables begin in different ways, and a program that places their values by shards and compares."""

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
from runner.engine.jax import shards
from runner.engine.jax.adapter import Keras3Factory
from runner.engine.jax.names import Names
from runner.model import stored
from tests.engine import cases

_BUILDERS = ("drawn", "assigned", "given", "numpy_drawn")
_INITIALIZERS = ("glorot_uniform", "he_normal", "random_normal", "truncated_normal", "random_uniform", "orthogonal")


def drawn(keras: Any, input_shape: Sequence[int], num_classes: int) -> Any:
    """Every kind of initializer, biases drawn about a mean, a random generator, and a constant as Gemma's."""
    bias = keras.initializers.RandomNormal(0.3, 0.07)
    image = keras.Input(input_shape)
    hidden = keras.layers.Flatten()(image) * keras.ops.sqrt(keras.ops.cast(16, "float32"))
    for number, name in enumerate(_INITIALIZERS):
        hidden = keras.layers.Dense(16, kernel_initializer=name, bias_initializer=bias, name=f"d{number}")(hidden)
    hidden = keras.layers.Dropout(0.5)(hidden)
    head = keras.layers.Dense(num_classes, kernel_regularizer=keras.regularizers.L1(0.5), name="head")
    return keras.Model(image, head(hidden))


def assigned(keras: Any, input_shape: Sequence[int], num_classes: int) -> Any:
    """Values that the builder sets, and one that it computes of drawn ones."""
    model = drawn(keras, input_shape, num_classes)
    model.get_layer("d1").kernel.assign(np.arange(256, dtype=np.float32).reshape(16, 16))
    model.get_layer("d0").bias.assign(keras.ops.matmul(model.get_layer("d2").kernel, model.get_layer("d1").bias))
    return model


def numpy_drawn(keras: Any, input_shape: Sequence[int], num_classes: int) -> Any:
    """An initializer that draws from `np.random`, as the builder does before and after it."""

    def normal(shape: Sequence[int], dtype: Any = None) -> Any:
        del dtype
        return np.random.normal(size=shape).astype(np.float32)

    image = keras.Input(input_shape)
    np.random.random()
    hidden = keras.layers.Dense(16, kernel_initializer=normal, name="d0")(keras.layers.Flatten()(image))
    return keras.Model(image, keras.layers.Dense(num_classes, kernel_initializer=normal, name="head")(hidden))


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
    """Prints, by model, the paths with other values, and those that the model holds beside the state; JSON."""
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    found: dict[str, Any] = {}
    own = importlib.import_module("tests.engine.first_values")  # what builders are taken from
    for name in _BUILDERS:
        factory = Keras3Factory(ModelConfig(target=f"{own.__name__}.{name}", options={}), cases.data(), 5)
        # Keras's global seed generator draws from where the build before has left it.
        keras.utils.clear_session()
        whole = {path: np.asarray(each.value) for path, each in Names(factory.build()).variables.items()}
        keras.utils.clear_session()
        model, first = factory.build_for_mesh()
        kinds = {}
        for path, each in Names(model).variables.items():
            sharding = NamedSharding(mesh, _spec(each.shape, mesh.size))
            kinds[path] = jax.ShapeDtypeStruct(tuple(each.shape), each.dtype, sharding=sharding)
        own._Rows.largest = 0
        placed = shards.place_first(first, kinds)
        other = [path for path, value in whole.items() if not np.array_equal(value, np.asarray(placed[path]))]
        other += [path for path, value in placed.items() if value.sharding != kinds[path].sharding]
        held = [path for path, each in Names(model).variables.items() if isinstance(each.value, jax.Array)]
        found[name] = [other, held, own._Rows.largest]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

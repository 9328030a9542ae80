"""Exports models that draw numbers, on JAX and without a run: `python -m tests.export.drawing_worker FOLDER`.

Prints JSON: name -> what was loaded again, what was left out, and which answers were drawn.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from runner import arrays
from runner.engine import registry
from runner.task.base import DataSpec
from runner.train.export.check import check
from runner.train.export.signature import Served
from runner.train.export.write import SAVED_MODEL, loaded_keras, write_model
from tests.configs import with_keys
from tests.engine import cases

COUNT = 12


def recurrent(keras: Any, input_shape: Any, num_classes: int) -> Any:
    """A network that draws masks also where it predicts, and takes none."""
    inputs = keras.Input(input_shape)
    x = keras.layers.Reshape(input_shape[:2])(inputs)
    x = keras.layers.LSTM(4, dropout=0.2, recurrent_dropout=0.2, return_sequences=True)(x)
    x = keras.layers.GRU(4, dropout=0.2)(x)
    return keras.Model(inputs, keras.layers.Dense(num_classes)(x))


def sampling(keras: Any, input_shape: Any, num_classes: int) -> Any:
    """A network with a latent variable, as an autoencoder's, that is drawn at each call."""

    class Sampling(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.seed_generator = keras.random.SeedGenerator()

        def call(self, mean: Any) -> Any:
            return mean + keras.random.normal(keras.ops.shape(mean), seed=self.seed_generator)

    inputs = keras.Input(input_shape)
    x = Sampling()(keras.layers.Dense(4)(keras.layers.Flatten()(inputs)))
    return keras.Model(inputs, keras.layers.Dense(num_classes)(x))


def silent(keras: Any, input_shape: Any, num_classes: int) -> Any:
    """A network of stock layers with a regularizer that does not say what it is made with."""

    class Silent(keras.regularizers.Regularizer):  # type: ignore[misc, name-defined]
        def __call__(self, x: Any) -> Any:
            return keras.ops.sum(x * x)

    layers = [keras.layers.Flatten(), keras.layers.Dense(num_classes, kernel_regularizer=Silent())]
    return keras.Sequential([keras.Input(input_shape), *layers])


BUILDERS: tuple[Callable[..., Any], ...] = (recurrent, sampling, silent)


def exported(builder: Callable[..., Any], folder: Path) -> dict[str, Any]:
    """Returns how a model's export compares with the model that was written."""
    config = cases.config({"batch": 1})
    config = with_keys(
        config, {"engine.name": "jax", "model.target": f"{__name__}.{builder.__name__}", "model.options": {}}
    )
    registry.prepare(config)
    registry.load("jax")
    from runner.engine.jax.adapter import Keras3Factory
    from runner.engine.jax.engine import JaxEngine
    from runner.engine.jax.names import Names

    data = cases.data()
    served = Served(DataSpec(data.arrays, data.task))
    variables = Names(Keras3Factory(config.model, served.spec, 0).build()).variables
    values = {path: np.asarray(variable.value) for path, variable in variables.items()}
    plain = JaxEngine(config, served.spec, 1).plain_model(values)
    rng = np.random.default_rng(0)
    given = {name: rng.integers(0, 2, (COUNT, *spec.shape)).astype(spec.dtype) for name, spec in served.inputs.items()}
    target = folder / builder.__name__
    target.mkdir()
    left_out = write_model(plain, served, target, convert=True, tensorflow=True)
    outputs = np.asarray(plain.model(served.model_inputs(arrays.of(np), given), training=False))
    loaded = None
    if left_out is None:
        loaded, left_out = loaded_keras(plain, target)
    compared = check(target / SAVED_MODEL, loaded, served, given, outputs, folder / "log")
    return {
        "left_out": left_out,
        "files": sorted(path.name for path in target.iterdir()),
        "equal": {file: all(each.equal for each in found.values()) for file, found in compared.items()},
        "compared": {file: list(found) for file, found in compared.items()},
    }


if __name__ == "__main__":
    print(json.dumps({builder.__name__: exported(builder, Path(sys.argv[1])) for builder in BUILDERS}))

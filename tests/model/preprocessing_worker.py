"""Prints, for models of one Keras, whether their first layers rescale bytes: `python -m ... tf_keras|keras`."""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from runner.model.preprocessing import takes_bytes

keras: Any = import_module(sys.argv[1])
L = keras.layers
APPLICATIONS = keras.applications


def graph(*layers: Callable[[Any], Any]) -> Any:
    image = x = keras.Input((32, 32, 3), name="image")
    for layer in layers:
        x = layer(x)
    return keras.Model(image, L.Dense(2)(L.Flatten()(x)))


def application(name: str, **options: object) -> Any:
    build = getattr(APPLICATIONS, name)
    return build(weights=None, include_top=False, input_shape=(32, 32, 3), **options)


class Subclassed(keras.Model):  # type: ignore[misc]
    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.parts = list(layers)

    def call(self, x: Any) -> Any:
        for layer in self.parts:
            x = layer(x)
        return x


class Calculating(keras.Model):  # type: ignore[misc]
    def __init__(self, first: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first = first
        self.conv = conv()
        self(keras.Input((8, 8, 3)))

    def call(self, x: Any) -> Any:
        x = self.conv(self.first(x))
        self.add_loss(x)
        return x


class WithInner(L.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.rescale = L.Rescaling(1 / 255)

    def call(self, x: Any) -> Any:
        return self.rescale(x)


class Computed(L.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return (x - 127.5) / 127.5


def as_floats(x: Any) -> Any:
    if keras.__name__ == "keras":
        return keras.ops.cast(x, "float32")
    return import_module("tensorflow").cast(x, "float32")


def gray(x: Any) -> Any:
    return keras.ops.dot(x, np.array([[0.2989], [0.587], [0.114]], "float32"))


class WithTensors(L.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return as_floats(x) / 127.5 - 1.0


class OwnRescaling(L.Rescaling):  # type: ignore[misc]
    pass


def two_inputs(rescaled: str) -> Any:
    given = {name: keras.Input((8, 8, 3), name=name) for name in ("image", "other")}
    branches = [
        L.Rescaling(1 / 255)(x) if name == rescaled else L.Conv2D(3, 3, padding="same")(x) for name, x in given.items()
    ]
    return keras.Model(given, L.Dense(2)(L.Flatten()(L.Concatenate()(branches))))


def flips() -> Any:
    return keras.Sequential([L.RandomFlip(), L.RandomRotation(0.1)])


def conv() -> Any:
    return L.Conv2D(3, 3)


TAKE_BYTES: dict[str, Callable[[], Any]] = {
    "rescaling": lambda: graph(L.Rescaling(1 / 255), conv()),
    "after augmentation": lambda: graph(L.RandomFlip(), L.Resizing(16, 16), L.Rescaling(1 / 127.5, -1), conv()),
    "normalization": lambda: graph(L.Normalization(mean=[123.0, 116.0, 103.0], variance=[3e3, 3e3, 3e3])),
    "adapted normalization": lambda: graph(L.Normalization()),
    "division": lambda: graph(lambda x: x / 255.0, conv()),
    "difference": lambda: graph(lambda x: (x - 127.5) / 127.5, conv()),
    "lambda of ResNet": lambda: graph(L.Lambda(APPLICATIONS.resnet50.preprocess_input), conv()),
    "lambda that casts": lambda: graph(L.Lambda(as_floats), L.Rescaling(1 / 255)),
    "layer of tensors": lambda: graph(WithTensors(), conv()),
    "ConvNeXt": lambda: graph(application("ConvNeXtTiny")),
    "MobileNetV3": lambda: keras.Sequential([flips(), application("MobileNetV3Small"), L.Flatten(), L.Dense(2)]),
    "subclassed around a model": lambda: Subclassed(graph(L.Rescaling(1 / 255))),
    "layer of layers": lambda: graph(WithInner(), conv()),
    "layer of arithmetic": lambda: graph(Computed(), conv()),
    "discretized bytes": lambda: graph(L.Discretization([30.0, 40.0, 55.0])),
    "two inputs": lambda: two_inputs("image"),
    "call of arithmetic": lambda: Calculating(lambda x: as_floats(x) / 255),
    "call of a function": lambda: Calculating(APPLICATIONS.mobilenet_v2.preprocess_input),
    "ids": lambda: graph(L.Flatten(), L.Embedding(256, 4)),
    "ids of a layer": lambda: Subclassed(L.Reshape((-1,)), L.Embedding(256, 4)),
}
TAKE_FRACTIONS: dict[str, Callable[[], Any]] = {
    "call that widens": lambda: Calculating(lambda x: x * 2 - 1),
    "convolution": lambda: graph(conv()),
    "widened": lambda: graph(L.Rescaling(2.0, -1.0), conv()),
    "normalization of fractions": lambda: graph(L.Normalization(mean=[0.48, 0.46, 0.41], variance=[0.05] * 3)),
    "widened by operators": lambda: graph(lambda x: x * 2 - 1, conv()),
    "a small constant": lambda: graph(lambda x: x + 1e-6, conv()),
    "ConvNeXt without preprocessing": lambda: application("ConvNeXtTiny", include_preprocessing=False),
    "scaled residual": lambda: Subclassed(conv(), L.Rescaling(0.1)),
    "discretized fractions": lambda: graph(L.Discretization([0.2, 0.4, 0.6, 0.8])),
    "activation between 0 and 1": lambda: Subclassed(L.Activation("sigmoid"), conv()),
    "rescales another input": lambda: two_inputs("other"),
}

if keras.__name__ == "keras":
    TAKE_BYTES["gray"] = lambda: graph(lambda x: keras.ops.mean(x, axis=-1, keepdims=True), L.Rescaling(1 / 255))
    TAKE_BYTES["gray by weights"] = lambda: graph(gray, L.Rescaling(1 / 255))
    TAKE_BYTES["call of a product"] = lambda: Calculating(lambda x: L.Rescaling(1 / 255)(gray(x)))
    TAKE_BYTES["numbers"] = lambda: graph(lambda x: keras.ops.one_hot(keras.ops.cast(x, "int32"), 256))
    TAKE_FRACTIONS["gray by weights alone"] = lambda: graph(gray, conv())

if __name__ == "__main__":
    wrong = [name for name, make in TAKE_BYTES.items() if not takes_bytes(make(), ["image"])]
    wrong += [name for name, make in TAKE_FRACTIONS.items() if takes_bytes(make(), ["image"])]
    print(json.dumps(wrong))

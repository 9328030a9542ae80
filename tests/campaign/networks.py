"""What mutations are tried on: small networks, their data, and ways to train each.

Imports no TensorFlow, JAX or Keras: builders are given theirs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.data.base import Array, ArraySpec
from runner.model.portable import ops_of

_TRAIN, _TEST = 88, 32  # the third batch of 32 is a quarter padding, and the fourth begins the next epoch
_WORDS, _LENGTH = 12, 7
_OWN = "tests.campaign.networks"
_CUSTOM = ("dataset=custom", "dataset.holdout=0", "model=custom")
_DIGITS = ("dataset=digits", f"dataset.train='train[:{_TRAIN}]'", "task.classes=10")


@dataclass(frozen=True)
class Network:
    """A network and its data.

    Attributes:
      overrides: of the command line.
      pads: whether its last batch may be padded: batch statistics refuse that.
    """

    overrides: tuple[str, ...]
    pads: bool = False


NETWORKS: Mapping[str, Network] = {
    "mlp": Network((*_DIGITS, "model=mlp", "model.hidden=[16]"), pads=True),
    "convnet": Network((*_DIGITS, "model=convnet", "model.dense=16", "model.dropout=0.25")),
    # Embedding, positions and a class token, attention, two kinds of layer normalization, one dropout layer called
    # twice, a constraint, a regularizer.
    "tokens": Network(
        (*_CUSTOM, f"dataset._target_={_OWN}.sentences", f"model._target_={_OWN}.tokens", "task.classes=4"), pads=True
    ),
}

_COMMON = (
    *("tracking=none", "dataset.batch_size=32", "trainer.epochs=4", "trainer.steps_per_call=2", "verify.steps=4"),
    "trainer.seed=3",
)


@dataclass(frozen=True)
class Setting:
    """A mesh and a way to train, of which each part is there to be broken.

    Attributes:
      mesh: option of the group.
      layout: option of the group.
      overrides: of optimizer, trainer and task.
      networks: names of those that are trained so; empty: all.
      weighs: whether each class has a weight of its own.
    """

    mesh: str
    layout: str
    overrides: tuple[str, ...]
    networks: tuple[str, ...] = ()
    weighs: bool = False


# No decay of biases and norms, and a slower first layer.
_GROUPS = "optimizer.groups=[{match:biases_and_norms,decay:false},{match:'d1/.*',rate:0.1}]"


SETTINGS: Mapping[str, Setting] = {
    "adamw": Setting(
        "batch8",
        "replicated",
        (
            *("optimizer=adamw", "optimizer.learning_rate=0.01", "optimizer.weight_decay=0.05"),
            *("optimizer.schedule.name=cosine", "optimizer.schedule.warmup_steps=2"),
            "task.label_smoothing=0.1",
        ),
    ),
    "sgd": Setting(
        "batch4_model2",
        "megatron",
        (
            *("optimizer=sgd", "optimizer.learning_rate=0.05", "optimizer.momentum=0.9", "trainer.accumulate_steps=2"),
            *("optimizer.schedule.name=piecewise", "optimizer.schedule.boundaries=[1,2]"),
            *("optimizer.schedule.factors=[1.0,0.5,0.25]", "optimizer.clip.global_norm=0.5"),
        ),
        weighs=True,
    ),
    "groups": Setting(
        "batch4_model2",
        "megatron",
        (
            *("optimizer=adamw", "optimizer.learning_rate=0.01", "optimizer.weight_decay=1.0", _GROUPS),
            *("optimizer.schedule.name=linear", "optimizer.schedule.initial_factor=0.25"),
            *("optimizer.schedule.warmup_steps=2", "optimizer.clip.global_norm=0.5", "optimizer.gradient_norm=global"),
        ),
        networks=("mlp",),
    ),
}


def overrides(network: str, engine: str, setting: str) -> list[str]:
    """Returns the command line of one network, engine and setting."""
    chosen, way = NETWORKS[network], SETTINGS[setting]
    weights = [1.0 + 0.25 * number for number in range(4 if network == "tokens" else 10)]
    # The examples themselves come with each call, so that a mutation can change them.
    own = ("engine.compilation_cache=false", "engine.data=host") if engine == "jax" else ()
    if engine == "jax" and setting == "adamw":
        own = (*own, "optimizer.ema.decay=0.9")
    return [
        *own,
        *(*_COMMON, *chosen.overrides, f"engine={engine}", f"mesh={way.mesh}", f"layout={way.layout}", *way.overrides),
        *([f"task.class_weights={weights}".replace(" ", "")] if way.weighs else []),
        *(["dataset.remainder=pad"] if chosen.pads else []),
    ]


def scenes() -> list[tuple[str, str, str]]:
    """Returns every (network, engine, setting); DTensor has neither the micro-batches of `sgd` nor groups."""
    return [
        (network, engine, setting)
        for engine in ("jax", "keras_dtensor")
        for network in NETWORKS
        for setting, way in SETTINGS.items()
        if network in (way.networks or NETWORKS) and (engine == "jax" or setting == "adamw")
    ]


def sentences() -> dict[str, dict[str, Array]]:
    """Returns words by number, int32 (N, 7), and which quarter of the vocabulary most of them are from."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 4, _TRAIN + _TEST)
    own = 3 * label[:, None] + rng.integers(0, 3, (len(label), _LENGTH))
    any_word = rng.integers(0, _WORDS, own.shape)
    words = np.where(rng.uniform(size=own.shape) < 0.6, own, any_word)
    return _split({"words": words.astype(np.int32), "label": label.astype(np.int32)})


def _split(arrays: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    return {
        "train": {name: array[:_TRAIN] for name, array in arrays.items()},
        "test": {name: array[_TRAIN:] for name, array in arrays.items()},
    }


def tokens(keras: Any, inputs: Mapping[str, ArraySpec], num_classes: int, dim: int = 8) -> Any:
    """Builds one block of a transformer over words and a class token.

    There are as many tokens as `dim`: weights along one of the two fit the other too, and no shape would tell.
    """
    layers = keras.layers
    ((name, spec),) = inputs.items()
    given = keras.Input(spec.shape, name=name, dtype=spec.dtype)
    x = layers.Embedding(_WORDS, dim, name="embed")(given)
    x = _start(keras)(x)
    drop = layers.Dropout(0.25, name="drop")
    y = layers.LayerNormalization(name="norm1")(x)
    y = layers.MultiHeadAttention(2, dim // 2, use_bias=False, name="attention")(y, y)
    x = layers.Add(name="add1")([x, drop(y)])
    y = layers.LayerNormalization(axis=1, name="norm2")(x)
    # DTensor's step applies no constraints.
    limit = keras.constraints.MaxNorm(0.5) if hasattr(keras, "ops") else None
    y = layers.Dense(16, activation="gelu", kernel_constraint=limit, name="d1")(y)
    y = layers.Dense(dim, kernel_regularizer=keras.regularizers.L2(0.02), name="d2")(y)
    x = layers.Add(name="add2")([x, drop(y)])
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    x = layers.Dense(dim, activation="tanh", name="square")(x)
    return keras.Model(given, layers.Dense(num_classes, name="head")(x), name="tokens")


def _start(keras: Any) -> Any:
    """Returns a layer that Keras has not, of the Keras given."""
    tensors = ops_of(keras)

    class Start(keras.layers.Layer):  # type: ignore[misc]
        """Adds positions to (B, T, D), and a class token before them."""

        def build(self, input_shape: Any) -> None:
            _, length, dim = input_shape
            normal = keras.initializers.RandomNormal(stddev=0.5)
            self.token = self.add_weight(shape=(dim,), initializer=normal, name="token")
            self.positions = self.add_weight(shape=(length, dim), initializer=normal, name="positions")
            # A constant that puts the words behind the first place: nothing has to be joined along a dim.
            self.places = np.eye(length, length + 1, 1, dtype=np.float32)
            self.place = np.eye(1, length + 1, dtype=np.float32)[0]
            super().build(input_shape)

        def call(self, words: Any) -> Any:
            moved = tensors.einsum("btd,ts->bsd", words + self.positions, self.places)
            return moved + tensors.einsum("d,s->sd", self.token, self.place)

        def compute_output_shape(self, input_shape: Any) -> Any:
            return (input_shape[0], input_shape[1] + 1, input_shape[2])

    return Start(name="start")

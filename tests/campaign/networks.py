"""What mutations are tried on: small networks, their data, and ways to train each.

Imports no TensorFlow, JAX or Keras: builders are given theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from runner.data.base import Array, ArraySpec
from runner.model import ops
from runner.task.base import OutputSpec

_TRAIN, _TEST = 88, 32  # the third batch of 32 is a quarter padding, and the fourth begins the next epoch
_WORDS, _LENGTH = 12, 7
_OWN = "tests.campaign.networks"
# The label that the network `segments` does not count.
IGNORED = 255
_CUSTOM = ("dataset=custom", "model=custom")
_DIGITS = ("dataset=digits", f"dataset.train='train[:{_TRAIN}]'", "task.classes=10")


@dataclass(frozen=True)
class Network:
    """A network and its data.

    Attributes:
      overrides: of the command line.
      pads: whether its last batch may be padded: batch statistics refuse that.
      zero: regular expression of the variables whose gradient is zero in mathematics, so that to scale it is nothing.
      settings: names of those that it is trained in; empty: all that name no networks.
    """

    overrides: tuple[str, ...]
    pads: bool = False
    zero: str = ""
    settings: tuple[str, ...] = ()


NETWORKS: Mapping[str, Network] = {
    "mlp": Network((*_DIGITS, "model=mlp", "model.hidden=[16]"), pads=True),
    "convnet": Network((*_DIGITS, "model=convnet", "model.dense=16", "model.dropout=0.25"), zero="conv3/bias"),
    "resnet": Network((*_DIGITS, "model=resnet", "model.widths=[8,16]")),
    "vit": Network(
        (
            *(*_DIGITS, "model=vit", "model.patch=4", "model.dim=16", "model.depth=1", "model.heads=2"),
            *("model.mlp=32", "model.dropout=0.25"),
        ),
        pads=True,
        zero=".*attention/key/bias",
    ),
    # Embedding, positions and a class token, attention, two kinds of layer normalization, one dropout layer called
    # twice, a constraint, a regularizer.
    "tokens": Network(
        (*_CUSTOM, f"dataset._target_={_OWN}.sentences", f"model._target_={_OWN}.tokens", "task.classes=4"), pads=True
    ),
    # Three inputs, convolution, batch and group normalization, PReLU, own running statistics.
    "mixed": Network(
        (*_CUSTOM, f"dataset._target_={_OWN}.pictures", f"model._target_={_OWN}.mixed", "task.classes=4")
    ),
    # One class per pixel, of which a third is not counted.
    "segments": Network(
        (
            *(*_CUSTOM, f"dataset._target_={_OWN}.masks", f"model._target_={_OWN}.segments"),
            *("task=segmentation", "task.classes=4", f"task.ignore_index={IGNORED}"),
        ),
        pads=True,
    ),
    # Two outputs with a loss each, one of them per position.
    "outputs": Network(
        (*_CUSTOM, f"dataset._target_={_OWN}.patients", f"model._target_={_OWN}.outputs"),
        pads=True,
        settings=("several",),
    ),
}

_CLASS_WEIGHTS = {"tokens": 4, "mixed": 4, "segments": 4}
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
      engines: names of those that train so.
      resumes: whether runs are resumed, and not verified.
    """

    mesh: str
    layout: str
    overrides: tuple[str, ...]
    networks: tuple[str, ...] = ()
    weighs: bool = False
    engines: tuple[str, ...] = ("jax", "keras_dtensor")
    resumes: bool = False


# No decay of biases and norms, a slower first layer, and a last one that is frozen for two steps: a point of a
# verification of four steps is after step 1, the other after step 3.
_GROUPS = (
    "optimizer.groups=[{match:biases_and_norms,decay:false},{match:'(d1|.*/up)/.*',rate:0.1},"
    "{match:'(d2|head)/.*',freeze_steps:2}]"
)
_NO_DECAY_OF_BIASES = "optimizer.groups=[{match:biases_and_norms,decay:false}]"


SETTINGS: Mapping[str, Setting] = {
    "adamw": Setting(
        "batch8",
        "replicated",
        (
            *("optimizer=adamw", "optimizer.learning_rate=0.01", "optimizer.weight_decay=0.05"),
            *("optimizer.schedule.name=cosine", "optimizer.schedule.warmup_steps=2", "optimizer.ema.decay=0.9"),
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
    "rmsprop": Setting(
        "batch8",
        "replicated",
        (
            *("optimizer=rmsprop", "optimizer.learning_rate=0.005", "optimizer.centered=true"),
            *("optimizer.momentum=0.5", "optimizer.epsilon=1e-5", "optimizer.schedule.name=exponential"),
            *("optimizer.schedule.decay_steps=2", "optimizer.schedule.decay_rate=0.5"),
            *("optimizer.schedule.staircase=true", "optimizer.clip.norm=0.2", "optimizer.ema.decay=0.9"),
        ),
        networks=("mlp",),
    ),
    # Classes of Keras whose updates use norms or products of whole variables.
    "lamb": Setting(
        "batch4_model2",
        "fsdp_megatron",
        (
            *("optimizer=keras", "optimizer.class_name=Lamb", "optimizer.learning_rate=0.02"),
            *("+optimizer.weight_decay=1.0", _NO_DECAY_OF_BIASES),
        ),
        networks=("mlp",),
        engines=("jax",),
    ),
    "muon": Setting(
        "batch4_model2",
        "fsdp_megatron",
        ("optimizer=keras", "optimizer.class_name=Muon", "optimizer.learning_rate=0.02"),
        networks=("mlp",),
        engines=("jax",),
    ),
    "groups": Setting(
        "batch4_model2",
        "megatron",
        (
            *("optimizer=adamw", "optimizer.learning_rate=0.01", "optimizer.weight_decay=1.0", _GROUPS),
            *("optimizer.schedule.name=linear", "optimizer.schedule.initial_factor=0.25"),
            *("optimizer.schedule.warmup_steps=2", "optimizer.clip.global_norm=0.5", "optimizer.gradient_norm=layer"),
        ),
        networks=("mlp", "vit"),
    ),
    "resumed": Setting(
        "batch2",
        "replicated",
        (
            *("optimizer=adamw", "optimizer.learning_rate=0.01", "optimizer.weight_decay=0.05"),
            *("optimizer.schedule.name=cosine_restarts", "optimizer.schedule.decay_steps=4"),
            # No evaluation improves by so much, so every second one reduces the rate.
            *("optimizer.schedule.plateau.metric=eval/loss", "optimizer.schedule.plateau.min_delta=100"),
            *("optimizer.schedule.plateau.patience=2", "optimizer.schedule.plateau.factor=0.5"),
            *("optimizer.ema.decay=0.9", "trainer.epochs=5", "trainer.log_every_steps=1"),
            *("trainer.checkpoint.every_steps=5", "trainer.checkpoint.every_minutes=null"),
            "trainer.checkpoint.keep=9",
        ),
        networks=("mlp", "tokens"),
        resumes=True,
    ),
    "several": Setting(
        "batch4_model2",
        "megatron",
        (
            *("optimizer=sgd", "optimizer.learning_rate=0.05", "optimizer.momentum=0.9", "task=several"),
            "task.outputs={age:{name:regression,weight:0.5},tags:{name:positions,classes:3,ignore_index:-1}}",
        ),
        networks=("outputs",),
    ),
}


def overrides(network: str, engine: str, setting: str) -> list[str]:
    """Returns the command line of one network, engine and setting."""
    chosen, way = NETWORKS[network], SETTINGS[setting]
    weights = [1.0 + 0.25 * number for number in range(_CLASS_WEIGHTS.get(network, 10))]
    # The examples themselves come with each call, so that a mutation can change them.
    own = ("engine.compilation_cache=false", "engine.data=host") if engine == "jax" else ("engine.canary=false",)
    return [
        *own,
        *(*_COMMON, *chosen.overrides, f"engine={engine}", f"mesh={way.mesh}", f"layout={way.layout}", *way.overrides),
        *([f"task.class_weights={weights}".replace(" ", "")] if way.weighs else []),
        *(["dataset.remainder=pad"] if chosen.pads else []),
    ]


def scenes() -> list[tuple[str, str, str]]:
    """Returns every (network, engine, setting)."""
    return [
        (network, engine, setting)
        for engine in ("jax", "keras_dtensor")
        for network in NETWORKS
        for setting, way in SETTINGS.items()
        if engine in way.engines and _is_tried(network, setting)
    ]


def _is_tried(network: str, setting: str) -> bool:
    if NETWORKS[network].settings:
        return setting in NETWORKS[network].settings
    return network in (SETTINGS[setting].networks or NETWORKS)


def sentences() -> dict[str, dict[str, Array]]:
    """Returns words by number, int32 (N, 7), and which quarter of the vocabulary most of them are from."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 4, _TRAIN + _TEST)
    own = 3 * label[:, None] + rng.integers(0, 3, (len(label), _LENGTH))
    any_word = rng.integers(0, _WORDS, own.shape)
    words = np.where(rng.uniform(size=own.shape) < 0.6, own, any_word)
    return _split({"words": words.astype(np.int32), "label": label.astype(np.int32)})


def pictures() -> dict[str, dict[str, Array]]:
    """Returns digits from 0 to 3 as images, and two vectors of five numbers that tell something of them too."""
    images, labels = load_digits(n_class=4, return_X_y=True)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(labels))[: _TRAIN + _TEST]
    label = labels[chosen].astype(np.int32)
    pixels = np.rint(images[chosen].reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    left, right = rng.normal(size=(2, len(label), 5)).astype(np.float32)
    left[:, 0] += label
    right[:, 1] -= label
    return _split({"image": pixels, "left": left, "right": right, "label": label})


def masks() -> dict[str, dict[str, Array]]:
    """Returns digits as images, and for each pixel its brightness in four classes, or that it is not counted."""
    images, _ = load_digits(return_X_y=True)
    chosen = images[: _TRAIN + _TEST].reshape(-1, 8, 8, 1)
    classes = np.minimum(chosen // 5, 3).astype(np.uint8)
    is_ignored = np.random.default_rng(0).uniform(size=classes.shape) < 1 / 3
    return _split(
        {
            "image": np.rint(chosen * (255 / 16)).astype(np.uint8),
            "label": np.where(is_ignored, IGNORED, classes).astype(np.uint8),
        }
    )


def patients() -> dict[str, dict[str, Array]]:
    """Returns vectors, a number for each, and three labels of which every fourth is left out."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(_TRAIN + _TEST, 6)).astype(np.float32)
    tags = rng.integers(0, 3, (len(x), 3)).astype(np.int32)
    tags[rng.random(tags.shape) < 0.25] = -1
    return _split({"x": x, "age": (x.sum(1) + 2.0).astype(np.float32), "tags": tags})


def _split(arrays: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    return {
        "train": {name: array[:_TRAIN] for name, array in arrays.items()},
        "test": {name: array[_TRAIN:] for name, array in arrays.items()},
    }


def tokens(keras: Any, inputs: Mapping[str, ArraySpec], num_classes: int, dim: int = 8) -> Any:
    """Builds one block of a transformer over words and a class token.

    There are as many tokens as `dim`: weights along one of the two fit the other too, and no shape would tell.
    """
    layers, own = keras.layers, _layers(keras)
    ((name, spec),) = inputs.items()
    given = keras.Input(spec.shape, name=name, dtype=spec.dtype)
    x = layers.Embedding(_WORDS, dim, name="embed")(given)
    x = own["Start"](name="start")(x)
    drop = layers.Dropout(0.25, name="drop")
    y = layers.LayerNormalization(name="norm1")(x)
    y = layers.MultiHeadAttention(2, dim // 2, use_bias=False, name="attention")(y, y)
    x = layers.Add(name="add1")([x, drop(y)])
    y = layers.LayerNormalization(axis=1, name="norm2")(x)
    y = layers.Dense(16, activation="gelu", kernel_constraint=keras.constraints.MaxNorm(0.5), name="d1")(y)
    y = layers.Dense(dim, kernel_regularizer=keras.regularizers.L2(0.02), name="d2")(y)
    x = layers.Add(name="add2")([x, drop(y)])
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    x = layers.Dense(dim, activation="tanh", name="square")(x)
    return keras.Model(given, layers.Dense(num_classes, name="head")(x), name="tokens")


def mixed(keras: Any, inputs: Mapping[str, ArraySpec], num_classes: int) -> Any:
    """Builds a network of an image and two vectors of one shape, with every kind of statistics."""
    layers, own = keras.layers, _layers(keras)
    given = {name: keras.Input(spec.shape, name=name, dtype=spec.dtype) for name, spec in inputs.items()}
    x = layers.Conv2D(8, 3, strides=2, padding="same", name="first")(given["image"])
    x = layers.PReLU(shared_axes=[1, 2], name="prelu")(x)
    x = layers.GroupNormalization(groups=2, name="group")(x)
    x = layers.Conv2D(8, 3, padding="same", use_bias=False, name="second")(x)
    x = layers.BatchNormalization(momentum=0.8, name="norm")(x)
    x = layers.Activation("tanh", name="bend")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    x = own["Running"](name="running")(x)
    left = layers.Dense(6, activation="tanh", name="left_side")(given["left"])
    right = layers.Dense(6, activation="tanh", name="right_side")(given["right"])
    x = layers.Concatenate(name="joined")([x, left, right])
    x = layers.Dense(16, activation="tanh", name="d1")(x)
    return keras.Model(given, layers.Dense(num_classes, name="d2")(x), name="mixed")


def segments(keras: Any, inputs: Mapping[str, ArraySpec], num_classes: int) -> Any:
    """Builds a network with one output per pixel."""
    layers = keras.layers
    ((name, spec),) = inputs.items()
    given = keras.Input(spec.shape, name=name, dtype=spec.dtype)
    x = layers.Conv2D(8, 3, padding="same", activation="tanh", name="d1")(given)
    return keras.Model(given, layers.Conv2D(num_classes, 1, name="d2")(x), name="segments")


def outputs(keras: Any, inputs: Mapping[str, ArraySpec], outputs: OutputSpec) -> Any:
    """Builds two outputs from one hidden layer."""
    units = {name: spec.units for name, spec in outputs.by_name.items()}
    x = keras.Input(inputs["x"].shape, name="x")
    hidden = keras.layers.Dense(16, activation="tanh", name="d1")(x)
    age = keras.layers.Dense(units["age"], name="age")(hidden)
    tags = keras.layers.Dense(3 * units["tags"], name="d2")(hidden)
    return keras.Model(x, {"age": age, "tags": keras.layers.Reshape((3, units["tags"]), name="tags")(tags)})


def _layers(keras: Any) -> dict[str, Any]:
    """Returns the layers that Keras has not, as classes of the Keras given."""
    tensors = ops.of(keras)
    mean = keras.ops.mean if hasattr(keras, "ops") else keras.backend.mean

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

    class Running(keras.layers.Layer):  # type: ignore[misc]
        """Takes the running mean of the batches off, as no layer of Keras does it."""

        def build(self, input_shape: Any) -> None:
            self.mean = self.add_weight(shape=(input_shape[-1],), initializer="zeros", trainable=False, name="mean")
            super().build(input_shape)

        def call(self, x: Any, training: bool | None = None) -> Any:
            if not training:
                return x - self.mean
            now = self.mean * 0.9 + mean(x, axis=0) * 0.1
            self.mean.assign(now)
            return x - now

    return {"Start": Start, "Running": Running}

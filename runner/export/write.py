"""Writes a plain model: a SavedModel that takes raw images, and a file of Keras's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.export.plain import PlainModel

SAVED_MODEL, KERAS_FILE, WEIGHTS_FILE = "saved_model", "model.keras", "model.weights.h5"
_BRIGHTEST = 255.0  # images are uint8 until the model scales them to [0, 1]


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
      saved_model: whether there is a SavedModel.
      keras: name of the Keras file; None where there is none.
      left_out: what is not there, and why, a line each.
    """

    saved_model: bool
    keras: str | None
    left_out: tuple[str, ...]


def write_model(plain: PlainModel, shape: Sequence[int], folder: Path, *, convert: bool, tensorflow: bool) -> Written:
    """Writes what can be written of a model.

    Args:
      plain: the model.
      shape: (height, width, channel) of an image.
      folder: gets `saved_model/` and `model.keras` or `model.weights.h5`.
      convert: whether TensorFlow's AutoGraph may rewrite the layers, as users' own may need.
      tensorflow: whether it is installed.
    """
    left_out = []
    if not tensorflow:
        left_out.append("SavedModel and MLflow model: tensorflow is not installed")
    elif plain.package == "keras":
        _from_keras3(plain.model, shape, folder / SAVED_MODEL)
    else:
        _from_tensorflow(plain.model, shape, folder / SAVED_MODEL, convert)
    if plain.keras is None:
        return Written(tensorflow, None, (*left_out, f"{KERAS_FILE}: {plain.why}"))
    own = own_layers(plain.keras, plain.package)
    if own:  # such a file would load only beside the code of these classes
        classes = ", ".join(own)
        left_out.append(f"{KERAS_FILE}: {plain.package} has no {classes}; {WEIGHTS_FILE} holds the weights")
        plain.keras.save_weights(folder / WEIGHTS_FILE)
        return Written(tensorflow, WEIGHTS_FILE, tuple(left_out))
    plain.keras.save(folder / KERAS_FILE)
    return Written(tensorflow, KERAS_FILE, tuple(left_out))


def own_layers(model: Any, library: str) -> list[str]:
    """Returns the names of a model's classes that its Keras does not have, in alphabetical order."""
    layers = model._flatten_layers()
    return sorted({type(layer).__name__ for layer in layers if not type(layer).__module__.startswith(f"{library}.")})


def _from_tensorflow(model: Any, shape: Sequence[int], path: Path, convert: bool) -> None:
    import tensorflow as tf

    signature = tf.TensorSpec((None, *shape), tf.uint8, name="image")

    @tf.function(input_signature=[signature], autograph=convert)  # type: ignore[untyped-decorator]
    def serve(image: Any) -> dict[str, Any]:
        logits = tf.cast(model(tf.cast(image, tf.float32) / _BRIGHTEST, training=False), tf.float32)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits), "class": tf.argmax(logits, -1)}

    served = tf.Module()
    served.weights = list(model.variables)  # what the function reads must be held by what is saved
    served.serve = serve
    tf.saved_model.save(served, str(path), signatures={"serving_default": serve})


def _from_keras3(model: Any, shape: Sequence[int], path: Path) -> None:
    """Writes a Keras 3 model of the JAX backend: XLA's own program in a TensorFlow function."""
    import keras
    import tensorflow as tf

    def serve(image: Any) -> dict[str, Any]:
        scaled = keras.ops.cast(image, "float32") / _BRIGHTEST
        logits = keras.ops.cast(model(scaled, training=False), "float32")
        return {
            "logits": logits,
            "probabilities": keras.ops.softmax(logits),
            "class": keras.ops.cast(keras.ops.argmax(logits, -1), "int32"),
        }

    archive = keras.export.ExportArchive()
    archive.track(model)
    image = tf.TensorSpec((None, *shape), tf.uint8, name="image")
    platforms = {"native_serialization_platforms": ("cpu", "cuda")}  # else it runs where it was written alone
    archive.add_endpoint("serve", serve, input_signature=[image], jax2tf_kwargs=platforms)
    archive.write_out(str(path), verbose=False)

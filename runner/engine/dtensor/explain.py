"""Turns DTensor's compile errors into one line that names the layer, the operation and what works instead."""

from __future__ import annotations

import re
from collections.abc import Iterable

from runner.config.errors import ConfigError

# What a builder writes instead, by operation. `keras` is the one that the builder is given.
_ALTERNATIVES = {
    "FusedBatchNorm": "keras.layers.BatchNormalization or LayerNormalization of the `keras` that the builder is given",
    "AvgPool": "keras.layers.AveragePooling2D of the `keras` that the builder is given",
    "MaxPool": "keras.layers.MaxPooling2D of the `keras` that the builder is given",
    "Depthwise": "keras.layers.DepthwiseConv2D of the `keras` that the builder is given",
    "SpaceToBatch": "keras.layers.Conv2D(dilation_rate=...) of the `keras` that the builder is given",
    "Conv2D": "keras.layers.Conv2D of the `keras` that the builder is given, which gathers images and kernels",
    "Conv3D": "a layout that splits such inputs over the batch alone",
    "ResourceScatter": "tf.gather(tf.identity(table), ids) in place of an embedding layer",
    "ResourceGather": "tf.gather(tf.identity(table), ids) in place of an embedding layer",
    "TensorList": "unroll=True in a recurrent layer, or tf.unstack",
    "Stateful": "a mesh of one device, mesh=single, for layers that draw random numbers",
    "Random": "keras.layers.Dropout of the `keras` that the builder is given; other random layers need mesh=single",
    "ImageProjective": "augmentation outside of the model; random layers need mesh=single",
    "MirrorPad": "tf.pad with zeros, or tf.concat of slices",
    "ExtractImagePatches": "keras.layers.Reshape and Permute",
    "SpaceToDepth": "keras.layers.Reshape and Permute",
    "Roll": "tf.concat of two slices",
    "ReverseV2": "tf.gather with a falling range",
    "LRN": "a normalisation written out with tf.reduce_mean",
    "Reshape": "a layout that leaves the merged or split dims whole",
    "Einsum": "a layout that splits each letter of the equation over one axis",
    "MatMul": "a layout that splits the two factors' common dim alike, or not at all",
}


def compile_error(text: str, operations: Iterable[tuple[str, str]], layers: Iterable[str]) -> ConfigError:
    """Returns the refusal for a step that DTensor could not compile.

    Args:
      text: the error's own.
      operations: (type, name) of the traced step's operations.
      layers: names of the model's layers.
    """
    kind = _operation(text)
    place = _layer(kind, operations, layers)
    reason = _reason(text)
    mend = next((say for key, say in _ALTERNATIVES.items() if key in kind), "layout=replicated or mesh=single")
    where = f" in layer {place}" if place else ""
    return ConfigError(
        f"layout and model don't fit: DTensor can't compile operation {kind or '(unnamed)'}{where} as it is split "
        f"({reason}); use {mend}"
    )


def is_compile_error(text: str) -> bool:
    """Tells an error of DTensor's compiler from one of the step's run."""
    return any(mark in text for mark in ("dtensor/mlir", "layout propagation", "SPMD", "DTensor", "dtensor/cc"))


def _operation(text: str) -> str:
    for pattern in (r"current operation: .*?\"tf\.(\w+)\"", r"'tf\.(\w+)' op", r"\btf\.(\w+)"):
        found = re.search(pattern, text)
        if found:
            return found.group(1)
    return ""


def _layer(kind: str, operations: Iterable[tuple[str, str]], layers: Iterable[str]) -> str:
    names = [name for each, name in operations if each == kind]
    for layer in sorted(layers, key=len, reverse=True):
        if any(layer in name.split("/") for name in names):
            return layer
    return ""


def _reason(text: str) -> str:
    found = re.search(r"error: (.*)", text)
    line = found.group(1) if found else text.strip().splitlines()[0]
    if "does not implement layout propagation" in line:
        return "it has no rule for layouts"
    line = re.sub(r"^'tf\.\w+' op ", "", line.strip())
    return " ".join(line.split())[:200].rstrip(". ")

"""Turns DTensor's compile errors into one line that names the layer, the operation and what works instead."""

from __future__ import annotations

import re
from collections.abc import Iterable

from runner.errors import ConfigError

_BY_JAX = "engine=jax, which computes it"
# What works instead, by operation.
_ALTERNATIVES = {
    "FusedBatchNorm": "keras.layers.BatchNormalization or LayerNormalization",
    "AvgPool": "tf.nn.avg_pool2d or keras.layers.AveragePooling2D",
    "MaxPoolWithArgmax": f"tf.nn.max_pool2d, or {_BY_JAX}",
    "MaxPool": "keras.layers.MaxPooling2D, which gathers images first",
    "Depthwise": "tf.nn.depthwise_conv2d or keras.layers.DepthwiseConv2D",
    "SpaceToBatch": "keras.layers.Conv2D(dilation_rate=...)",
    "Conv2D": "keras.layers.Conv2D, which gathers images and kernels first",
    "Conv3D": "a layout that splits such inputs over the batch alone",
    "ResourceScatter": "keras.layers.Embedding, or tf.gather(tf.identity(table), ids)",
    "ResourceGather": "keras.layers.Embedding, or tf.gather(tf.identity(table), ids)",
    "TensorList": f"tf.unstack over a fixed number of steps, or {_BY_JAX}",
    "Stateful": "a layer of keras.layers that draws, tf.random.stateless_uniform, or mesh=single",
    "Random": "a layer of keras.layers that draws, tf.random.stateless_uniform, or mesh=single",
    "ImageProjective": f"dataset.augment in place of a layer that turns, moves or zooms images, or {_BY_JAX}",
    "Resize": f"keras.layers.UpSampling2D by a whole factor, or {_BY_JAX}",
    "ExtractImagePatches": f"keras.layers.Reshape and Permute, or {_BY_JAX}",
    "SpaceToDepth": "keras.layers.Reshape and Permute",
    "DepthToSpace": "keras.layers.Reshape and Permute",
    "LRN": f"a normalization written out with tf.reduce_mean, or {_BY_JAX}",
    "Reshape": "a layout that leaves the merged or split dims whole",
    "Einsum": "a layout that splits each letter of the equation over one axis",
    "MatMul": "a layout that splits the two factors' common dim alike, or not at all",
}

# Measured on gpt of dim 32, 16 variables per block: 16 blocks compile in well under a minute, and 32 blocks were not
# done after nine. DTensor's passes over the graph take the time; memory stayed below 2 GB.
_MANY_VARIABLES = 300


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
    fix = next(
        (say for key, say in _ALTERNATIVES.items() if key in kind), f"layout=replicated, mesh=single, or {_BY_JAX}"
    )
    where = f" in layer {place}" if place else ""
    return ConfigError(
        f"layout and model don't fit: DTensor can't compile operation {kind or '(unnamed)'}{where} as it is split "
        f"({reason}); use {fix}"
    )


def trace_error(error: Exception, target: str) -> ConfigError:
    """Returns the refusal for a step that a model's own code, or a layer of its, could not be traced in.

    Args:
      error: whatever was raised; AutoGraph puts the lines of the user's code before what it says.
      target: of the model.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    said = lines[-1] if "in user code" in lines[0] else " ".join(lines)
    kind = "" if "in user code" in lines[0] else f"{type(error).__name__}: "
    return ConfigError(f"model._target_={target}: a training step of the model raised {kind}{said[:400]}")


def is_compile_error(text: str) -> bool:
    """Tells an error of DTensor's compiler from one of the step's run."""
    return any(mark in text for mark in ("dtensor/mlir", "layout propagation", "SPMD", "DTensor", "dtensor/cc"))


def _operation(text: str) -> str:
    patterns = (r"current operation: .*?\"tf\.(\w+)\"", r"'tf\.(\w+)' op", r"\btf\.(\w+)")
    return next((found.group(1) for found in (re.search(each, text) for each in patterns) if found), "")


def _layer(kind: str, operations: Iterable[tuple[str, str]], layers: Iterable[str]) -> str:
    scopes = {scope for each, name in operations if each == kind for scope in name.split("/")}
    return max((layer for layer in layers if layer in scopes), key=len, default="")


def _reason(text: str) -> str:
    found = re.search(r"error: (.*)", text)
    line = found.group(1) if found else text.strip().splitlines()[0]
    if "does not implement layout propagation" in line:
        return "it has no rule for layouts"
    line = re.sub(r"^'tf\.\w+' op ", "", line.strip())
    return " ".join(line.split())[:200].rstrip(". ")


def compile_warning(engine: str, variables: int) -> str:
    """Returns the warning that a step takes long to compile; empty for a model of fewer variables.

    Args:
      engine: its name.
      variables: how many the model has.
    """
    if variables <= _MANY_VARIABLES:
        return ""
    return (
        f"engine={engine} may take many minutes to compile a step of {variables:,} variables, and the time grows "
        "faster than their number; use engine=jax"
    )

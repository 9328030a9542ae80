"""The layout map of a model's own author, `get_layout_map` of KerasHub's backbones, as rules of the config."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import keras
import numpy as np

from runner.config.schema import LayoutConfig, RuleConfig
from runner.engine.jax import private
from runner.errors import ConfigError, invalid
from runner.layout.axes import inner_batch_axis

_KEY = "layout.from_model"
_MODEL_AXIS = "model"


def with_own_map(
    config: LayoutConfig, model: keras.Model, variables: Mapping[str, keras.Variable], axes: Mapping[str, int]
) -> LayoutConfig:
    """Returns the layout with the model's own map as rules after the config's, one rule per variable.

    Raises:
      ConfigError: no layer of the model has a map, or the mesh lacks the map's axes.
    """
    kind: Any = None
    for layer in (model, *private.all_layers(model)):
        if hasattr(type(layer), "get_layout_map"):
            kind = type(layer)
            break
    if kind is None:
        raise _invalid("no layer of the model has a get_layout_map; KerasHub's Gemma, Llama and Qwen have one")
    # Keras wants devices for a mesh; the map reads only the mesh's axes. So one device may represent all of them,
    # as a plan needs that has more devices than this machine.
    devices = np.array(jax.devices()[:1] * math.prod(axes.values()))
    device_mesh = keras.distribution.DeviceMesh(tuple(axes.values()), tuple(axes), devices)
    data_axis = inner_batch_axis(config, axes)
    rules = []
    try:
        layout_map = kind.get_layout_map(device_mesh, _MODEL_AXIS, data_axis)
        for path, variable in variables.items():
            layout = layout_map[variable.path]
            if layout is None:
                continue
            # Optional: a rule of the config may match the variable first.
            rules.append(RuleConfig(re.escape(path), list(layout.axes), optional=True))
    except ValueError as error:  # Raised by Keras, for example for a mesh without an axis of the name.
        message = " ".join(str(error).split())
        raise _invalid(f"{kind.__name__}.get_layout_map raised: {message}") from error
    return replace(config, from_model=False, rules=[*config.rules, *rules])


def _invalid(problem: str) -> ConfigError:
    return invalid(
        _KEY,
        "true",
        problem=problem,
        fix="set layout=megatron or layout=auto, which derive rules from the structure of a transformer",
    )

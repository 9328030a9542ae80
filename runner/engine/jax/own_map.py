"""The layout that a model's own author gives: `get_layout_map` of KerasHub's backbones, as rules of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import jax
import keras
import numpy as np

from runner.config.schema import LayoutConfig, RuleConfig
from runner.engine.jax import private
from runner.errors import ConfigError, invalid
from runner.layout.axes import batch_axis
from runner.layout.rules import misfits

_KEY = "layout.from_model"
_MODEL = "model"


def with_own_map(
    config: LayoutConfig, model: keras.Model, variables: Mapping[str, keras.Variable], axes: Mapping[str, int]
) -> LayoutConfig:
    """Returns the layout with the model's own map as rules after the config's, a rule a variable.

    Args:
      config: its rules come first.
      model: a backbone of KerasHub, or a model that holds one.
      variables: path to variable.
      axes: mesh axis to size; those called `model` and as the one that splits batches are the map's.

    Raises:
      ConfigError: no layer of the model has a map, the mesh lacks the map's axes, or the map does not fit a variable.
    """
    layers = [each for each in (model, *private.all_layers(model)) if hasattr(type(each), "get_layout_map")]
    if not layers:
        raise _refused("no layer of the model has a get_layout_map; KerasHub's Gemma, Llama and Qwen have one")
    kind = type(layers[0])
    data = batch_axis(config, axes)
    devices = keras.distribution.DeviceMesh(tuple(axes.values()), tuple(axes), np.array(jax.devices()[: _size(axes)]))
    rules = []
    try:
        own = kind.get_layout_map(devices, _MODEL, data)
        for path, variable in variables.items():
            found = own[variable.path]
            spec = list(found.axes) if found is not None else []
            if found is None:
                continue
            if misfit := misfits(spec, tuple(variable.shape), axes):
                what = f"{path}, shape {list(variable.shape)}: {misfit[0].problem}"
                raise _refused(f"{kind.__name__}.get_layout_map does not fit {what}")
            rules.append(RuleConfig(re.escape(path), spec, optional=True))  # a rule of the config may catch it
    except ValueError as error:  # Keras's own, as of a mesh without an axis of the name
        if isinstance(error, ConfigError):
            raise
        raise _refused(f"{kind.__name__}.get_layout_map says: {' '.join(str(error).split())}") from error
    return replace(config, from_model=False, rules=[*config.rules, *rules])


def _size(axes: Mapping[str, int]) -> int:
    return int(np.prod(list(axes.values())))


def _refused(why: str) -> ConfigError:
    return invalid(_KEY, "true", problem=why, fix="set layout=megatron or layout=auto, which know it by its structure")

"""Conversion of the composed YAML to the typed, checked run config. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from runner.config.convert import typed_config
from runner.config.schema import RunConfig
from runner.engine.optim.adam import adam_learning_rate
from runner.plan.checks import run
from runner.plan.checks.trainer import (
    auto_if_any,
    default_epochs,
)

# conf/optimizer and conf/trainer/default.yaml refer to these resolvers, which OmegaConf calls when the value
# is first read.
OmegaConf.register_new_resolver("adam_learning_rate", adam_learning_rate, replace=True)
OmegaConf.register_new_resolver("auto_if_any", auto_if_any, replace=True)
OmegaConf.register_new_resolver("default_epochs", default_epochs, replace=True)


def convert(composed: DictConfig) -> RunConfig:
    """Converts the composed config to dataclasses that have passed every check that needs no TensorFlow.

    Raises:
      ConfigError: an unknown key, a wrong type, a value out of range, or keys that don't fit together.
    """
    return run.check(typed_config(composed))

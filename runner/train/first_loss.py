"""Why the loss of the first step is NaN or Inf: it is of the initial weights, so no learning rate helps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from runner.cluster.team import current
from runner.config.schema_data import DatasetConfig
from runner.config.schema_trainer import TrainerConfig
from runner.train import feed

_UNKNOWN = (
    "look for ids outside of an Embedding's input_dim, and for a division by 0 or a logarithm of 0 in a layer or in "
    "the loss; with engine=jax the environment variable JAX_DEBUG_NANS=true names the operation"
)


def cause(dataset: DatasetConfig, trainer: TrainerConfig, train: feed.Examples) -> str:
    """Returns what makes the loss of a run's first batch NaN or Inf, in words with a fix."""
    # A process reads its own rows only, and the others may be at another place by now.
    if current().count > 1:
        return _UNKNOWN
    plan = feed.epoch_plan(dataset, trainer, train.source, 0, 1)
    examples = replace(train, cached=False)
    batch = {name: array[0] for name, array in examples.read(0, plan.indices[:1], plan.weights[:1]).arrays.items()}
    for name, array in batch.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            return f"array {name} of the dataset has NaN or Inf in row {row} of the first batch; correct the data"
    return _UNKNOWN

"""Check that the padding of training batches does not reach a loss that reads other rows of its batch.

The config does not tell which rows a user's function reads, so it is called on a batch of the run's own examples, with
the run's own model on its mesh.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from runner.config.schema import RunConfig
from runner.engine.base import Engine, HostBatches
from runner.model import padding
from runner.training import lengths
from runner.training.feed import Examples


def check(config: RunConfig, engine: Engine, train: Examples) -> None:
    """Checks the last batch of an epoch if it is padded; changes no state.

    Args:
      config: checked.
      engine: built.
      train: examples of the training split.

    Raises:
      ConfigError: padding would count in the loss or in a metric of other examples.
    """
    if config.dataset.remainder != "pad" or not train.task.reads_batch:
        return
    size = config.dataset.batch_size
    missing = lengths.epoch_steps(config, train.size) * size - train.size
    if missing <= 0:
        return
    for batch in _padded(train, size, size - missing):
        padding.check_functions(*engine.with_and_without_padding(batch))


def _padded(train: Examples, size: int, count: int) -> Iterator[HostBatches]:
    """Yields a batch of `count` examples with the sampler's padding, one example repeated, and with a mixed one.

    Both are needed: a function that reads, for example, the largest value of a batch may not change for one padding.
    """
    # A split that is smaller than a batch repeats its examples.
    examples = np.arange(size, dtype=np.int64) % train.size
    weight = (np.arange(size) < count).astype(np.float32)
    # With the arrays themselves, even if the devices keep the split and get row numbers from the feed.
    streamed = replace(train, cached=False)
    for filling in (np.zeros(size, np.int64), np.flip(examples)):
        indices = np.where(weight > 0, examples, filling)
        yield streamed.read(0, indices[None], weight[None])

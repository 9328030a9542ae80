"""Check of a loss that reads other rows of its batch.

The config does not tell which rows a user's function reads, so it is called on a batch of the run's own examples, with
the run's own model on its mesh.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from runner.config.schema import RunConfig
from runner.data.base import Array
from runner.engine import lengths
from runner.engine.base import HostBatches
from runner.engine.common import Engine
from runner.errors import ConfigError
from runner.model import padding
from runner.task.registry import compares_rows, key_of
from runner.train.feed import Examples


def check(config: RunConfig, engine: Engine, train: Examples) -> list[str]:
    """Checks a user's loss, and the last batch of an epoch if it is padded; changes no state.

    Returns a warning if the loss of an example reads other rows, as it does if arrays are broadcast by mistake.

    Raises:
      ConfigError: padding would count in the loss or in a metric of other examples; or the loss reads rows that
        gradient accumulation puts into other microbatches.
    """
    if not train.task.reads_batch:
        return []
    size = config.dataset.batch_size
    missing = lengths.epoch_steps(config.dataset, config.trainer, train.size) * size - train.size
    if config.dataset.remainder == "pad" and missing > 0:
        for batch in _batches(train, size, np.arange(size) < size - missing):
            padding.check_functions(*engine.with_and_without_others(batch, size - missing))
    kept = size // 2
    # A task whose purpose is to compare rows needs no warning.
    if not kept or not train.task.runs_user_code or compares_rows(config.task):
        return []
    for batch in _batches(train, size, np.ones(size, bool)):
        if padding.reads_others(*engine.with_and_without_others(batch, kept)):
            problem = "the loss of an example depends on other rows of its batch"
            fix = f"if you did not intend it, {padding.BROADCAST}; if you did, set task.whole_batch=true"
            steps = config.trainer.accumulate_steps
            if steps > 1:
                problem += ", which may be in other microbatches"
                raise ConfigError(f"trainer.accumulate_steps={steps}: {problem}; {fix}")
            return [f"{key_of(config.task)}: {problem}; {fix}"]
    return []


def _batches(train: Examples, size: int, is_real: Array) -> Iterator[HostBatches]:
    """Yields a batch of examples with the sampler's padding, one example repeated, and with a mixed one.

    Both are needed: a function that reads, for example, the largest value of a batch may not change for one padding.
    Without padding, they are a batch and the same in reverse order.
    """
    # A split that is smaller than a batch repeats its examples.
    examples = np.arange(size, dtype=np.int64) % train.size
    # With the arrays themselves, even if the devices keep the split and get row numbers from the feed, and with all
    # rows in every process, whose devices may compute all.
    streamed = replace(train, cached=False, share=None)
    # A whole batch has nothing to fill.
    orders = (examples, np.flip(examples))
    if not is_real.all():
        orders = (np.where(is_real, examples, 0), np.where(is_real, examples, np.flip(examples)))
    for indices in orders:
        yield streamed.read(0, indices[None], is_real[None].astype(np.float32))

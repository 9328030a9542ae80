"""Text samples that a model writes at each evaluation: one file per step, stored with the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from runner.cluster.team import current
from runner.data.base import WEIGHT, Array, Batch
from runner.engine.base import HostBatches
from runner.engine.common import Engine
from runner.host.outputs import spared
from runner.layout.axes import axis_size
from runner.task.base import Ask, Task

FOLDER = "samples"

# What a run prints of a sample at its end: a screenful beside its table. The file has the rest.
_MAX_LINES = 12
_MAX_COLUMNS = 100


def asking(engine: Engine, before: Callable[[], None] = lambda: None) -> tuple[Ask, int]:
    """Returns what computes the next logits of a batch's rows, and the number that must divide the rows of a batch.

    `before` is called before each token.
    """

    def next_logits(batch: Batch) -> Array:
        before()
        arrays = {name: np.asarray(array)[None] for name, array in batch.items()}
        return engine.next_logits(HostBatches(arrays, arrays[WEIGHT], 1))

    # The batch must be divisible by its axis, so as many texts are written at least, and one of them is returned.
    return next_logits, axis_size(engine.axes, engine.batch_axis)


class Samples:
    """Writes a run's samples; all processes must ask for one, and process 0 writes it."""

    def __init__(
        self, asked: tuple[Ask, int], seed: int, task: Task, folder: Path, keep: Callable[[Path, str], None]
    ) -> None:
        """Takes the result of `asking`; `keep` takes a file and the artifact folder that it belongs to."""
        self._ask, self._multiple = asked
        self._seed = seed
        self._task = task
        self._folder = folder
        self._keep = keep
        self._texts: dict[int, str] = {}

    def take(self, step: int) -> None:
        """Writes a sample of the present weights, if the task has one, to `samples/step_<step>.txt`.

        The random draws depend on the seed and the step.
        """
        text = self._task.sample(self._ask, step, self._seed, self._multiple)
        if text is None or not current().is_first:
            return
        self._texts[step] = text
        path = self._folder / FOLDER / f"step_{step:09d}.txt"
        with spared(str(path)):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
            self._keep(path, FOLDER)

    def lines(self, step: int) -> list[str]:
        """Returns the lines to print of the sample of a step; empty if there is none."""
        if step not in self._texts:
            return []
        lines = list(filter(str.strip, self._texts[step].expandtabs().splitlines()))
        shown = [f"sample of {FOLDER}/step_{step:09d}.txt:"]
        for line in lines[:_MAX_LINES]:
            shown.append(f"  {line[:_MAX_COLUMNS]}")
        if len(lines) > _MAX_LINES:
            shown.append("  ...")
        return shown

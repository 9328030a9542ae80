"""What a model writes at each evaluation: a file a step, kept with the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from runner.config.schema import RunConfig
from runner.data.base import WEIGHT, Array, Batch
from runner.engine.base import Engine, HostBatches, Writes
from runner.host.outputs import spared
from runner.layout.axes import batch_axis
from runner.processes.team import current
from runner.task.base import Task

FOLDER = "samples"
# that are shown at a run's end
_MOST_LINES = 12
_MOST_WIDE = 100


def sample(
    config: RunConfig,
    engine: Engine,
    task: Task,
    step: int,
    prompt: str | None = None,
    before: Callable[[], None] = lambda: None,
) -> str | None:
    """Returns what an engine's model writes; None where its task writes nothing.

    Args:
      config: checked; its seed and mesh.
      engine: with its weights.
      task: of the engine.
      step: training steps done, which the draws depend on.
      prompt: what it begins with; null: as the config says.
      before: is called before each token.
    """
    if not isinstance(engine, Writes):
        return None

    def ask(batch: Batch) -> Array:
        before()
        arrays = {name: np.asarray(array)[None] for name, array in batch.items()}
        return engine.next_logits(HostBatches(arrays, arrays[WEIGHT], 1))

    axis = batch_axis(config.layout, config.mesh.axes)
    return task.sample(ask, step, config.trainer.seed, config.mesh.axes[axis] if axis else 1, prompt)


def shown(text: str) -> list[str]:
    """Returns the first lines of a sample, as a run's end shows them: without what a terminal would obey."""
    lines = [line.expandtabs()[:_MOST_WIDE] for line in text.splitlines() if line.strip()]
    lines = ["".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line) for line in lines]
    return [f"  {line}" for line in [*lines[:_MOST_LINES], *(["..."] if len(lines) > _MOST_LINES else [])]]


class Samples:
    """Writes a run's samples; all processes must ask for one, the first writes it."""

    def __init__(self, config: RunConfig, engine: Engine, task: Task, folder: Path, keep: Callable[[Path, str], None]):
        """Takes what is the same for all.

        Args:
          config: checked.
          engine: of the run.
          task: of the run.
          folder: the run's.
          keep: takes a file and the artifacts' folder that it belongs to.
        """
        self._config = config
        self._engine = engine
        self._task = task
        self._folder = folder
        self._keep = keep
        self._texts: dict[int, str] = {}

    def take(self, step: int, before: Callable[[], None] = lambda: None) -> None:
        """Writes a sample of the present weights, `samples/step_<step>.txt`.

        Args:
          step: training steps done.
          before: is called before each token.
        """
        text = sample(self._config, self._engine, self._task, step, before=before)
        if text is None or not current().is_first:
            return
        self._texts = {step: text, **{at: old for at, old in self._texts.items() if at != step}}
        path = self._folder / FOLDER / f"step_{step:09d}.txt"
        with spared(str(path)):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
            self._keep(path, FOLDER)

    def lines(self, step: int) -> list[str]:
        """Returns what is shown of the sample of a step; nothing where there is none."""
        return [f"sample of {FOLDER}/step_{step:09d}.txt:", *shown(self._texts[step])] if step in self._texts else []

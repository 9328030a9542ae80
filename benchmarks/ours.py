"""The runner as a contender: its command, and the figures of its `summary.json`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from benchmarks.contenders import Contender, ContenderError, child_env, run_process
from benchmarks.meter import Budget

# Steps a second that the number of epochs is planned with; the rate itself is measured.
_PLANNED_RATE = {("mlp", "batch8"): 250, ("mlp", "single"): 1500, ("convnet", "batch8"): 30, ("convnet", "single"): 45}
_KEYS = ("steps", "steps_per_second", "train_loss", "step_ms", "cpu_ms_per_step")


def overrides(contender: Contender, budget: Budget, examples: int, data_dir: str | None, run_dir: Path) -> list[str]:
    """Writes the command-line overrides of one run.

    Args:
      contender: engine, mesh and model.
      budget: steps to train; one epoch more is trained, as the warm-up.
      examples: training examples, a multiple of the batch size.
      data_dir: where prepared data lies; null: the runner's default.
      run_dir: where the run writes.

    Returns:
      The arguments after `python -m runner`.
    """
    task = contender.task
    wanted = math.ceil(budget.seconds * _PLANNED_RATE[contender.model, contender.mesh])
    wanted = wanted if budget.steps is None else min(wanted, budget.steps)
    # A short epoch is enough warm-up for a slow model, and leaves the budget to the measured ones.
    epoch = min(examples // task.batch_size, wanted)
    arguments = [
        f"engine={contender.engine}",
        f"mesh={contender.mesh}",
        f"model={contender.model}",
        "dataset=mnist",
        f"dataset.batch_size={task.batch_size}",
        f"optimizer.learning_rate={task.learning_rate}",
        f'dataset.train="train[:{examples}]"',
        "tracking=none",
        f"trainer.epochs={1 + math.ceil(wanted / epoch)}",
        f"trainer.steps_per_epoch={epoch}",
        "trainer.progress=none",
        f"hydra.run.dir={json.dumps(str(run_dir))}",
    ]
    return arguments if data_dir is None else [*arguments, f"dataset.data_dir={json.dumps(data_dir)}"]


def read_summary(path: Path) -> dict[str, Any]:
    """Reads what a finished run reports of itself.

    Raises:
      ContenderError: the file or one of its keys is missing, or a figure is not a number.
    """
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ContenderError(f"the run ended well and left no {path.name}") from None
    except json.JSONDecodeError as error:
        raise ContenderError(f"{path.name} is not JSON: {error}") from None
    missing = [key for key in _KEYS if not isinstance(summary.get(key), int | float)]
    if missing:
        raise ContenderError(f"{path.name} has no number for {', '.join(missing)}; it has {', '.join(summary)}")
    return dict(summary)


def run_ours(
    contender: Contender, budget: Budget, examples: int, data_dir: str | None, scratch: Path, timeout: float
) -> dict[str, Any]:
    """Trains with the runner in its own process.

    Returns:
      The same figures as a peer's, with the runner's own summary beside them.
    """
    arguments = overrides(contender, budget, examples, data_dir, scratch)
    run_process([sys.executable, "-m", "runner", *arguments], child_env(contender), timeout)
    summary = read_summary(scratch / "summary.json")
    return {
        "contender": contender.name,
        "steps_per_second": float(summary["steps_per_second"]),
        "steps": int(summary["steps"]),
        "cpu_ms_per_step": float(summary["cpu_ms_per_step"]),
        "epoch_steps_per_second": summary.get("epoch_steps_per_second"),
        "final_loss": float(summary["train_loss"]),
        "summary": summary,
    }

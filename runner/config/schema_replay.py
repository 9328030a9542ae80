"""Schema of the group `replay`."""

from __future__ import annotations

from dataclasses import dataclass

from runner.config.fields import integer


@dataclass(frozen=True)
class ReplayConfig:
    """The step that `runner.replay` computes again, and what it records of it.

    Attributes:
      step: training step of the run, counted from 1. On a command line, `step=` is short for `replay.step=`.
      start: step of the checkpoint to start from; 0: the beginning of the run; null: the nearest one before the step.
      every: also record digests of all variables after every so many steps; null: only after the step.
      record_from: steps done at the first of these records; null: the start.
      arrays: also write the step's batch, gradients, outputs of the layers, and the variables after it.
      stop_at_nan: end at the first step with a NaN or Inf loss, or a NaN or Inf in a recorded state.
    """

    step: int | None = integer(None, at_least=1, example=100)
    start: int | None = integer(None, at_least=0, example=0)
    every: int | None = integer(None, at_least=1, example=1)
    record_from: int | None = integer(None, at_least=0, example=0)
    arrays: bool = False
    stop_at_nan: bool = False

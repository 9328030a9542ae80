"""Schema of the group `replay`."""

from __future__ import annotations

from dataclasses import dataclass

from runner.config.fields import integer


@dataclass(frozen=True)
class ReplayConfig:
    """The step of a recorded run that `runner.verify run=<run id>` computes again, and what it records of it.

    Attributes:
      step: training step of the run, counted from 1. On a command line, `step=` is short for `replay.step=`.
      against: another run: finds the first step at which the two part. `against=` is short for `replay.against=`.
      start: step of the checkpoint to start from; 0: the beginning of the run; null: the nearest one before the step.
      states: record a digest of every variable at the start and after each step.
    """

    step: int | None = integer(None, at_least=1, example=100)
    against: str | None = None
    start: int | None = integer(None, at_least=0, example=0)
    states: bool = False

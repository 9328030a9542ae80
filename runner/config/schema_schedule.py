"""The part of the run config that says how the learning rate changes. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.config.fields import checked, integer, number, valid_if


@dataclass(frozen=True)
class PlateauConfig:
    """Reduction of the learning rate when a metric no longer improves; works with every schedule.

    The defaults and the rule are those of Keras's `ReduceLROnPlateau`, counted in evaluations.

    Attributes:
      metric: metric that is watched, as `eval/loss` or `train/epoch_loss`; `auto`: as for early stopping, the default
        if another key of the group is set; null: never reduce.
      factor: factor on the learning rate per reduction; null: 0.1.
      patience: evaluations in a row without an improvement that reduce the rate; null: 10.
      min_delta: smallest change that counts as an improvement; null: 0.0001.
      cooldown: evaluations after a reduction that do not count; null: 0.
      min_factor: smallest product of all reductions; null: 0.
    """

    # The metrics depend on the task, so `runner.plan.checks.trainer` checks the name.
    metric: str | None = None
    # With a factor of 1 a reduction would reduce nothing.
    factor: float | None = number(None, above=0.0, below=1.0, example=0.1)
    patience: int | None = integer(None, at_least=1, example=10)
    min_delta: float | None = number(None, at_least=0.0, example=1e-4)
    cooldown: int | None = integer(None, at_least=0, example=1)
    min_factor: float | None = number(None, at_least=0.0, below=1.0, example=0.01)


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate schedule. All counts of steps start after the warm-up, except `boundaries`.

    Attributes:
      name: `constant`, `linear`, `polynomial`, `cosine`, `exponential` or `piecewise`.
      warmup_steps: steps of linear warm-up before any schedule.
      decay_steps: linear, polynomial, cosine: steps until `final_factor`, null: to the end of training;
        exponential: steps per factor of `decay_rate`.
      decay_rate: exponential: factor every `decay_steps` steps.
      staircase: exponential: decay in steps, not continuously.
      final_factor: linear, polynomial, cosine: last learning rate as a fraction of the base rate.
      boundaries: piecewise: steps of the run at which the rate changes.
      factors: piecewise: multiples of `learning_rate`, one more than `boundaries`.
      initial_factor: learning rate at which the warm-up starts, as a fraction of the base rate.
      power: polynomial: exponent; 1: linear.
      plateau: reduces the rate when a metric no longer improves.
    """

    # `runner.engine.optim.schedules` has the names, and the keys that each schedule uses.
    name: str = "constant"
    warmup_steps: int = integer(0, at_least=0)
    decay_steps: int | None = integer(None, at_least=1, example=1000)
    decay_rate: float = number(0.96, above=0.0)
    staircase: bool = False
    final_factor: float = number(0.0, at_least=0.0)
    boundaries: list[int] = checked(
        [],
        at_least=1,
        whole=valid_if(lambda steps: sorted(set(steps)) == steps, "must be strictly increasing"),
        rule="increasing",
        example=[500, 1000],
    )
    factors: list[float] = checked([], at_least=0.0, example=[1.0, 0.1])
    initial_factor: float = number(0.0, at_least=0.0)
    power: float = number(1.0, above=0.0)
    plateau: PlateauConfig = field(default_factory=PlateauConfig)

"""The part of the run config that says how long and how to train. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field

# OmegaConf resolves these annotations at run time, so they must stay importable, plain types.


@dataclass
class CheckpointConfig:
    """When the state of a run is saved, and how much of it is kept.

    Attributes:
      enabled: false saves nothing; such a run can neither be resumed nor evaluated or exported later.
      every_steps: saves after every so many steps; null: not by steps.
      every_minutes: saves when the last checkpoint is that old; null: not by time.
      keep: how many of the last checkpoints stay, besides the best.
      best: keeps the checkpoint that is the best by a metric of the task, as `eval/loss`; `auto`: by that of early
        stopping, else by the task's first metric beside the loss if more of it is better, else by the loss; null: none
        for its metric.
      folder: where runs keep their checkpoints; null: outputs/checkpoints.
    """

    enabled: bool = True
    every_steps: int | None = None
    every_minutes: float | None = 10.0
    keep: int = 2
    best: str | None = "auto"
    folder: str | None = None


@dataclass
class EarlyStoppingConfig:
    """Ends a run whose evaluations get no better.

    Attributes:
      metric: one of the task's, as `eval/loss`; `auto`: as for the best checkpoint; null: the run trains for all its
        epochs.
      patience: evaluations in a row without an improvement that end the run.
      min_delta: what a value must be better by than the best so far to count as an improvement.
    """

    metric: str | None = None
    patience: int = 3
    min_delta: float = 0.0


@dataclass
class ProfileConfig:
    """A trace of a few training steps, which TensorBoard and Perfetto open.

    Attributes:
      start: steps done before the first one that is traced; null: no trace.
      steps: how many are traced.
    """

    start: int | None = None
    steps: int = 5


@dataclass
class TrainerConfig:
    """How long and how to train.

    Attributes:
      epochs: passes over the training split.
      steps_per_epoch: an epoch is exactly that many steps, which the split must have; null: the whole split.
      limit_train_batches: an epoch ends after that many steps at most, however small the split is; null: no limit.
      eval_mean: what the means of an evaluation, and of training steps, are over: `examples`, or `batches`, in which
        a last, smaller one counts as one.
      limit_eval_batches: evaluates that many batches at most; null: every example.
      overfit_batches: trains on the same so many batches in every epoch, the first ones of the first epoch, and
        evaluates on their examples; null: on the splits.
      accumulate_steps: a batch is computed in so many parts, one after another, whose gradients are added up for one
        update: the same update with less memory for activations. Batch normalization then goes by the part.
      steps_per_call: training steps a device call; null: chosen by the runner.
      seed: initial weights, data order and dropout.
      evaluate_every: epochs between evaluations; the last epoch is always evaluated.
      early_stopping: ends the run where its evaluations get no better.
      log_every_steps: a point of a training metric is the mean over that many steps.
      log_model: records the trained model in MLflow.
      progress: `auto` (a bar on a terminal, lines elsewhere), `bar`, `lines` or `none`.
      on_nan: at the first loss that is not finite, `stop` fails the run, `restore` goes back to the last good
        checkpoint and goes on at a lower learning rate, `continue` does not look.
      nan_rate_factor: with `restore`, what the learning rate is multiplied by each time.
      nan_restores: with `restore`, how often at most; the next loss that is not finite fails the run.
      verify_first: holds the mesh against one device before training, and fails the run where they differ.
      checkpoint: when the state is saved. It is saved at the end besides, and where a signal ends the run.
      profile: traces a few steps.
    """

    epochs: int = 3
    steps_per_epoch: int | None = None
    limit_train_batches: int | None = None
    eval_mean: str = "examples"
    limit_eval_batches: int | None = None
    overfit_batches: int | None = None
    accumulate_steps: int = 1
    steps_per_call: int | None = None
    seed: int = 1337
    evaluate_every: int = 1
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)
    log_every_steps: int = 10
    log_model: bool = True
    progress: str = "auto"
    on_nan: str = "stop"
    nan_rate_factor: float = 0.5
    nan_restores: int = 3
    verify_first: bool = False
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)

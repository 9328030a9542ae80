"""The part of the run config that says how long and how to train. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runner.config.fields import checked, choice, integer, number, stored_path, valid_if

# The largest int64. Only steps are counted on devices, in int32.
_LARGEST_INT64 = 2**63 - 1


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state of a run is saved, and which checkpoints are kept.

    Attributes:
      enabled: false: save nothing; such a run can't be resumed, evaluated or exported later.
      every_steps: steps between checkpoints; null: not by steps.
      every_minutes: minutes between checkpoints; null: not by time.
      keep: most recent checkpoints to keep, in addition to the best.
      best: metric of the best checkpoint, such as `eval/loss`; `auto`: the metric of early stopping, else the task's
        first metric that is maximized, else the loss; null: keep no best checkpoint.
      folder: folder of the checkpoints of all runs, or a URL of an object store, such as `s3://bucket/folder`; null:
        outputs/checkpoints.
    """

    enabled: bool = True
    every_steps: int | None = integer(None, at_least=1, example=1000)
    # A choice: a crash loses at most ten minutes of training.
    every_minutes: float | None = number(10.0, above=0.0, unit="minutes")
    # Two, as the last one may already have the weights that overflow when a NaN is found.
    keep: int = integer(2, at_least=1)
    best: str | None = "auto"
    folder: str | None = stored_path(None, example="outputs/checkpoints")


@dataclass(frozen=True)
class EarlyStoppingConfig:
    """Early stopping: ends a run whose evaluation metric no longer improves.

    Attributes:
      metric: a metric of the task, such as `eval/loss`; `auto`: as for the best checkpoint, the default if `patience`
        or `min_delta` is set; null: no early stopping.
      patience: evaluations in a row without an improvement that end the run; null: 3.
      min_delta: smallest change that counts as an improvement; null: 0.
    """

    # The metrics depend on the task, so `runner.plan.checks.trainer` checks the name.
    metric: str | None = None
    patience: int | None = integer(None, at_least=1, example=3)
    min_delta: float | None = number(None, at_least=0.0, example=0.001)


@dataclass(frozen=True)
class ProfileConfig:
    """A profiler trace of a few training steps, which TensorBoard opens.

    Attributes:
      start: steps before the first traced one; null: no trace.
      steps: traced steps; null: 5.
    """

    start: int | None = integer(None, at_least=0, example=10)
    steps: int | None = integer(None, at_least=1, example=5)


def _have_targets(entries: list[dict[str, Any]]) -> bool:
    return all(isinstance(entry.get("_target_"), str) for entry in entries)


@dataclass(frozen=True)
class TrainerConfig:
    """Length and procedure of the training.

    Attributes:
      epochs: passes over the training split, which set the length of the run; null: `steps` or `tokens` sets it. The
        default is 3, or null if one of these is set.
      steps: length of the run in training steps, in place of `epochs`; null: not by steps.
      tokens: length of the run in training tokens, in place of `epochs`, for tasks on tokens. All tokens of a batch
        count, padding included, and the last step is whole; null: not by tokens.
      steps_per_epoch: exact number of steps per epoch, which the split must have; null: the whole split.
      limit_train_batches: maximum steps per epoch, for smoke tests; null: no limit.
      eval_mean: what the means of an evaluation and of training steps are over: `examples`, or `batches`, where a
        smaller last batch counts as one.
      limit_eval_batches: maximum batches per evaluation; null: every example.
      overfit_batches: train and evaluate on the same N batches, to check that the model can overfit; null: the splits.
      accumulate_steps: gradient accumulation: microbatches per update. It computes the same update with less memory
        for activations, except that batch normalization uses the statistics of each microbatch.
      steps_per_call: training steps per device call; null: chosen by the runner.
      seed: seed of initial weights, data order and dropout.
      evaluate_every: epochs between evaluations; there is always one at the end of the run.
      evaluate_every_steps: steps between evaluations, in place of `evaluate_every`; null: by epochs.
      early_stopping: ends the run when its evaluation metric no longer improves.
      log_every_steps: steps per logged point of a training metric, which is their mean.
      log_model: log the trained model to MLflow.
      progress: `auto` (a progress bar on a terminal, lines elsewhere), `bar`, `lines` or `none`.
      on_nan: at a NaN or Inf loss: `stop` fails the run, `continue` ignores it.
      verify_first: compare the mesh with one device before training, and fail the run on a mismatch.
      checkpoint: when the state is saved; also at the end of a run and when a signal ends it.
      profile: profiler trace of a few steps.
      callbacks: Keras callbacks that read logs, each a mapping with `_target_` and its arguments. Process 0 calls them
        per epoch and per `log_every_steps`; `model.stop_training` ends the run after the epoch.
    """

    epochs: int | None = integer(3, at_least=1)
    steps: int | None = integer(None, at_least=1, example=1000)
    tokens: int | None = integer(None, at_least=1, at_most=_LARGEST_INT64, example=1_000_000_000)
    steps_per_epoch: int | None = integer(None, at_least=1, example=100)
    limit_train_batches: int | None = integer(None, at_least=1, example=10)
    eval_mean: str = choice("examples", "examples", "batches")
    limit_eval_batches: int | None = integer(None, at_least=1, example=10)
    overfit_batches: int | None = integer(None, at_least=1)
    accumulate_steps: int = integer(1, at_least=1)
    steps_per_call: int | None = integer(None, at_least=1, example=10)
    # An arbitrary number, the same in all runs so that they can be compared.
    seed: int = integer(1337, at_least=0)
    evaluate_every: int = integer(1, at_least=1)
    evaluate_every_steps: int | None = integer(None, at_least=1, example=100)
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)
    log_every_steps: int = integer(10, at_least=1)
    log_model: bool = True
    progress: str = choice("auto", "auto", "bar", "lines", "none")
    on_nan: str = choice("stop", "stop", "continue")
    verify_first: bool = False
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    callbacks: list[dict[str, Any]] = checked(
        [],
        whole=valid_if(_have_targets, "must be a list of mappings with a _target_ each"),
        rule="with a `_target_` each",
        example=[{"_target_": "keras.callbacks.CSVLogger", "filename": "log.csv"}],
    )

"""Whether a run can go on from a checkpoint, and what it takes from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runner.config.convert import flatten
from runner.engine.base import Engine
from runner.errors import ConfigError, invalid
from runner.optim.paths import is_ema, is_variable, owner_of
from runner.training.checkpoint.manifest import DIGEST
from runner.training.checkpoint.storage import Checkpoint

# What decides which examples a step sees: a run that goes on must see those that it has not seen.
_ORDER = (
    "dataset.name",
    "dataset._target_",
    "dataset.features",
    "dataset.builder",
    "dataset.train",
    "dataset.holdout",
    "dataset.batch_size",
    "dataset.shuffle",
    "dataset.remainder",
    "dataset.image_size",
    "trainer.seed",
    "trainer.steps_per_epoch",
    "trainer.limit_train_batches",
    "trainer.overfit_batches",
)
_LATER = {"dataset.holdout": 0.0}  # what earlier versions did, which had no such key
_LOW = "bfloat16"  # a state's narrower type; each of its numbers is a float32
_CUTS_TRAIN = "dataset.test"  # where it is null, and the data has no test split, a share of train is taken for it


def check_order(checkpoint: Checkpoint, content: Mapping[str, Any]) -> None:
    """Checks that a config goes on with the same examples in the same order.

    Args:
      checkpoint: where the run stopped.
      content: the resolved config.

    Raises:
      ConfigError: names the key that differs.
    """
    before = dict(flatten(checkpoint.about["config"]))
    now = dict(flatten(content))
    keys = [key for key in _ORDER if before.get(key, _LATER.get(key)) != now.get(key, _LATER.get(key))]
    if (before.get(_CUTS_TRAIN, "") is None) != (now.get(_CUTS_TRAIN, "") is None):
        keys.append(_CUTS_TRAIN)
    if keys:
        key = keys[0]
        raise invalid(
            key,
            now.get(key),
            problem=f"the run has seen its examples with {key}={_plain(before.get(key))}, and goes on with that",
            fix="leave the key out, or start a new run",
        )


def check_data(checkpoint: Checkpoint, digest: str) -> None:
    """Checks that a run goes on with the data that it was begun with.

    Args:
      checkpoint: where the run stopped; one of an earlier version does not say what data it was.
      digest: `Dataset.digest` of the config's.

    Raises:
      ConfigError: it has changed.
    """
    if checkpoint.about.get(DIGEST, digest) != digest:
        raise ConfigError(
            f"resume: the data is not what run {checkpoint.about['run']} was begun with, its SHA-256 "
            "differs; put the files back, or begin a new run with the new ones by branch=<run id> in place of resume"
        )


def _plain(value: object) -> object:
    return "null" if value is None else value


def _differs(path: str, *states: Iterable[str]) -> str:
    """Returns the key that a path comes of which only one of two states has."""
    if is_variable(path):
        return "model"
    kind = path.removesuffix(owner_of(path))
    if all(any(each.startswith(kind) for each in state) for state in states):
        return "model.trainable"  # both keep it, of other variables
    return "optimizer.ema" if is_ema(path) else "optimizer"


def load(engine: Engine, checkpoint: Checkpoint) -> None:
    """Puts a checkpoint's arrays into an engine, under its own mesh and layout.

    Args:
      engine: built.
      checkpoint: of any mesh, layout and engine.

    Raises:
      ConfigError: of another model or optimizer, or of a state that this one would round; names the first variable
        that differs.
    """
    own = engine.variables()
    # A variable of the model's first: what else a state holds goes with these.
    only = sorted(set(own) ^ set(checkpoint), key=lambda path: (not is_variable(path), path))
    if only:
        where = "the checkpoint lacks" if only[0] in own else "this config has no"
        what = _differs(only[0], own, checkpoint)
        raise ConfigError(
            f"checkpoint {checkpoint.folder}: it is of another {what}, {where} {only[0]}; set {what} as the run had it"
        )
    for path, info in own.items():
        if checkpoint.shape(path) != info.shape:
            raise ConfigError(
                f"checkpoint {checkpoint.folder}: it is of another model, {path} has shape "
                f"{list(checkpoint.shape(path))} there and {list(info.shape)} here; set model as the run had it"
            )
    _check_kept_whole(engine, checkpoint)
    engine.load_state(checkpoint)


def _check_kept_whole(engine: Engine, checkpoint: Checkpoint) -> None:
    """Refuses to round what steps change; weights that are frozen are rounded as a step would use them."""
    own = engine.variables()
    trained = set(engine.trainable)
    for path, info in own.items():
        if info.dtype == _LOW and checkpoint.dtype(path) != _LOW and owner_of(path) in trained:
            raise invalid(
                "engine.state",
                _LOW,
                problem=f"checkpoint {checkpoint.folder} holds {path} in {checkpoint.dtype(path)}, not to be rounded",
                fix="set engine.state=master to compute with bfloat16 weights, or engine.state=float32",
            )

"""`resume=<run id|latest>`: the recorded command line again, from where the run stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.checkpoint import runs
from runner.checkpoint.storage import Checkpoint
from runner.config import flatten
from runner.engine.base import Engine
from runner.errors import ConfigError, refuse
from runner.schema import CheckpointConfig

KEYS = ("resume", "run")  # trains on; evaluates or exports
_FOLDER = "trainer.checkpoint.folder"
_MULTIRUN = ("-m", "--multirun")
# What decides which examples a step sees: a run that goes on must see those that it has not seen.
_ORDER = (
    "dataset.name",
    "dataset.train",
    "dataset.batch_size",
    "dataset.shuffle",
    "dataset.remainder",
    "dataset.image_size",
    "trainer.seed",
    "trainer.steps_per_epoch",
    "trainer.limit_train_batches",
    "trainer.overfit_batches",
)


def expand(arguments: Sequence[str]) -> list[str]:
    """Returns the command line with what the run that it names was started with.

    A key that is typed again wins over the recorded one, and a group's option over recorded keys of that group.

    Args:
      arguments: as typed, without the program.

    Raises:
      ConfigError: there is no such run, or it can't be used so.
    """
    given = {key: value for key in KEYS if (value := _value(arguments, key))}
    if not given:
        return list(arguments)
    if len(given) > 1:
        raise ConfigError("run and resume are refused together: resume trains on, run is for evaluate and export")
    key, wanted = next(iter(given.items()))
    if any(argument in _MULTIRUN for argument in arguments):
        raise refuse(key, wanted, allowed="one run, not a multirun", mend="drop -m, or set sweep.resume for a sweep")
    found, step = runs.find(key, wanted, runs.folder_of(CheckpointConfig(folder=_value(arguments, _FOLDER) or None)))
    typed = [argument for argument in arguments if key_of(argument) != key]
    keys = [key_of(argument) for argument in typed]
    recorded = [
        argument
        for argument in found.record["overrides"]
        if not any(key_of(argument) == new or key_of(argument).startswith(f"{new}.") for new in keys)
    ]
    reference = found.folder.as_posix() + (f"@{step}" if step is not None else "")
    return [*recorded, *typed, f"{key}='{reference}'"]


def key_of(argument: str) -> str:
    """Returns the key of an override; the argument itself where it is none."""
    return argument.lstrip("+~").partition("=")[0]


def _value(arguments: Sequence[str], key: str) -> str:
    """Returns the last value given to a key; empty where there is none, or null."""
    values = [argument.partition("=")[2].strip("'\"") for argument in arguments if key_of(argument) == key]
    return "" if not values or values[-1] == "null" else values[-1]


def check_order(checkpoint: Checkpoint, content: Mapping[str, Any]) -> None:
    """Checks that a config goes on with the same examples in the same order.

    Args:
      checkpoint: where the run stopped.
      content: the resolved config.

    Raises:
      ConfigError: names the key that differs.
    """
    before, now = dict(flatten(checkpoint.about["config"])), dict(flatten(content))
    for key in _ORDER:
        if before.get(key) != now.get(key):
            raise refuse(
                key,
                now.get(key),
                allowed=f"the run has seen its examples with {key}={_plain(before.get(key))}, and goes on with that",
                mend="leave the key out, or start a new run",
            )


def _plain(value: object) -> object:
    return "null" if value is None else value


def load(engine: Engine, checkpoint: Checkpoint) -> None:
    """Puts a checkpoint's arrays into an engine, under its own mesh and layout.

    Args:
      engine: built.
      checkpoint: of any mesh, layout and engine.

    Raises:
      ConfigError: of another model or optimizer; names the first variable that differs.
    """
    own = engine.variables()
    only = sorted(set(own) ^ set(checkpoint))
    if only:
        where = "the checkpoint lacks" if only[0] in own else "this config has no"
        what = "optimizer" if only[0].startswith("optimizer/") else "model"
        raise ConfigError(
            f"checkpoint {checkpoint.folder} is refused: it is of another {what}, {where} {only[0]}; "
            f"set {what} as the run had it"
        )
    for path, info in own.items():
        if checkpoint.shape(path) != info.shape:
            raise ConfigError(
                f"checkpoint {checkpoint.folder} is refused: it is of another model, {path} has shape "
                f"{list(checkpoint.shape(path))} there and {list(info.shape)} here; set model as the run had it"
            )
    engine.load_state(checkpoint)

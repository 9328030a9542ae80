"""Command line of `sweep.resume=<run id|latest>`: the recorded one, without the jobs that are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.checkpoint import recorded as record
from runner.checkpoint.arguments import MULTIRUN, key_of, value_of, without
from runner.config.compose import compose
from runner.config.convert import convert_group
from runner.config.search_path import FLAG, NAME_FLAG, searchpath
from runner.errors import ConfigError
from runner.host.late import late

if TYPE_CHECKING:
    from runner.cli.sweep import parent
    from runner.tracking import sweeps
else:
    parent = late("runner.cli.sweep.parent")
    sweeps = late("runner.tracking.sweeps")

_KEY = "sweep.resume"


def expand(arguments: Sequence[str]) -> list[str]:
    """Returns the command line with what the sweep that it resumes was started with; a typed key wins.

    Raises:
      ConfigError: there is no such sweep, or its record sets what a record may not set.
      TrackingError: the store can't be used.
    """
    reference = value_of(arguments, _KEY)
    if not reference:
        return list(arguments)
    typed: list[str] = []
    typed_keys: list[str] = []
    of_the_store: list[str] = []  # what decides in which store the sweep is looked for
    for argument in arguments:
        key = key_of(argument)
        if key == _KEY or argument in MULTIRUN:
            continue
        typed.append(argument)
        typed_keys.append(key)
        if key.split(".")[0] in ("tracking", "experiment"):
            of_the_store.append(argument)
    config = convert_group("tracking", compose([*of_the_store, *searchpath(typed)]))
    if config.name == "none":
        raise ConfigError(f"{_KEY}={reference}: tracking=none records no sweep; drop one of the two")
    store = sweeps.open_tracking(config)
    # `latest` is the newest sweep of the experiment that is typed, else of the store.
    names_experiment = "tracking.experiment" in typed_keys or "experiment" in typed_keys
    run = sweeps.find(store, reference, [store.experiment_id] if names_experiment else [])
    source = f"{_KEY}={run.info.run_id}"
    # A flag and its value are one word, which a typed flag replaces.
    recorded: list[str] = []
    for argument in parent.recorded_arguments(run):
        if recorded and recorded[-1] in (FLAG, NAME_FLAG):
            recorded[-1] += f"={argument}"
        elif argument not in MULTIRUN:
            recorded.append(argument)
    return ["-m", *record.checked(source, parent.why_foreign(run), without(recorded, typed_keys)), *typed, source]

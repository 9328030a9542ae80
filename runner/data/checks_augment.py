"""Checks of `dataset.augment` and of the data workers."""

from __future__ import annotations

from runner.config import values
from runner.config.build import build
from runner.config.schema_augment import ON, ON_CHOICES, STEPS, StepOptions
from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.errors import invalid, listed
from runner.host import import_path


def check(config: DatasetConfig) -> None:
    """Checks the augmentation steps, and that worker processes can be started.

    Args:
      config: whose single values are checked.

    Raises:
      ConfigError: an unknown step or option, an invalid value, a missing callable, or no worker processes.
    """
    for index, step in enumerate(config.augment):
        key = f"dataset.augment[{index}]"
        if bool(step.name) == bool(step.target):
            raise invalid(
                key,
                step.name or "{}",
                problem=f"must have either a name ({', '.join(STEPS)}) or a _target_",
                fix="set dataset.augment=[{name: flip}]",
            )
        if step.target:
            _check_custom(key, step)
        else:
            values.check_name(f"{key}.name", step.name, STEPS)
            values.check(build(STEPS[step.name], step.options, key), key)
    if config.worker_kind == "process" and config.workers == 0:
        problem = "must be at least 1 with dataset.worker_kind=process"
        raise invalid("dataset.workers", 0, problem=problem, fix="set dataset.worker_kind=thread")


def options(step: AugmentConfig) -> StepOptions:
    """Returns the typed options of a built-in step that `check` has passed."""
    return build(STEPS[step.name], step.options, step.name)


def _check_custom(key: str, step: AugmentConfig) -> None:
    """Checks what is known of a custom step before it is imported."""
    import_path.check(f"{key}._target_", step.target)
    splits = step.options.get(ON, ON_CHOICES[0])
    if splits not in ON_CHOICES:
        raise invalid(f"{key}.{ON}", splits, problem=f"must be one of {listed(ON_CHOICES)}", fix=f"set {ON}: all")

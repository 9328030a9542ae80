"""Checks of `dataset.augment` and of the data workers.

Custom steps are checked by reading their source.
"""

from __future__ import annotations

import importlib.util

from runner.config import values
from runner.config.build import build
from runner.config.schema_augment import ON, ON_CHOICES, STEPS, StepOptions
from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.errors import invalid, listed
from runner.host import import_path

# Positional arguments of a custom step.
_ARGUMENTS = ("arrays", "rng")


def check(config: DatasetConfig) -> None:
    """Checks the augmentation steps, and that worker processes can be started.

    Args:
      config: whose single values are checked.

    Raises:
      ConfigError: an unknown step or option, an invalid value, a missing callable, or worker processes without Grain.
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
    if config.worker_kind != "process":
        return
    if config.workers == 0:
        problem = "must be at least 1 with dataset.worker_kind=process"
        raise invalid("dataset.workers", 0, problem=problem, fix="set dataset.worker_kind=thread")
    if importlib.util.find_spec("grain") is None:
        raise invalid(
            "dataset.worker_kind",
            "process",
            problem="needs grain, which is not installed",
            fix="pip install -e '.[grain]', or set dataset.worker_kind=thread",
        )


def options(step: AugmentConfig) -> StepOptions:
    """Returns the typed options of a built-in step that `check` has passed."""
    return build(STEPS[step.name], step.options, step.name)


def _check_custom(key: str, step: AugmentConfig) -> None:
    """Checks that a custom step exists and accepts its arguments and options."""
    definition = import_path.look_up(f"{key}._target_", step.target, compiled=True)
    splits = step.options.get(ON, ON_CHOICES[0])
    if splits not in ON_CHOICES:
        raise invalid(f"{key}.{ON}", splits, problem=f"must be one of {listed(ON_CHOICES)}", fix=f"set {ON}: all")
    if definition.arguments is None:
        return
    positional = [argument.arg for argument in (*definition.arguments.posonlyargs, *definition.arguments.args)]
    if len(positional) < len(_ARGUMENTS) and definition.arguments.vararg is None:
        names = [*positional, *(argument.arg for argument in definition.arguments.kwonlyargs)]
        raise invalid(
            f"{key}._target_",
            step.target,
            problem=f"must accept (arrays, rng, **options), but has the parameters ({', '.join(names)})",
            fix="write def step(arrays, rng): return arrays",
        )
    own_options = [name for name in step.options if name != ON]
    passed = positional[: len(_ARGUMENTS)]
    import_path.check_options(key, step.target, definition.arguments, own_options, passed, write="write {name}: ...")

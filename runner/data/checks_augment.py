"""Checks of `dataset.augment` and of the workers. A step of a user's own is checked by reading its source."""

from __future__ import annotations

import importlib.util
from dataclasses import fields

from runner.config.checks_values import one_of
from runner.config.schema_augment import ON, STEPS, StepOptions, required
from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.errors import ConfigError, did_you_mean, invalid
from runner.host import import_path

WORKER_KINDS = ("auto", "thread", "process")
_GIVEN = ("arrays", "rng")  # what a step of a user's own is called with, in this order
_SHARES = ("probability", "center")  # above 0, at most 1
_NOT_BELOW_0 = ("brightness", "contrast", "saturation", "degrees")
_EXAMPLES = {  # where the default is none
    "size": "[224,224]",
    "scale": "[0.08, 1.0]",
    "ratio": "[0.75, 1.33]",
    **dict.fromkeys(("brightness", "contrast", "saturation", "hue"), "0.1"),
}


def check(config: DatasetConfig) -> None:
    """Checks the steps of augmentation, and who makes the examples.

    Raises:
      ConfigError: an unknown step or option, a value out of range, a callable that is not there, or worker processes
        without Grain.
    """
    for place, step in enumerate(config.augment):
        key = f"dataset.augment[{place}]"
        if bool(step.name) == bool(step.target):
            raise invalid(
                key,
                step.name or "{}",
                problem=f"a step has either a name, one of {', '.join(STEPS)}, or a _target_",
                fix="write dataset.augment=[{name: flip}]",
            )
        if step.target:
            _check_own(key, step)
        else:
            one_of(f"{key}.name", step.name, list(STEPS))
            _check_options(key, step, STEPS[step.name])
    one_of("dataset.worker_kind", config.worker_kind, WORKER_KINDS)
    if config.workers is not None and config.workers < 0:
        raise invalid("dataset.workers", config.workers, problem="at least 0", fix="leave it out: as many as cores")
    if config.worker_kind == "process":
        if config.workers == 0:
            raise invalid("dataset.workers", 0, problem="at least 1 process", fix="set dataset.worker_kind=auto")
        if importlib.util.find_spec("grain") is None:
            raise invalid(
                "dataset.worker_kind",
                "process",
                problem="it needs grain, which is not installed",
                fix="pip install -e '.[grain]', or set dataset.worker_kind=thread",
            )


def options(step: AugmentConfig) -> StepOptions:
    """Returns the typed options of a built-in step that `check` has passed."""
    kind = STEPS[step.name]
    pairs = {spec.name for spec in fields(kind) if isinstance(spec.default, tuple)}
    return kind(**{key: tuple(value) if key in pairs else value for key, value in step.options.items()})


def _check_options(key: str, step: AugmentConfig, kind: type[StepOptions]) -> None:
    known = [spec.name for spec in fields(kind)]
    for name, value in step.options.items():
        if name not in known:
            takes = f"{step.name} takes {', '.join(known) or 'no options'}"
            raise ConfigError(f"{key}.{name}: {takes}; {did_you_mean(name, known)}")
        _check_value(f"{key}.{name}", name, value, kind)
    for name in required(kind):
        if name not in step.options:
            example = f"{{name: {step.name}, {name}: [224,224]}}"
            raise ConfigError(f"{key}.{name}: it has no value and {step.name} needs it; write {example}")


def _check_value(key: str, name: str, value: object, kind: type[StepOptions]) -> None:
    if name == "size":
        if value is None and name not in required(kind):
            return
        good, allowed = _numbers(value, whole=True) and min(value) >= 1, "[height, width], each at least 1"  # type: ignore[call-overload]
    elif name == "padding":
        good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        allowed = "at least 0"
    elif name == "direction":
        good = value in ("horizontal", "vertical", "both")
        allowed = "one of horizontal, vertical, both"
    elif name in ("scale", "ratio"):
        top = 1.0 if name == "scale" else float("inf")
        good = _numbers(value) and 0 < value[0] <= value[1] <= top  # type: ignore[index]
        allowed = f"[least, largest], above 0{' and at most 1' if name == 'scale' else ''}"
    elif name in _SHARES:
        good, allowed = _number(value) and 0 < value <= 1, "a number above 0 and at most 1"  # type: ignore[operator]
    elif name == "hue":
        good, allowed = _number(value) and 0 <= value <= 0.5, "a number from 0 to 0.5"  # type: ignore[operator]
    elif name in _NOT_BELOW_0:
        good, allowed = _number(value) and 0 <= value < float("inf"), "a number of at least 0"  # type: ignore[operator]
    else:
        good, allowed = _number(value) and 0 < value < float("inf"), "a number above 0"  # type: ignore[operator]
    if not good:
        example = _EXAMPLES[name] if name in _EXAMPLES else getattr(kind, name)
        raise invalid(key, value, problem=allowed, fix=f"write {name}: {example}")


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _numbers(value: object, *, whole: bool = False) -> bool:
    kinds = int if whole else (int, float)
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(isinstance(one, kinds) and _number(one) for one in value)
    )


def _check_own(key: str, step: AugmentConfig) -> None:
    found = import_path.look_up(f"{key}._target_", step.target, compiled=True)
    on = step.options.get(ON, "train")
    if on not in ("train", "all"):
        raise invalid(f"{key}.{ON}", on, problem="train or all", fix=f"write {ON}: all")
    if found.arguments is None:
        return
    by_place = [one.arg for one in (*found.arguments.posonlyargs, *found.arguments.args)]
    if len(by_place) < len(_GIVEN) and found.arguments.vararg is None:
        names = [*by_place, *(one.arg for one in found.arguments.kwonlyargs)]
        raise invalid(
            f"{key}._target_",
            step.target,
            problem=f"it is called with (arrays, rng, **options) and takes ({', '.join(names)})",
            fix="write def step(arrays, rng): return arrays",
        )
    options = [name for name in step.options if name != ON]
    given = by_place[: len(_GIVEN)]
    import_path.check_options(key, step.target, found.arguments, options, given, write="write {name}: ...")

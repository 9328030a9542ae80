"""Checks of single values: each key of a typed config against the constraint of its field."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from runner.config.fields import Constraint, constraint_of
from runner.errors import ConfigError, did_you_mean, invalid, listed, shown

# The smallest and the largest normal float32. Devices flush smaller numbers to 0.
_SMALLEST = 2.0**-126
_LARGEST = (2 - 2.0**-23) * 2.0**127

# The limits of int32, in which devices count.
_SMALLEST_INT32 = -(2**31)
_LARGEST_INT32 = 2**31 - 1


def check(config: object, key: str = "") -> None:
    """Checks every value of a dataclass of the schema; an empty key: it is the whole config. Raises ConfigError."""
    assert is_dataclass(config)
    for spec in fields(config):
        # `options` are the arguments of a callable that the schema does not know; see `check_finite`.
        if spec.name != "options":
            field_key = spec.name
            if key:
                field_key = f"{key}.{spec.name}"
            _check(getattr(config, spec.name), spec, field_key, field_key)


def _check(value: Any, spec: Field[Any], field_key: str, key: str) -> None:
    """Checks a value of a field, or an entry of it with its own dotted key."""
    constraint = constraint_of(spec)
    # A test of a whole list or mapping applies to the field, not to its entries.
    if key == field_key and value is not None:
        problem = _problem_of_whole(value, constraint)
        if problem is not None:
            raise _invalid(problem, value, spec, field_key, key)
    if is_dataclass(value):
        check(value, key)
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            entry_key = f"{key}.{name}"
            if constraint.key_pattern is not None and not constraint.key_pattern.fullmatch(str(name)):
                problem = "a name must consist of letters, digits and _, and not begin with a digit"
                fix = f"rename it, as in {key}={shown(constraint.example)}"
                raise invalid(entry_key, entry, problem=problem, fix=fix)
            _check(entry, spec, field_key, entry_key)
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            _check(entry, spec, field_key, f"{key}[{index}]")
    elif value is not None:
        problem = problem_of(value, constraint)
        if problem is not None:
            raise _invalid(problem, value, spec, field_key, key)


def _invalid(problem: str, value: object, spec: Field[Any], field_key: str, key: str) -> ConfigError:
    problem, fix = _with_fix(problem, fix_of(value, spec, field_key, key))
    return invalid(key, value, problem=problem, fix=fix)


def _with_fix(problem: str, otherwise: str) -> tuple[str, str]:
    """Returns what a test says, split into the problem and its fix; `otherwise` if it names no fix."""
    clause, _, fix = problem.partition("; ")
    return clause, fix or otherwise


def _problem_of_whole(value: Any, constraint: Constraint) -> str | None:
    if constraint.entry_names and len(value) != len(constraint.entry_names):
        return f"must be [{', '.join(constraint.entry_names)}]"
    if constraint.whole is None:
        return None
    return constraint.whole(value)


def problem_of(value: object, constraint: Constraint) -> str | None:
    """Returns what is wrong with one value of the right type, no list, mapping or dataclass; or None."""
    if constraint.choices and value not in constraint.choices:
        return f"must be {_either(constraint)}"
    if constraint.test is not None:
        return constraint.test(value)
    # To Python True is an integer, but bounds are not meant for it.
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return _problem_of_integer(value, constraint)
    if isinstance(value, float):
        return _problem_of_float(value, constraint)
    return None


def _either(constraint: Constraint) -> str:
    """Returns the choices of a field in words."""
    choices = listed(constraint.choices)
    if constraint.is_optional:
        return f"{choices} or null"
    if len(constraint.choices) > 1:
        return f"one of {choices}"
    return choices


def _problem_of_integer(value: int, constraint: Constraint) -> str | None:
    if not constraint.is_within(value):
        return f"must be {constraint.bounds()}"
    # A field whose own bound is larger is not counted on devices.
    if value > _LARGEST_INT32 and constraint.at_most is None:
        return f"must be at most {_LARGEST_INT32:,} (int32)"
    if value < _SMALLEST_INT32:
        return f"must be at least {_SMALLEST_INT32:,} (int32)"
    return None


def _problem_of_float(value: float, constraint: Constraint) -> str | None:
    bounds = constraint.bounds()
    if not math.isfinite(value):
        return f"must be finite and {bounds}" if bounds else "must be a finite number"
    rounded = as_float32(value)
    is_within = constraint.is_within(rounded)
    # A number that overflows, or that underflows to 0, is another one on the devices.
    is_lost = not math.isfinite(rounded) or (value != 0 and rounded == 0)
    if is_within and not is_lost:
        return None
    note = ""
    if constraint.is_within(value) and rounded != value:
        note = f", but float32 rounds this value to {rounded:g}"
    if is_within:
        return f"must be within the range of float32{note}"
    return f"must be {bounds}{note}"


def check_value(key: str, value: object, constraint: Constraint) -> None:
    """Checks a value, or None, that is not a field of the schema, such as a builder's option. Raises ConfigError."""
    if value is None:
        return
    problem = problem_of(value, constraint)
    if problem is not None:
        problem, fix = _with_fix(problem, _fix(value, constraint, example_of(constraint), key))
        raise invalid(key, value, problem=problem, fix=fix)


def fix_of(value: object, spec: Field[Any], field_key: str, key: str) -> str:
    """Returns a fix for an invalid value, of a field or of an entry: the nearest choice, else an example that is
    valid.
    """
    example = default_or_example(spec)
    is_entry_of_mapping = key != field_key and "[" not in key[len(field_key) :]
    if is_entry_of_mapping and isinstance(example, Mapping):
        return _fix(value, constraint_of(spec), next(iter(example.values())), key)
    return _fix(value, constraint_of(spec), example, field_key)


def _fix(value: object, constraint: Constraint, example: object, key: str) -> str:
    otherwise = assignment(key, shown(example))
    if constraint.is_optional and constraint.example is None:
        otherwise = f"remove {key}"
    elif example is None:
        otherwise = f"set {key} to another value"
    # Only a string can be a misspelled name.
    names = [choice for choice in constraint.choices if isinstance(choice, str)]
    if names and isinstance(value, str):
        return did_you_mean(value, names, otherwise)
    return otherwise


def assignment(key: str, text: str) -> str:
    """Returns a fix that gives a key a text, though an override can set no entry of a list, nor a key in one."""
    if key.endswith("]"):
        return f"write {text} there"
    entry, _, name = key.rpartition(".")
    if "[" in entry:
        return f"write {name}: {text}"
    return f"set {key}={text}"


def default_or_example(spec: Field[Any]) -> object:
    """Returns a valid value of a field; None: only null is known to be valid."""
    constraint = constraint_of(spec)
    default = spec.default
    if spec.default_factory is not MISSING:
        default = spec.default_factory()
    # An empty list is no example of one. The bounds of a list are those of its entries.
    has_default = default is not MISSING and default is not None and default not in ([], {})
    if has_default and constraint.example is None:
        return default
    return example_of(constraint)


def example_of(constraint: Constraint) -> object:
    """Returns a valid value, if the constraint has one, else None."""
    if constraint.example is not None:
        return constraint.example
    if constraint.choices:
        return constraint.choices[0]
    if constraint.at_least is not None:
        return constraint.at_least
    return constraint.at_most


def check_name(key: str, value: str, known: Iterable[str]) -> None:
    """Rejects, by a ConfigError, a name that is not in a registry, whose entries the schema does not know."""
    names = list(known)
    if value not in names:
        fix = did_you_mean(value, names, assignment(key, names[0]))
        raise invalid(key, value, problem=f"must be one of {listed(names)}", fix=fix)


def check_finite(content: Mapping[str, object], key: str) -> None:
    """Rejects, by a ConfigError, a NaN or infinity anywhere in the keyword arguments of a user's callable."""
    for name, value in leaves(content, f"{key}."):
        if isinstance(value, float) and not math.isfinite(value):
            fix = assignment(name, "0.0 or another number")
            raise invalid(name, value, problem="must be a finite number", fix=fix)


def leaves(content: object, prefix: str) -> Iterator[tuple[str, object]]:
    """Yields (dotted key, value) of each value that is no dataclass, mapping or list; the prefix ends with a dot."""
    if is_dataclass(content):
        for spec in fields(content):
            yield from leaves(getattr(content, spec.name), f"{prefix}{spec.name}.")
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from leaves(value, f"{prefix}{key}.")
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from leaves(value, f"{prefix[:-1]}[{index}].")
    else:
        yield prefix[:-1], content


def as_float32(value: float) -> float:
    """Returns the nearest float32: 0 for numbers that would be subnormal, an infinity past the largest."""
    if abs(value) < _SMALLEST:
        return 0.0
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        # `struct` does not round a number past the largest float32 to infinity.
        return math.copysign(math.inf, value)


def changed(config: object, keys: Sequence[str]) -> list[str]:
    """Returns those of a dataclass's keys that are not at the schema's default."""
    defaults = type(config)()
    return [key for key in keys if getattr(config, key) != getattr(defaults, key)]

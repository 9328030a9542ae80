"""Conversion of plain values, as YAML and the command line have them, to the typed dataclasses of the schema."""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from runner.config.fields import constraint_of
from runner.config.values import assignment, default_or_example, fix_of, problem_of
from runner.errors import ConfigError, did_you_mean, invalid, listed, shown

Typed = TypeVar("Typed")

# Strings that OmegaConf and YAML 1.1 read as booleans, in any case.
_TRUE = ("true", "yes", "on", "y", "1")
_FALSE = ("false", "no", "off", "n", "0")

_SINGULAR: dict[object, str] = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
_PLURAL: dict[object, str] = {int: "integers", float: "numbers", bool: "booleans", str: "strings"}
_EXAMPLES: dict[object, str] = {int: "1", float: "1.0", bool: "true", str: "text", dict: "{...}"}


class _MisfitError(ValueError):
    """A plain value, of a dotted key or of an entry of it, that can't be converted to its type."""

    def __init__(self, key: str, value: object, kind: Any) -> None:
        super().__init__(key)
        self.key = key
        self.value = value
        self.kind = kind

    def as_error(self, fix: str) -> ConfigError:
        """Returns the error for a user."""
        problem = f"must be {type_in_words(self.kind)}"
        if self.kind is str and not isinstance(self.value, Mapping | list):
            problem = "must be a string, but YAML reads it as another type, so its text is lost"
            fix = "put the text in quotes"
        return invalid(self.key, self.value, problem=problem, fix=fix)


def build(kind: type[Typed], content: Mapping[str, object], key: str, *, strict: bool = False) -> Typed:
    """Converts a mapping of plain values to a dataclass; only types are checked, see `runner.config.values` for the
    rest.

    `key` is the dotted key of the mapping, as `layout.rules[0]`, or empty. If it is strict, strings that could be
    converted, such as "5" for an integer, are rejected.

    Raises:
      ConfigError: an unknown key, a missing key, or a value of a wrong type.
    """
    specs = fields_of(kind)
    keys = {name: f"{key}.{name}".removeprefix(".") for name in (*content, *specs)}
    for name in content:
        if name not in specs:
            raise unknown_key(keys[name], specs)
    types_of = _types_of(cast("Hashable", kind))
    values = {}
    for name, value in content.items():
        try:
            values[name] = _converted(types_of[name], value, keys[name], strict=strict)
        except _MisfitError as misfit:
            raise _invalid_type(misfit, keys[name], specs[name]) from misfit
    for name, spec in specs.items():
        if name not in values and spec.default is MISSING and spec.default_factory is MISSING:
            raise ConfigError(f"{keys[name]} is required; write {name}: {shown(default_or_example(spec))}")
    return kind(**values)


def check_type(kind: Any, value: object, key: str) -> None:
    """Checks that a plain value has a type, as annotations name it. Raises ConfigError if not."""
    try:
        _converted(kind, value, key, strict=True)
    except _MisfitError as misfit:
        raise misfit.as_error(assignment(misfit.key, _example(misfit.kind))) from misfit


def fields_of(kind: type) -> dict[str, Field[Any]]:
    """Returns the fields of a dataclass by name."""
    assert is_dataclass(kind)
    return {spec.name: spec for spec in fields(kind)}


def unknown_key(key: str, known: Iterable[str], of: str = "") -> ConfigError:
    """Returns the error for a dotted key that a group, or what `of` names, lacks beside the known ones."""
    group, _, name = key.rpartition(".")
    names = list(known)
    # A command without a config has keys without a group.
    owner = of or group or "the command"
    fix = did_you_mean(name, names) if of or group else did_you_mean(name, names, "see --help")
    return ConfigError(f"{key}: unknown key ({owner} has {listed(names)}); {fix}")


@cache
def _types_of(kind: Hashable) -> dict[str, Any]:
    # The schema's annotations are strings, which are evaluated once per class.
    return get_type_hints(kind)


def _converted(kind: Any, value: object, key: str, *, strict: bool) -> Any:
    """Returns a plain value, or an entry of it, converted to a type; see `build`.

    Raises:
      ConfigError: a mapping has an unknown key or a wrong value.
      _MisfitError: the value itself can't be converted.
    """
    plain = without_none(kind)
    if value is None and plain is not kind:
        return None
    kind = plain
    if kind is Any:
        return value
    if is_dataclass(kind):
        assert isinstance(kind, type)
        if not isinstance(value, Mapping):
            raise _no_keys(kind, value, key)
        return build(kind, value, key, strict=strict)
    origin = _origin(kind)
    inner = get_args(kind)
    if origin is list and isinstance(value, list | tuple):
        entries = []
        for index, entry in enumerate(value):
            entries.append(_converted(inner[0], entry, f"{key}[{index}]", strict=strict))
        return tuple(entries) if get_origin(kind) is tuple else entries
    if origin is dict and isinstance(value, Mapping):
        by_name = {}
        for name, entry in value.items():
            if not isinstance(name, str):
                raise _MisfitError(f"{key}.{name}", entry, str)
            by_name[name] = _converted(inner[1], entry, f"{key}.{name}", strict=strict)
        return by_name
    try:
        return _exactly(origin, value) if strict else _scalar(origin, value)
    except (ValueError, OverflowError) as error:
        raise _MisfitError(key, value, kind) from error


def _example(kind: Any) -> str:
    """Returns a value of a type, as it is typed."""
    if _origin(kind) is list:
        return f"[{_EXAMPLES.get(get_args(kind)[0], '...')}]"
    return _EXAMPLES[_origin(kind)]


def _origin(kind: Any) -> Any:
    """Returns the class of a type, such as `list` of `list[int]` and of `Sequence[int]`."""
    origin = get_origin(kind) or kind
    return {Sequence: list, Mapping: dict, tuple: list}.get(origin, origin)


def _exactly(kind: object, value: object) -> object:
    """Returns a scalar that has its type already, as values of JSON have; an integer may be a float."""
    if isinstance(value, str) != (kind is str) or isinstance(value, bool) != (kind is bool):
        raise ValueError(value)
    return _scalar(kind, value)


def _scalar(kind: object, value: object) -> object:
    """Returns a value as a bool, int, float or str, by the same rules as OmegaConf.

    Raises:
      ValueError: it can't be converted.
      OverflowError: it is an integer that no float can represent.
    """
    if kind is bool:
        return _boolean(value)
    # To Python True is an integer, but as a number it is a mistake.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # A float is not an integer, not even 2.0, as in OmegaConf.
    if kind is int and (isinstance(value, str) or (is_number and not isinstance(value, float))):
        return int(value)  # type: ignore[call-overload]
    if kind is float and (isinstance(value, str) or is_number):
        return float(value)  # type: ignore[arg-type]
    # YAML has read numbers and booleans, and their texts are lost.
    if kind is str and isinstance(value, str):
        return value
    raise ValueError(value)


def _boolean(value: object) -> bool:
    if isinstance(value, bool | int):
        return bool(value)
    word = str(value).lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    # An integer that is written as a string, "00" too, counts as the integer.
    return int(word) != 0


def _invalid_type(misfit: _MisfitError, field_key: str, spec: Field[Any]) -> ConfigError:
    fix = fix_of(None, spec, field_key, misfit.key)
    # A field without a default or an example gets an example of its type.
    if default_or_example(spec) is None and misfit.key == field_key:
        fix = f"set {field_key}={_example(misfit.kind)}"
    if isinstance(misfit.value, list) and misfit.key == field_key:
        with suppress(ValueError, OverflowError):
            for entry in misfit.value:
                _scalar(misfit.kind, entry)
            fix = f"to run each, type -m {field_key}={shown(misfit.value)[1:-1]}"
    return misfit.as_error(fix)


def _no_keys(kind: type, value: object, key: str) -> ConfigError:
    # In YAML, the entries of `options` are written next to the others.
    names = [name for name in fields_of(kind) if name != "options"]
    fix = f"write {key}.{_likely_entry(kind, value)}"
    if key.endswith("]"):
        fix = f"write {{{names[0]}: ...}} there"
    return invalid(key, value, problem=f"must be a mapping with the keys {', '.join(names)}", fix=fix)


def _likely_entry(kind: type, value: object) -> str:
    """Returns the first key of a mapping that takes a value, with it; else the first one with an example, or any."""
    specs = fields_of(kind)
    for name, spec in specs.items():
        with suppress(_MisfitError, ConfigError):
            typed = _converted(_types_of(cast("Hashable", kind))[name], value, name, strict=True)
            is_scalar = isinstance(typed, str | int | float)
            if is_scalar and problem_of(typed, constraint_of(spec)) is None:
                return f"{name}={shown(value)}"
    examples = {name: default_or_example(spec) for name, spec in specs.items()}
    name = next((name for name in examples if examples[name] is not None), next(iter(specs)))
    return f"{name}={shown(examples[name])}"


def type_in_words(kind: Any) -> str:
    """Returns a type in words, as `a list of integers`, for error messages and the reference."""
    inner = get_args(kind)
    if _origin(kind) is dict:
        return f"a mapping from names to {_plural(inner[1])}"
    if _origin(kind) is list:
        return f"a list of {_plural(inner[0])}"
    return _SINGULAR.get(kind, "any value")


def _plural(kind: Any) -> str:
    plain = without_none(kind)
    if plain is not kind:
        return f"{_plural(plain)} or null"
    if _origin(kind) is list:
        return f"lists of {_plural(get_args(kind)[0])}"
    if is_dataclass(kind):
        return "mappings"
    return _PLURAL.get(kind, "values")


def without_none(kind: Any) -> Any:
    """Returns the type `T` of an optional one, `T | None`; any other as it is."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    return next(option for option in get_args(kind) if option is not type(None))

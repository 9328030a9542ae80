"""Strict reading of untrusted JSON as a dataclass: every value has the expected type, or an error names its place."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from runner.config.build import build, fields_of
from runner.errors import ConfigError, in_one_line

T = TypeVar("T")


class MisfitError(ValueError):
    """A value of a wrong type."""


def read(kind: type[T], content: dict[str, Any], where: str) -> T:
    """Returns a mapping as a dataclass; its integers are at least 0, and its texts are printable.

    Nothing is converted, and entries that the class lacks are ignored. What is in a field with `Any` in its type is
    not checked.

    Args:
      kind: the dataclass.
      content: parsed JSON.
      where: its place, in words.

    Raises:
      MisfitError: a value is missing, or has another type.
    """
    known = {name: content[name] for name in fields_of(kind) if name in content}
    try:
        value = build(kind, known, where, strict=True)
    except ConfigError as error:
        raise MisfitError(in_one_line(str(error))) from None
    _check(value, where)
    return value


def _check(value: object, where: str) -> None:
    if is_dataclass(value):
        for spec in fields(value):
            if "Any" not in str(spec.type):
                _check(getattr(value, spec.name), f"{where}.{spec.name}")
    elif isinstance(value, dict):
        for key, entry in value.items():
            _check(key, f"the name of an entry of {where}")
            _check(entry, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for entry in value:
            _check(entry, where)
    elif isinstance(value, str) and not value.isprintable():
        raise MisfitError(f"{where} must be a printable string")
    elif isinstance(value, int) and value < 0:
        raise MisfitError(f"{where} must be an integer of at least 0")

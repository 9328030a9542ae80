"""Declarations of config keys: a key is one field of a dataclass, with the values that it accepts.

    epochs: int = integer(3, at_least=1)

The value check, the error message, the type column of docs/reference.md and the values that the fuzzer tries are all
derived from the field; see `runner.config.values`, `tests.docs.reference` and `tests.campaign.fuzz_cases`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import Field, dataclass, field
from typing import Any, TypeVar

from runner.config.locations import folder_problem, path_problem

_METADATA = "constraint"

# A pattern of these characters alone, dots and escapes included, always compiles. `layout=auto` and recorded layouts
# have thousands of such rules, and compiling each would take longer than the rest of the checks.
_LITERAL = re.compile(r"(?:[\w/.-]|\\\W)*")

# Names of arrays, which may be those of a file's columns in any language.
IDENTIFIER = re.compile(r"[^\W\d]\w*")

# The types of a field and of its default: optional if it may be null.
Integer = TypeVar("Integer", int, int | None)
Number = TypeVar("Number", float, float | None)
Text = TypeVar("Text", str, str | None)
Value = TypeVar("Value")

# Returns what is wrong with a value, as a full clause, perhaps with `; <its fix>`. None: the value is valid.
Test = Callable[[Any], str | None]


def valid_if(is_valid: Callable[[Any], object], problem: str) -> Test:
    """Returns a test with one problem, of values for which `is_valid` returns False, 0, None or an empty string."""

    def test(value: Any) -> str | None:
        if is_valid(value):
            return None
        return problem

    return test


# A string, list or mapping that has entries. A prompt may be a blank or a line break.
NOT_EMPTY = valid_if(len, "must not be empty")


@dataclass(frozen=True)
class Constraint:
    """The values of its type that a key accepts.

    Bounds, choices and `test` apply to the value, or to every entry of a list or mapping. null is accepted wherever
    the type allows it.

    Attributes:
      at_least: lower bound, allowed.
      above: lower bound, not allowed.
      at_most: upper bound, allowed.
      below: upper bound, not allowed.
      unit: of a number, such as `seconds`.
      choices: allowed values; empty: any.
      is_optional: null is one of the choices, and the default.
      entry_names: what each entry of a list of fixed length is; empty: the list may have any length.
      whole: the test of a list or mapping as a whole.
      test: the test of one value, in place of bounds.
      rule: the test in words, as the type column of the reference shows it.
      example: a valid value, which error messages suggest; None: the default.
      key_pattern: of the keys of a mapping; None: any.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    unit: str = ""
    choices: tuple[object, ...] = ()
    is_optional: bool = False
    entry_names: tuple[str, ...] = ()
    whole: Test | None = None
    test: Test | None = None
    rule: str = ""
    example: object = None
    key_pattern: re.Pattern[str] | None = None

    def bounds(self) -> str:
        """Returns the bounds in words, such as `above 0 and below 1`; empty if there are none."""
        if self.at_least is not None and self.at_most is not None:
            text = f"from {as_text(self.at_least)} to {as_text(self.at_most)}"
        else:
            limits = (
                ("at least", self.at_least),
                ("above", self.above),
                ("at most", self.at_most),
                ("below", self.below),
            )
            phrases = []
            for words, limit in limits:
                if limit is not None:
                    phrases.append(f"{words} {as_text(limit)}")
            text = " and ".join(phrases)
        if text and self.unit:
            return f"{text} {self.unit}"
        return text

    def is_within(self, value: float) -> bool:
        """Returns whether a number is within the bounds."""
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )


def constraint_of(spec: Field[Any]) -> Constraint:
    """Returns the constraint of a dataclass's field."""
    # A field that no helper of this module declares takes any value of its type.
    constraint = spec.metadata.get(_METADATA, Constraint())
    assert isinstance(constraint, Constraint)
    return constraint


def as_text(value: float) -> str:
    """Returns a number with separators, or in the shortest form of a fraction."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}"


def _declare(default: Value, constraint: Constraint) -> Value:
    """Returns a dataclass's field, without a default where that is MISSING; its type is that of its value."""
    metadata = {_METADATA: constraint}
    if isinstance(default, list | dict):
        # A dataclass rejects a mutable default: each config gets a copy of its own.
        return field(default_factory=default.copy, metadata=metadata)  # type: ignore[return-value]
    return field(default=default, metadata=metadata)


def integer(
    default: Integer,
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    unit: str = "",
    example: int | None = None,
) -> Integer:
    """Declares an integer, which must fit into int32 unless `at_most` is larger: devices count in that."""
    return _declare(default, Constraint(at_least=at_least, at_most=at_most, unit=unit, example=example))


def number(
    default: Number,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    unit: str = "",
    example: float | None = None,
) -> Number:
    """Declares a number; bounds are compared with the nearest float32, which the devices compute in."""
    return _declare(default, Constraint(at_least, above, at_most, below, unit=unit, example=example))


def choice(default: Value, *choices: object, example: object = None) -> Value:
    """Declares one of several values; a default of None allows null."""
    return _declare(default, Constraint(choices=choices, is_optional=default is None, example=example))


def text(default: Text, *, example: str) -> Text:
    """Declares a string that is not blank."""
    test = valid_if(str.strip, "must not be blank")
    return _declare(default, Constraint(test=test, rule="not blank", example=example))


def file_path(default: Text, *, example: str) -> Text:
    """Declares the path of a file or folder, which need not exist."""
    return _declare(default, Constraint(test=path_problem, rule="path", example=example))


def stored_path(default: Text, *, example: str) -> Text:
    """Declares the path of a file or folder, or its URL in an object store; it need not exist."""
    return _declare(default, Constraint(test=folder_problem, rule="path or URL", example=example))


def pattern(default: str, *, example: str) -> str:
    """Declares a regular expression."""
    return _declare(default, Constraint(test=pattern_problem, rule="regular expression", example=example))


def checked(default: Any, **constraint: Any) -> Any:
    """Declares a key of any type by the fields of `Constraint`, a required one with the default `MISSING`."""
    return _declare(default, Constraint(**constraint))


def pattern_problem(value: str) -> str | None:
    """Returns why a string is not a regular expression, or None."""
    if not value:
        return "must be a regular expression"
    if _LITERAL.fullmatch(value):
        return None
    try:
        re.compile(value)
    except re.error as error:
        return f"must be a regular expression ({error})"
    return None

"""Declarations of config keys: the values that a key may hold, beside its type, default and documentation.

A key is one field of a dataclass, declared with a helper of this module:

    epochs: int = integer(3, at_least=1)

The value check, the error message, the type column of docs/reference.md and the values that the fuzzer tries are all
derived from the field; see `runner.config.values`, `tests.docs.reference` and `tests.campaign.fuzz_cases`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import Field, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from runner.config import urls

_METADATA = "constraint"

# The longest file name, in bytes, of the usual file systems (ext4, XFS, APFS, NTFS).
_LONGEST_NAME = 255

# A pattern of these characters alone, dots and escapes included, always compiles. `layout=auto` and recorded layouts
# have thousands of such rules, and compiling each would take longer than the rest of the checks.
_LITERAL = re.compile(r"(?:[\w/.-]|\\\W)*")

# Names of arrays, which may be those of a file's columns in any language.
IDENTIFIER = re.compile(r"[^\W\d]\w*")


def with_fix(problem: str, otherwise: str) -> tuple[str, str]:
    """Returns a problem and its fix: the one that it has after a semicolon, else another one."""
    problem, _, fix = problem.partition("; ")
    return problem, fix or otherwise


# Returns what is wrong with a value, as a full clause, perhaps with `; <its fix>`. None: the value is valid.
Test = Callable[[Any], str | None]


def valid_if(is_valid: Callable[[Any], object], problem: str) -> Test:
    """Returns a test of values with one problem."""

    def test(value: Any) -> str | None:
        if is_valid(value):
            return None
        return problem

    return test


# A string, list or mapping that has entries. A prompt may be a blank or a line break.
NOT_EMPTY = valid_if(len, "must not be empty")
# With these, a field that may be null gets an optional type, and any other field a plain one.
Integer = TypeVar("Integer", int, int | None)
Number = TypeVar("Number", float, float | None)
Text = TypeVar("Text", str, str | None)
Value = TypeVar("Value")


@dataclass(frozen=True)
class Constraint:
    """The values that a key may hold, beyond its type.

    Bounds, choices and `test` apply to the value, or to every entry of a list or mapping. null is always allowed where
    the type allows it.

    Attributes:
      at_least: lower bound, allowed.
      above: lower bound, not allowed.
      at_most: upper bound, allowed.
      below: upper bound, not allowed.
      unit: of a number, such as `seconds`.
      choices: allowed values; empty: any.
      is_optional: null is a choice too, and the default.
      entry_names: what each entry of a list of fixed length is; empty: the list may have any length.
      whole: returns what is wrong with a whole list or mapping, or None.
      test: returns what is wrong with one value, or None.
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
        """Returns the bounds in words, as `above 0 and below 1`; empty: there are none."""
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
    metadata = {_METADATA: constraint}
    # Without a default, where that is MISSING.
    declared: Value = field(default=default, metadata=metadata)
    if isinstance(default, list | dict):
        # A dataclass rejects a mutable default: each config gets a copy of its own.
        declared = field(default_factory=default.copy, metadata=metadata)  # type: ignore[assignment]
    return declared


def integer(
    default: Integer,
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    unit: str = "",
    example: int | None = None,
) -> Integer:
    """Declares an integer, at most the largest of int32, which devices count in, with an example where the default
    is null.
    """
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
    constraint = Constraint(at_least, above, at_most, below, unit=unit, example=example)
    return _declare(default, constraint)


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
    """Declares a key of any type, required if the default is `dataclasses.MISSING`, by the fields of `Constraint`."""
    return _declare(default, Constraint(**constraint))


def path_problem(value: str) -> str | None:
    """Returns why a string can't be a path on any file system, or None."""
    if not value.strip():
        return "must be a path"
    if urls.is_url(value):
        return "must be a local path (only trainer.checkpoint.folder takes a URL)"
    if is_root(value):
        return "must not be the root of the file system"
    if "\0" in value:
        return "must be a path, which has no NUL byte"
    # File systems limit the bytes of a name, not its characters.
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in value.split("/")):
        return f"must be a path whose names have at most {_LONGEST_NAME} bytes"
    try:
        Path(value).expanduser()
    except RuntimeError:
        # `~name` is the home folder of a user whom this machine does not know.
        home = Path(value).parts[0]
        return f"there is no user {home[1:]!r}; use an absolute path, or ./{home} for a folder with that name"
    return None


def is_root(path: str) -> bool:
    """Returns whether a path is the root of the file system, as `/` and `/tmp/..` are."""
    return path.startswith("/") and not os.path.normpath(path).strip("/")


def folder_problem(value: str) -> str | None:
    """Returns why a string can be neither a path nor the URL of a folder in an object store, or None."""
    if urls.is_in_memory(value):
        # A store of tests.
        return "is the memory of one process, which is lost when that ends"
    if urls.is_url(value):
        return urls.problem(value)
    return path_problem(value)


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

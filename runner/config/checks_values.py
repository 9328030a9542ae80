"""Checks of single values, for `runner.checks.run` and its parts."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path

from runner.errors import did_you_mean, invalid

# of float32; devices take what is smaller for 0
_TINY = 2.0**-126
_LARGEST = (2 - 2.0**-23) * 2.0**127
_NAME = 255  # bytes of a file's name
_WHOLE = 2**31  # int32, in which devices count


def one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    """Raises ConfigError for a word that is none of the allowed ones."""
    if value not in allowed:
        raise invalid(key, value, problem=f"one of {', '.join(allowed)}", fix=did_you_mean(value, list(allowed)))


def positive(key: str, value: int | None) -> None:
    """Raises ConfigError for a number below 1; null passes."""
    if value is not None and value < 1:
        raise invalid(key, value, problem="a whole number of at least 1", fix=f"set {key}=1 or more")


def within(key: str, value: float | None, low: float, high: float, *, open_low: bool = False) -> None:
    """Raises ConfigError for a number that is not finite, below `low` (or equal to it), or not below `high`.

    It is compared as float32, which the devices compute in: 1e-50 is not above 0 there, nor 0.99999999999 below 1.
    """
    if value is None:
        return
    held = as_float32(value)
    good = (low < held if open_low else low <= held) and held < high
    if not good:
        span = f"{'above' if open_low else 'at least'} {low:g}" + ("" if math.isinf(high) else f" and below {high:g}")
        ours = "" if held == value or not math.isfinite(value) else f", and float32 makes {held:g} of this one"
        raise invalid(key, value, problem=f"a number {span}{ours}", fix=f"choose {key} in that range")


def folder(key: str, value: str | None) -> None:
    """Raises ConfigError for what can't be the name of a folder on any file system, or is of nobody's home."""
    if value is None:
        return
    if "\0" in value or any(len(os.fsencode(part)) > _NAME for part in value.split("/")):
        raise invalid(key, value[:40], problem=f"a path of names of at most {_NAME} bytes", fix=f"shorten {key}")
    try:
        Path(value).expanduser()
    except RuntimeError as error:
        home = Path(value).parts[0]
        allowed = f"a path, and there is no user of the home {home}"
        raise invalid(
            key, value, problem=allowed, fix=f"write it in full, or ./{home} for what is called so"
        ) from error


def as_float32(value: float) -> float:
    """Returns what a device takes a number for: the nearest float32, 0 where that is subnormal, else an infinity."""
    if abs(value) < _TINY:
        return 0.0
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def numbers(group: object, prefix: str = "") -> None:
    """Checks every number of a config: finite, and of a size that the devices' float32 and int32 hold.

    Args:
      group: a dataclass of the schema.
      prefix: its dotted key, with a dot at its end.

    Raises:
      ConfigError: names the first that is not.
    """
    for key, value in leaves(group, prefix):
        if isinstance(value, float):
            span = f"a number as float32 holds it: 0, or of a size from {_TINY:.2g} to {_LARGEST:.2g}"
            held = as_float32(value)
            if not math.isfinite(held) or (value and not held):
                raise invalid(key, value, problem=span, fix=f"choose {key} in that range")
        elif isinstance(value, int) and not -_WHOLE <= value < _WHOLE:
            span = f"a whole number from {-_WHOLE} to {_WHOLE - 1}"
            raise invalid(key, value, problem=span, fix=f"choose {key} in that range")


def finite(content: Mapping[str, object], prefix: str) -> None:
    """Raises ConfigError for a NaN or an infinity anywhere among plain values, as a builder's options are."""
    for key, value in leaves(content, prefix):
        if isinstance(value, float) and not math.isfinite(value):
            raise invalid(key, value, problem="a finite number", fix=f"set {key} to one")


def leaves(content: object, prefix: str) -> Iterator[tuple[str, object]]:
    """Yields (dotted key, value) of what is no dataclass, mapping or list itself.

    Args:
      content: a dataclass, a mapping, a list or a value.
      prefix: the content's own dotted key, with a dot at its end.
    """
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


def changed(config: object, keys: Sequence[str]) -> list[str]:
    """Returns those of a dataclass's keys that are not at the schema's default."""
    plain = type(config)()
    return [key for key in keys if getattr(config, key) != getattr(plain, key)]

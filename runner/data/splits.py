"""TFDS split expressions such as `train`, `train[:5000]` and `train[10%:]+test[-1000:]`, parsed without TFDS."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.errors import invalid

_TERM = re.compile(r"(?P<name>[\w-]+)(?:\[(?P<start>[^\[\]:]*):(?P<stop>[^\[\]:]*)\])?")
_COUNT = re.compile(r"-?\d[\d_]*")
_PERCENT = re.compile(r"(-?\d+(?:\.\d*)?)%")


@dataclass(frozen=True)
class Slice:
    """One term: a split, or `all`, and its bounds, counts or percents, of which negative ones count from the end."""

    name: str
    start: float | None = None
    stop: float | None = None
    percent: bool = False


def parse_split(text: str) -> tuple[Slice, ...]:
    """Parses a split expression as TFDS does, except for its shard units.

    Raises:
      ValueError: the text is not one; the message is the problem, without a fix.

    >>> parse_split("train[:5000]")
    (Slice(name='train', start=None, stop=5000, percent=False),)
    """
    return tuple(map(_parse_term, text.split("+")))


def parse_key(key: str, text: str) -> tuple[Slice, ...]:
    """Parses the value of `dataset.<key>`; raises ConfigError if it is not a split expression."""
    try:
        return parse_split(text)
    except ValueError as error:
        # The shell removes the outer quotes, and Hydra the inner ones.
        split = "train" if key == "train" else "test"
        fix = f"set \"dataset.{key}='{split}[:5000]'\" or another range, such as {split}[10%:]"
        raise invalid(f"dataset.{key}", text, problem=str(error), fix=fix) from error


def resolve(slices: Sequence[Slice], sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Returns `(split, start, stop)` per term, with 0 <= start < stop <= size; `all` is one range per split.

    Percents are rounded to the closest example, TFDS's default.

    Raises:
      ValueError: a split does not exist, or a term is outside its split or selects nothing.
    """
    ranges: list[tuple[str, int, int]] = []
    for term in slices:
        if term.name == "all":
            for name, size in sizes.items():
                if size:
                    ranges.append((name, 0, size))
        elif term.name not in sizes:
            raise ValueError(f"there is no split {term.name}, the splits are {', '.join(sizes)}")
        else:
            start, stop = _resolve_bounds(term, sizes[term.name])
            ranges.append((term.name, start, stop))
    return ranges


def _parse_term(text: str) -> Slice:
    text = text.strip()
    match = _TERM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a split, which is name, name[a:b] or a sum of these")
    name = match["name"]
    start = match["start"]
    stop = match["stop"]
    if start is None:
        return Slice(name)
    if name == "all":
        raise ValueError("all can't be sliced, but a sum of splits can, such as train[:50%]+test[:50%]")
    if not start and not stop:
        raise ValueError(f"{text!r} has no bound, and the whole split is {name}")
    # An empty bound fits both units.
    units = {bound.endswith("%") for bound in (start, stop) if bound}
    if len(units) > 1:
        raise ValueError(f"{text!r} mixes counts and percents in one range")
    percent = units == {True}
    return Slice(name, _parse_bound(start, percent, text), _parse_bound(stop, percent, text), percent)


def _parse_bound(text: str, percent: bool, term: str) -> float | None:
    if not text:
        return None
    pattern = _COUNT
    if percent:
        pattern = _PERCENT
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"{term!r} has the invalid bound {text!r}, which must be a count or a percent")
    if not percent:
        return int(text)
    value = float(match[1])
    if abs(value) > 100:
        raise ValueError(f"{term!r} has the invalid bound {text!r}, percents must be between -100% and 100%")
    return value


def _resolve_bounds(term: Slice, size: int) -> tuple[int, int]:
    start = 0
    # Python's own rules for a slice, except that a range outside the split is an error.
    stop = size
    if term.start is not None:
        start = _resolve_bound(term, term.start, size)
    if term.stop is not None:
        stop = _resolve_bound(term, term.stop, size)
    if start >= stop:
        raise ValueError(f"the range {start}:{stop} of {term.name}, which has {size} examples, selects nothing")
    return start, stop


def _resolve_bound(term: Slice, bound: float, size: int) -> int:
    index = int(bound)
    if term.percent:
        index = round(bound * size / 100.0)
    if abs(index) > size:
        raise ValueError(f"{term.name} has {size} examples, so the bound {index} is outside it")
    if index < 0:
        # As in Python, a negative bound counts from the end.
        index += size
    return index

"""TFDS split expressions, read and resolved without TFDS: `train`, `train[:5000]`, `train[10%:]+test[-1000:]`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_FORMS = "name, name[a:b] or a sum of these, with a and b counts or percents, as train[:5000] or train[10%:]+test"
_TERM = re.compile(r"(?P<name>[\w-]+)(?:\[(?P<start>[^\[\]:]*):(?P<stop>[^\[\]:]*)\])?")
_COUNT = re.compile(r"-?\d[\d_]*")
_PERCENT = re.compile(r"(-?\d+(?:\.\d*)?)%")


@dataclass(frozen=True)
class Slice:
    """One term of a split expression.

    Attributes:
      name: the split's name; `all` stands for every split.
      start: first example, or null for the beginning; negative counts from the end.
      stop: one past the last example, or null for the end; negative counts from the end.
      percent: whether `start` and `stop` are percents of the split and not counts.
    """

    name: str
    start: float | None = None
    stop: float | None = None
    percent: bool = False


def parse_split(text: str) -> tuple[Slice, ...]:
    """Reads a split expression as TFDS reads it, without its shard units.

    Args:
      text: the expression, such as `train[:50%]+test[20:40]`.

    Returns:
      The terms of the sum, in order.

    Raises:
      ValueError: the text is no such expression; the message says what is.

    Example:
      >>> parse_split("train[:5000]")
      (Slice(name='train', start=None, stop=5000, percent=False),)
    """
    return tuple(_term(part.strip()) for part in text.split("+"))


def resolve(slices: Sequence[Slice], sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Turns terms into ranges of examples, percents rounded to the closest example as TFDS does by default.

    Args:
      slices: terms from `parse_split`.
      sizes: number of examples of each split, in the dataset's order.

    Returns:
      `(split, start, stop)` a term, with 0 <= start < stop <= size; `all` becomes one for each split.

    Raises:
      ValueError: a split does not exist, or a term lies outside its split or selects nothing.
    """
    ranges: list[tuple[str, int, int]] = []
    for term in slices:
        if term.name == "all":
            ranges.extend((name, 0, size) for name, size in sizes.items() if size)
        elif term.name not in sizes:
            raise ValueError(f"there is no split {term.name}, there are {', '.join(sizes)}")
        else:
            ranges.append((term.name, *_bounds(term, sizes[term.name])))
    return ranges


def _term(text: str) -> Slice:
    match = _TERM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no split, write {_FORMS}")
    name = match["name"]
    start = match["start"]
    stop = match["stop"]
    if start is None:
        return Slice(name)
    if name == "all":
        raise ValueError("all can't be sliced, name the splits, as train[:50%]+test[:50%]")
    if not start and not stop:
        raise ValueError(f"{text!r} has no bound, write {name} for the whole split")
    percents = {bound.endswith("%") for bound in (start, stop) if bound}
    if len(percents) > 1:
        raise ValueError(f"{text!r} mixes counts and percents, write both bounds in one unit")
    percent = percents == {True}
    return Slice(name, _bound(start, percent, text), _bound(stop, percent, text), percent)


def _bound(text: str, percent: bool, term: str) -> float | None:
    if not text:
        return None
    match = (_PERCENT if percent else _COUNT).fullmatch(text)
    if match is None:
        raise ValueError(f"{term!r} has the bound {text!r}, write {_FORMS}")
    if not percent:
        return int(text)
    value = float(match[1])
    if abs(value) > 100:
        raise ValueError(f"{term!r} has the bound {text!r}, percents lie between -100% and 100%")
    return value


def _bounds(term: Slice, size: int) -> tuple[int, int]:
    def absolute(bound: float | None, default: int) -> int:
        if bound is None:
            return default
        index = round(bound * size / 100.0) if term.percent else int(bound)
        if abs(index) > size:
            raise ValueError(f"{term.name} has {size} examples, which leaves no place for the bound {index}")
        return index + size if index < 0 else index

    start = absolute(term.start, 0)
    stop = absolute(term.stop, size)
    if start >= stop:
        raise ValueError(f"the range {start}:{stop} of {term.name}, of {size} examples, selects nothing")
    return start, stop

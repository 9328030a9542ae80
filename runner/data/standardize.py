"""Numeric inputs of a like size: (x - mean) / deviation, both of the train split, told apart by column."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from runner.data.base import Array, ArraySource, ArraySpec, DataSource, Encoding, ExampleSource, Rows
from runner.data.cut import Whole
from runner.errors import invalid

_KEY = "dataset.standardize"
_BLOCK = 4096  # examples that are read at once
Statistics = tuple[Array, Array]  # float64 mean and deviation, one number a column


def chosen(wanted: object, specs: Mapping[str, ArraySpec], keep: Collection[str]) -> list[str]:
    """Returns the names of the arrays to standardize.

    Args:
      wanted: `dataset.standardize`, checked: true, false, or names.
      specs: of the dataset.
      keep: names that `true` leaves as they are, as the target's.

    Raises:
      ConfigError: there is no such array, or it holds no numbers to be standardized.
    """
    if not isinstance(wanted, list):
        return [name for name, spec in specs.items() if wanted and name not in keep and _is_plain(spec)]
    able = [name for name, spec in specs.items() if _is_number(spec)]
    for name in wanted:
        if name not in able:
            allowed = f"names of numeric arrays, which are {', '.join(able) or 'none'}"
            raise invalid(_KEY, name, problem=allowed, fix=f"set {_KEY}=true for all of them")
    return list(wanted)


def _is_number(spec: ArraySpec) -> bool:
    return spec.dtype in ("float32", "int32") and not spec.is_image and not (spec.dtype == "int32" and spec.names)


def _is_plain(spec: ArraySpec) -> bool:
    """Tells whether nobody would want it otherwise: whole numbers in a row may be indices, as of words in a text."""
    return _is_number(spec) and (spec.dtype == "float32" or not spec.shape)


def measured(source: DataSource, names: Collection[str]) -> Encoding:
    """Returns mean and deviation of a split's arrays, in float64.

    Args:
      source: the train split.
      names: of the arrays; a column is an entry of the last dim, or all of an array without dims.
    """
    count: dict[str, int] = dict.fromkeys(names, 0)
    mean: dict[str, Array] = {}
    squares: dict[
        str, Array
    ] = {}  # sums of squared distances to the mean, joined as by Chan, Golub and LeVeque (1979)
    for start in range(0, source.size, _BLOCK):
        batch = source.read(np.arange(start, min(start + _BLOCK, source.size)))
        for name in names:
            values = batch[name].astype(np.float64).reshape(-1, (batch[name].shape[1:] or (1,))[-1])
            own_mean = values.mean(0)
            own_squares = ((values - own_mean) ** 2).sum(0)
            before = count[name]
            total = count[name] + len(values)
            apart = own_mean - mean.get(name, 0.0)
            squares[name] = squares.get(name, 0.0) + own_squares + apart**2 * (before * len(values) / total)
            mean[name] = mean.get(name, 0.0) + apart * (len(values) / total)
            count[name] = total
    deviation = {name: np.sqrt(squares[name] / count[name]) for name in names}
    return Encoding(
        mean={name: tuple(map(float, mean[name])) for name in names},
        # A column of one value stays 0 after its mean is gone.
        deviation={name: tuple(map(float, np.where(one > 0, one, 1.0))) for name, one in deviation.items()},
    )


def standardized(whole: Whole, encoding: Encoding, names: Collection[str]) -> Whole:
    """Returns a dataset whose arrays have been standardized, float32.

    Args:
      whole: as its source gave it.
      encoding: of which mean and deviation are taken.
      names: of the arrays.

    Raises:
      ConfigError: the statistics are of other columns.
    """
    statistics = {}
    for name in names:
        columns = (next(iter(whole.splits.values())).specs[name].shape or (1,))[-1]
        mean = encoding.mean.get(name)
        deviation = encoding.deviation.get(name)
        if mean is None or deviation is None or len(mean) != columns:
            had = "none" if mean is None else f"{len(mean)}"
            raise invalid(
                _KEY, name, problem=f"the run recorded the mean of {had} columns of it, {columns} are there",
                fix="give the data that the run had",
            )  # fmt: skip
        statistics[name] = (np.array(mean), np.array(deviation))
    found = replace(whole.encoding, mean=dict(encoding.mean), deviation=dict(encoding.deviation))
    splits = {split: _applied(source, statistics) for split, source in whole.splits.items()}
    return replace(whole, splits=splits, encoding=found)


def _applied(source: DataSource, statistics: Mapping[str, Statistics]) -> DataSource:
    specs = {
        name: replace(spec, dtype="float32") if name in statistics else spec for name, spec in source.specs.items()
    }
    if isinstance(source, ArraySource):
        return ArraySource(_scaled(source.arrays, statistics), specs)
    assert isinstance(source, ExampleSource), "what is no array is made one example at a time"
    return Standardized(source, specs, statistics, source.holds_gil)


def _scaled(arrays: Mapping[str, Array], statistics: Mapping[str, Statistics]) -> dict[str, Array]:
    found = dict(arrays)
    for name, (mean, deviation) in statistics.items():
        values = (arrays[name].astype(np.float64) - _fitting(mean)) / _fitting(deviation)
        found[name] = values.astype(np.float32)
    return found


def _fitting(numbers: Array) -> Array:
    """Returns a number, which any shape takes, or as many as the last dim has."""
    return numbers[0] if len(numbers) == 1 else numbers


@dataclass(frozen=True, eq=False)
class Standardized:
    """A source of single examples that are standardized as they are made."""

    inner: ExampleSource
    specs: Mapping[str, ArraySpec]
    statistics: Mapping[str, Statistics]
    holds_gil: bool

    @property
    def size(self) -> int:
        """Number of examples."""
        return self.inner.size

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        """Returns the arrays of one example."""
        return _scaled(self.inner.example(row, epoch), self.statistics)

    def example_name(self, row: int) -> str:
        """Returns what a message calls an example."""
        return self.inner.example_name(row)

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some examples."""
        return _scaled(self.inner.read(rows), self.statistics)

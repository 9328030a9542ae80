# ruff: noqa: D102 - a source overrides what DataSource documents
"""Standardization of numeric inputs: (x - mean) / standard deviation, per column; both are of the train split."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from runner.data import base
from runner.data.base import Array, ArraySource, ArraySpec, ChangedSource, Dataset, DataSource, Encoding, Rows
from runner.errors import invalid

_KEY = "dataset.standardize"
# Examples per read while the statistics are measured: it bounds the memory, and each block costs one NumPy call.
_BLOCK = 4096
# Examples with images are read in smaller blocks, of this size.
_BLOCK_BYTES = 1 << 26
# float64 mean and standard deviation, one number per column.
Statistics = tuple[Array, Array]


def columns_to_standardize(setting: object, specs: Mapping[str, ArraySpec], unscaled: Collection[str]) -> list[str]:
    """Returns the names of the arrays to standardize; `true` leaves the `unscaled` unchanged, such as the target."""
    if isinstance(setting, list):
        numeric = [name for name, spec in specs.items() if _is_numeric(spec)]
        for name in setting:
            if name not in numeric:
                problem = f"must be a numeric array of the dataset (these are: {', '.join(numeric) or 'none'})"
                raise invalid(_KEY, name, problem=problem, fix=f"set {_KEY}=true for all of them")
        return list(setting)
    if not setting:
        return []
    names = []
    for name, spec in specs.items():
        # An integer vector may hold indices, such as the tokens of a text, so only its name in the config selects it.
        is_integer_vector = spec.dtype != "float32" and bool(spec.shape)
        if name not in unscaled and _is_numeric(spec) and not is_integer_vector:
            names.append(name)
    return names


def _is_numeric(spec: ArraySpec) -> bool:
    counts_categories = spec.dtype == "int32" and bool(spec.names)
    return spec.dtype in ("float32", "int32") and not spec.is_image and not counts_categories


def measure(source: DataSource, names: Collection[str]) -> Encoding:
    """Returns the mean and standard deviation of arrays of the train split, in float64.

    A column is an entry of the last dim, or the whole array if it has no dims.
    """
    moments: defaultdict[str, _Moments] = defaultdict(_Moments)
    # The arrays that are read with all others of their examples.
    of_examples = []
    for name in names:
        complete = source.column(name)
        if complete is None:
            of_examples.append(name)
            continue
        for start in range(0, source.size, _BLOCK):
            moments[name].add(complete[start : start + _BLOCK])
    if of_examples:
        block = max(1, min(_BLOCK, _BLOCK_BYTES // max(1, base.example_bytes(source.specs))))
        for start in range(0, source.size, block):
            batch = source.read(np.arange(start, min(start + block, source.size)))
            for name in of_examples:
                moments[name].add(batch[name])
    mean = {}
    deviation = {}
    for name in names:
        mean[name] = tuple(moments[name].mean.tolist())
        deviation[name] = tuple(moments[name].deviation().tolist())
    return Encoding(mean=mean, deviation=deviation)


class _Moments:
    """Running mean and sum of squared distances to it, merged per block (Chan, Golub and LeVeque, 1979)."""

    def __init__(self) -> None:
        self._count = 0
        self.mean: Array = np.zeros(1)
        self._squares: Array = np.zeros(1)

    def add(self, array: Array) -> None:
        values = array.astype(np.float64).reshape(-1, math.prod(array.shape[1:][-1:]))
        block_mean = values.mean(0)
        block_squares = ((values - block_mean) ** 2).sum(0)
        count_before = self._count
        count = count_before + len(values)
        difference = block_mean - self.mean
        self._squares = self._squares + block_squares + difference**2 * (count_before * len(values) / count)
        self.mean = self.mean + difference * (len(values) / count)
        self._count = count

    def deviation(self) -> Array:
        """Returns the standard deviation of each column; 1 for a constant one, which then becomes 0."""
        deviation = np.sqrt(self._squares / self._count)
        return np.where(deviation > 0, deviation, 1.0)


def standardized(dataset: Dataset, encoding: Encoding, names: Collection[str]) -> Dataset:
    """Returns a dataset with standardized arrays, float32, by the mean and deviation of an encoding."""
    statistics = {}
    for name in names:
        shape = dataset.specs[name].shape
        columns = math.prod(shape[-1:])
        mean = encoding.mean.get(name)
        deviation = encoding.deviation.get(name)
        if mean is None or deviation is None or len(mean) != columns:
            recorded = "no statistics of it"
            if mean is not None:
                recorded = f"statistics of {len(mean)} columns"
            problem = f"the run recorded {recorded}, and this data has {columns}"
            raise invalid(_KEY, name, problem=problem, fix="use data with the columns that the run had")
        # For an array without dims, numbers without dims.
        statistics[name] = (np.reshape(mean, shape[-1:]), np.reshape(deviation, shape[-1:]))
    validation = dataset.validation
    if validation is not None:
        validation = _standardized(validation, statistics)
    return replace(
        dataset,
        train=_standardized(dataset.train, statistics),
        test=_standardized(dataset.test, statistics),
        validation=validation,
        encoding=replace(dataset.encoding, mean=dict(encoding.mean), deviation=dict(encoding.deviation)),
    )


def _standardized(source: DataSource, statistics: Mapping[str, Statistics]) -> DataSource:
    specs = dict(source.specs)
    for name in statistics:
        specs[name] = replace(specs[name], dtype="float32")
    if isinstance(source, ArraySource):
        arrays = _scaled(source.arrays, statistics)
        for name in statistics:
            arrays[name].flags.writeable = False
        return ArraySource(arrays, specs)
    return Standardized(source, specs, statistics)


def _scaled(arrays: Mapping[str, Array], statistics: Mapping[str, Statistics]) -> dict[str, Array]:
    scaled = dict(arrays)
    for name, (mean, deviation) in statistics.items():
        scaled[name] = ((arrays[name].astype(np.float64) - mean) / deviation).astype(np.float32)
    return scaled


@dataclass(frozen=True, eq=False)
class Standardized(ChangedSource):
    """A source that standardizes its examples when they are read."""

    statistics: Mapping[str, Statistics]

    @property
    def one_at_a_time(self) -> bool:
        return self.source.one_at_a_time

    def read(self, rows: Rows) -> dict[str, Array]:
        return _scaled(self.source.read(rows), self.statistics)

    def column(self, name: str) -> Array | None:
        return None if name in self.statistics else self.source.column(name)

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        return _scaled(self.source.example(row, epoch), self.statistics)

    def original(self, row: int) -> dict[str, Array]:
        return _scaled(self.source.original(row), self.statistics)

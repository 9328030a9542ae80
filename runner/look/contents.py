"""What can be said of a dataset without a model: sizes, arrays, counts by class, statistics. Imports NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runner.data.base import Array, ArraySpec, Dataset, DataSource, column

_SAMPLE = 1000  # examples that are read where every one would have to be made
_MOST_CLASSES = 100  # different whole numbers that are counted one by one
_MOST_ROWS = 20  # of a table
_EXAMPLES = 5  # rows of data that are shown
_LONGEST = 24  # characters of a cell


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
      title: above it.
      columns: their titles.
      rows: a cell a column; the first is words, the others are numbers or short.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def splits(data: Dataset) -> dict[str, DataSource]:
    """Returns the splits that there are by name."""
    found = {"train": data.train, "validation": data.validation, "test": data.test}
    return {name: source for name, source in found.items() if source is not None}


def tables(data: Dataset, targets: Sequence[str], *, measures: bool = False) -> list[Table]:
    """Returns everything that is said of a dataset.

    Args:
      data: neither standardized nor augmented.
      targets: names of the arrays that are predicted.
      measures: whether they are quantities, however few values they have.
    """
    found = outline(data, targets)
    values = {name: {split: _values(source, name) for split, source in splits(data).items()} for name in data.specs}
    quantities = targets if measures else ()
    counted = [
        name
        for name, spec in data.specs.items()
        if name not in quantities and _is_counted(spec, values[name]["train"])
    ]
    ordered = sorted(counted, key=lambda name: name not in targets)
    found += [_counts(name, data.specs[name], values[name], splits(data)) for name in ordered]
    measured = [name for name, spec in data.specs.items() if name not in counted and not spec.is_image]
    rows = [row for name in measured for row in _statistics(name, data.specs[name], values[name]["train"])]
    if rows:
        more = f", {_MOST_ROWS} of {len(rows):,}" if len(rows) > _MOST_ROWS else ""
        of = _sampled(data.train, values[measured[0]]["train"])
        columns = ("values", "smallest", "mean", "median", "deviation", "largest")
        found.append(Table(f"train{of}, as it is{more}", columns, tuple(rows[:_MOST_ROWS])))
    return found


def outline(data: Dataset, targets: Sequence[str]) -> list[Table]:
    """Returns how large the splits are, and what an example is, for which none is read."""
    return [_sizes(data), _arrays(data.specs, targets)]


def _sizes(data: Dataset) -> Table:
    rows = []
    for name, source in splits(data).items():
        size = sum(spec.bytes for spec in source.specs.values()) * source.size
        rows.append(
            (
                name,
                f"{source.size:,}",
                f"{size / 1024:,.0f} KiB" if size < 2**20 else f"{size / 2**20:,.1f} MiB",
                data.selection.get(name, name),
            )
        )
    return Table("splits", ("split", "examples", "as arrays", "is"), tuple(rows))


def _arrays(specs: Mapping[str, ArraySpec], targets: Sequence[str]) -> Table:
    rows = []
    for name, spec in specs.items():
        dims = [f"{dim} {size}" if dim else str(size) for dim, size in _dims(spec)]
        names = f"{len(spec.names)}: {', '.join(spec.names[:4])}{', ...' if len(spec.names) > 4 else ''}"
        role = "target" if name in targets else ""
        rows.append((name, " x ".join(dims) or "one number", spec.dtype, names if spec.names else "", role))
    return Table("arrays of one example", ("array", "dims", "dtype", "names", "role"), tuple(rows))


def _dims(spec: ArraySpec) -> list[tuple[str, int]]:
    names = spec.dims or ("",) * len(spec.shape)
    return list(zip(names, spec.shape, strict=True))


def _values(source: DataSource, name: str) -> Array:
    """Returns one array (n, ...) of a split: all of it, or of the first examples where they have to be made."""
    if source.specs[name].is_image:
        return np.empty(0)
    whole = column(source, name)
    return source.read(np.arange(min(source.size, _SAMPLE)))[name] if whole is None else whole


def _sampled(source: DataSource, values: Array) -> str:
    return f", its first {len(values):,} examples" if len(values) < source.size else ""


def _is_counted(spec: ArraySpec, values: Array) -> bool:
    """Tells whether an array holds classes, or a column of zeros and ones a label."""
    if spec.shape and len(spec.shape) == 1 and len(spec.names) == spec.shape[0]:
        return bool(np.isin(np.unique(values[:_SAMPLE]), (0, 1)).all())
    if spec.shape or not np.issubdtype(np.dtype(spec.dtype), np.integer):
        return False
    return bool(spec.names) or len(np.unique(values)) <= _MOST_CLASSES


def _counts(name: str, spec: ArraySpec, values: Mapping[str, Array], sources: Mapping[str, DataSource]) -> Table:
    """Returns how many examples of each split are of each class, or have each label."""
    if spec.shape:
        labels = list(spec.names)
        counts = {split: (held != 0).sum(axis=0) for split, held in values.items()}
    else:
        numbers = np.arange(len(spec.names)) if spec.names else np.unique(np.concatenate(list(values.values())))
        labels = list(spec.names) or [str(number) for number in numbers]
        counts = {split: (held[:, None] == numbers).sum(axis=0) for split, held in values.items()}
    order = list(range(len(labels)))
    note = ""
    if len(labels) > _MOST_ROWS:
        order_by = np.argsort(-counts["train"], kind="stable")
        order = [*order_by[: _MOST_ROWS // 2].tolist(), *order_by[-_MOST_ROWS // 2 :].tolist()]
        note = f": the {_MOST_ROWS // 2} most and the {_MOST_ROWS // 2} least frequent of {len(labels):,}"
    rows = [(labels[place], *(_share(counts[split], place, values[split]) for split in values)) for place in order]
    titles = (name, *(f"{split}{_sampled(sources[split], held)}" for split, held in values.items()))
    return Table(f"examples by {name}{note}", titles, tuple(rows))


def _share(counts: Array, place: int, values: Array) -> str:
    count = int(counts[place])
    return f"{count:,} ({count / max(len(values), 1):.1%})"


def _statistics(name: str, spec: ArraySpec, values: Array) -> list[tuple[str, ...]]:
    """Returns a row a column of an array of numbers."""
    if not np.issubdtype(values.dtype, np.number) or not len(values):
        return []
    flat = values.reshape(len(values), -1).astype(np.float64)
    if spec.shape and (len(spec.names) != flat.shape[1] or len(spec.shape) > 1):
        return [(name, *_figures(flat.ravel()))]
    names = [f"{name} {one}" for one in spec.names] if spec.shape else [name]
    return [(one, *_figures(flat[:, place])) for place, one in enumerate(names)]


def _figures(values: Array) -> tuple[str, ...]:
    found = (values.min(), values.mean(), np.median(values), values.std(), values.max())
    return tuple(f"{value:,.6g}" for value in found)


def examples(source: DataSource, specs: Mapping[str, ArraySpec]) -> Table:
    """Returns the first examples of a split as a table; what is no single number or name is shown by its beginning."""
    arrays = source.read(np.arange(min(source.size, _EXAMPLES)))
    rows = [
        (str(row), *(cell(arrays[name][row], spec) for name, spec in specs.items()))
        for row in range(len(next(iter(arrays.values()))))
    ]
    return Table("train, the first examples", ("example", *specs), tuple(rows))


def cell(value: Array, spec: ArraySpec) -> str:
    """Returns one example's value of an array in words.

    >>> cell(np.array(1), ArraySpec((), "int64", names=("cat", "dog")))
    'dog'
    """
    if not spec.shape and spec.names and np.issubdtype(np.dtype(spec.dtype), np.integer):
        return spec.names[int(value)] if 0 <= int(value) < len(spec.names) else str(value)
    if spec.shape and len(spec.names) == value.size and _is_counted(spec, value[None]):
        text = ", ".join(name for name, one in zip(spec.names, value, strict=True) if one)
    else:
        text = " ".join([f"{number:.5g}" for number in np.ravel(value)[:6].tolist()] + ["..."] * (value.size > 6))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."

"""Tables of a dataset: sizes, arrays, counts by class, statistics and examples. Imports NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from runner.data.base import Array, ArraySpec, Dataset, DataSource, example_bytes
from runner.data.packing import SEGMENTS, TOKENS
from runner.data.vocabulary import Vocabulary

_SAMPLE = 1000  # examples that are read where each must be decoded or generated, which takes about a second
_MOST_CLASSES = 100  # an integer array with more different values is taken for a quantity
_MOST_ROWS = 20  # of a table: it fits on a screen
_EXAMPLES = 5  # rows of data that are shown
_SHOWN_CHARACTERS = 24  # of a cell: eight columns fit into the width of a pipe
_SHOWN_NUMBERS = 6  # of an array in a cell
_SHOWN_TEXT = 400  # of the first sequence: a paragraph
_SHOWN_TOKENS = 20  # of the first sequence: a line
_SHOWN_NAMES = 4  # of classes or columns in a cell


@dataclass(frozen=True)
class Table:
    """A table of text; the first cell of a row is a name."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(data: Dataset, targets: Sequence[str], *, measures: bool = False) -> list[Table]:
    """Returns all tables of a dataset that is neither standardized nor augmented.

    The targets are quantities if `measures`, however few values they have.
    """
    counts: list[Table] = []
    statistics: list[tuple[str, ...]] = []
    sources = _splits(data)
    note = ""
    for name, spec in data.specs.items():
        if spec.is_image:
            continue
        values = {split: _values(source, name) for split, source in sources.items()}
        if _is_counted(spec, values["train"]) and not (measures and name in targets):
            place = 0 if name in targets else len(counts)
            counts.insert(place, _counts(name, spec, values, sources))
        else:
            note = note or _sample_note(data.train, values["train"])
            statistics += _statistics(name, spec, values["train"])
    found = [*outline(data, targets), *counts]
    if statistics:
        title = f"train{note}, as stored"
        if len(statistics) > _MOST_ROWS:
            title += f", {_MOST_ROWS} of {len(statistics):,}"
        columns = ("values", "smallest", "mean", "median", "deviation", "largest")
        found.append(Table(title, columns, tuple(statistics[:_MOST_ROWS])))
    return found


def outline(data: Dataset, targets: Sequence[str]) -> list[Table]:
    """Returns the tables that need no example: the sizes of the splits, and the arrays of an example."""
    return [_sizes(data), _arrays(data.specs, targets)]


def _splits(data: Dataset) -> dict[str, DataSource]:
    sources = {"train": data.train, "test": data.test}
    if data.validation is not None:
        sources = {"train": data.train, "validation": data.validation, "test": data.test}
    return sources


def _sizes(data: Dataset) -> Table:
    rows = []
    for name, source in _splits(data).items():
        size = example_bytes(source.specs) * source.size
        shown = f"{size / 2**20:,.1f} MiB"
        if size < 2**20:
            shown = f"{size / 1024:,.0f} KiB"
        rows.append((name, f"{source.size:,}", shown, data.selection.get(name, name)))
    return Table("splits", ("split", "examples", "as arrays", "is"), tuple(rows))


def _arrays(specs: Mapping[str, ArraySpec], targets: Sequence[str]) -> Table:
    rows = []
    for name, spec in specs.items():
        dim_names = spec.dims or ("",) * len(spec.shape)
        dims = [f"{dim} {size}".strip() for dim, size in zip(dim_names, spec.shape, strict=True)]
        names = ""
        if spec.names:
            names = f"{len(spec.names)}: {_beginning(spec.names, _SHOWN_NAMES, ', ')}"
        role = "target" if name in targets else ""
        rows.append((name, " x ".join(dims) or "one number", spec.dtype, names, role))
    return Table("arrays of one example", ("array", "dims", "dtype", "names", "role"), tuple(rows))


def _beginning(entries: Sequence[object], count: int, joint: str = " ") -> str:
    shown = list(map(str, entries[:count]))
    if len(entries) > count:
        shown.append("...")
    return joint.join(shown)


def _values(source: DataSource, name: str) -> Array:
    """Returns one array (n, ...) of a split: all of it, or of the first examples where each must be decoded."""
    whole = source.column(name)
    if whole is not None:
        return whole
    return source.read(np.arange(min(source.size, _SAMPLE)))[name]


def _sample_note(source: DataSource, values: Array) -> str:
    return f", its first {len(values):,} examples" if len(values) < source.size else ""


def _is_counted(spec: ArraySpec, values: Array) -> bool:
    """Returns whether an array holds classes, or one column of zeros and ones per label."""
    if len(spec.shape) == 1 and len(spec.names) == spec.shape[0]:
        return bool(np.isin(np.unique(values[:_SAMPLE]), (0, 1)).all())
    if spec.shape or not np.issubdtype(np.dtype(spec.dtype), np.integer):
        return False
    return bool(spec.names) or len(np.unique(values)) <= _MOST_CLASSES


def _counts(name: str, spec: ArraySpec, values: Mapping[str, Array], sources: Mapping[str, DataSource]) -> Table:
    """Returns how many examples of each split are of each class, or have each label."""
    counts: dict[str, Array] = {}
    labels = list(spec.names)
    if spec.shape:
        for split, array in values.items():
            counts[split] = (array != 0).sum(axis=0)
    else:
        numbers = np.arange(len(labels))
        if not labels:
            numbers = np.unique(np.concatenate(list(values.values())))
            labels = list(map(str, numbers))
        for split, array in values.items():
            counts[split] = (array[:, None] == numbers).sum(axis=0)
    order = list(range(len(labels)))
    note = ""
    if len(labels) > _MOST_ROWS:
        order = np.argsort(-counts["train"], kind="stable").tolist()[:_MOST_ROWS]
        note = f": the {_MOST_ROWS} most frequent of {len(labels):,}"
    rows = []
    for index in order:
        cells = []
        for split, array in values.items():
            count = int(counts[split][index])
            cells.append(f"{count:,} ({count / max(len(array), 1):.1%})")
        rows.append((labels[index], *cells))
    titles = [f"{split}{_sample_note(sources[split], array)}" for split, array in values.items()]
    return Table(f"examples by {name}{note}", (name, *titles), tuple(rows))


def _statistics(name: str, spec: ArraySpec, values: Array) -> list[tuple[str, ...]]:
    """Returns one row per column of an array of numbers; one row where its columns have no names."""
    if not np.issubdtype(values.dtype, np.number) or not len(values):
        return []
    columns = {name: values}
    if len(spec.shape) == 1 and len(spec.names) == spec.shape[0]:
        columns = {f"{name} {column}": values[:, index] for index, column in enumerate(spec.names)}
    rows = []
    for column, numbers in columns.items():
        flat = numbers.astype(np.float64)
        figures = (flat.min(), flat.mean(), np.median(flat), flat.std(), flat.max())
        rows.append((column, *(f"{figure:,.6g}" for figure in figures)))
    return rows


def examples(source: DataSource, specs: Mapping[str, ArraySpec]) -> Table:
    """Returns the first examples of a split as a table; of an array with many numbers the first ones are shown."""
    count = min(source.size, _EXAMPLES)
    arrays = source.read(np.arange(count))
    rows = []
    for index in range(count):
        cells = [cell(arrays[name][index], spec) for name, spec in specs.items()]
        rows.append((str(index), *cells))
    return Table("train, the first examples", ("example", *specs), tuple(rows))


def cell(value: Array, spec: ArraySpec) -> str:
    """Returns one example's value of an array as text.

    >>> cell(np.array(1), ArraySpec((), "int64", names=("cat", "dog")))
    'dog'
    """
    is_class = not spec.shape and 0 <= int(value) < len(spec.names)
    if is_class:
        return spec.names[int(value)]
    if spec.shape and len(spec.names) == value.size and _is_counted(spec, value[None]):
        text = ", ".join(compress(spec.names, value))
    else:
        text = _beginning([f"{number:.5g}" for number in np.ravel(value).tolist()], _SHOWN_NUMBERS)
    if len(text) > _SHOWN_CHARACTERS:
        text = f"{text[: _SHOWN_CHARACTERS - 3]}..."
    return text


def text_tables(data: Dataset, vocabulary: Vocabulary) -> list[Table]:
    """Returns the tables of a text, of which the first sequence is read."""
    rows = [(name, f"{text.documents:,}", f"{text.tokens:,}") for name, text in data.texts.items()]
    kind = "bytes" if vocabulary.is_bytes else "byte pairs, or of a given tokenizer"
    end = "none" if vocabulary.end is None else f"{vocabulary.end_token!r} ({vocabulary.end})"
    about = (
        ("kind", kind),
        ("tokens", f"{vocabulary.size:,}"),
        ("end of a document", end),
        ("stored as", str(vocabulary.dtype)),
        ("sha256", vocabulary.sha256),
    )
    return [
        Table("text, by split", ("split", "documents", "tokens"), tuple(rows)),
        Table("vocabulary", ("array", "is"), about),
        _first_sequence(data, vocabulary),
    ]


def _first_sequence(data: Dataset, vocabulary: Vocabulary) -> Table:
    arrays = data.train.read(np.arange(1))
    tokens = arrays[TOKENS][0]
    written = tokens
    if SEGMENTS in arrays:  # segment 0 is padding
        written = tokens[arrays[SEGMENTS][0] > 0]
    text = vocabulary.decode(written)
    shown = repr(text[:_SHOWN_TEXT])[1:-1]
    if len(text) > _SHOWN_TEXT:
        shown += "..."
    rows = ((TOKENS, _beginning(tokens.tolist(), _SHOWN_TOKENS)), ("text", shown))
    return Table("train, the first sequence", ("array", "begins"), rows)

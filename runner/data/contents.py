"""Tables of a dataset: sizes, arrays, counts by class, statistics and examples. Imports NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runner.data.base import Array, ArraySpec, Dataset, DataSource, column
from runner.data.packing import SEGMENTS, TOKENS
from runner.data.vocabulary import BYTES, Vocabulary

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


def splits(data: Dataset) -> dict[str, DataSource]:
    """Returns the splits of a dataset by name."""
    sources = {"train": data.train, "validation": data.validation, "test": data.test}
    present: dict[str, DataSource] = {}
    for name, source in sources.items():
        if source is not None:
            present[name] = source
    return present


def tables(data: Dataset, targets: Sequence[str], *, measures: bool = False) -> list[Table]:
    """Returns all tables of a dataset that is neither standardized nor augmented.

    The targets are quantities if `measures`, however few values they have.
    """
    sources = splits(data)
    values: dict[str, dict[str, Array]] = {}
    for name in data.specs:
        values[name] = {split: _values(source, name) for split, source in sources.items()}
    counted = []
    for name, spec in data.specs.items():
        is_quantity = measures and name in targets
        if not is_quantity and _is_counted(spec, values[name]["train"]):
            counted.append(name)
    counted.sort(key=lambda name: name not in targets)  # targets first
    found = outline(data, targets)
    for name in counted:
        found.append(_counts(name, data.specs[name], values[name], sources))
    rows: list[tuple[str, ...]] = []
    sample = None
    for name, spec in data.specs.items():
        if name in counted or spec.is_image:
            continue
        if sample is None:
            sample = _sample_note(data.train, values[name]["train"])
        rows += _statistics(name, spec, values[name]["train"])
    if rows:
        title = f"train{sample or ''}, as stored"
        if len(rows) > _MOST_ROWS:
            title += f", {_MOST_ROWS} of {len(rows):,}"
        columns = ("values", "smallest", "mean", "median", "deviation", "largest")
        found.append(Table(title, columns, tuple(rows[:_MOST_ROWS])))
    return found


def outline(data: Dataset, targets: Sequence[str]) -> list[Table]:
    """Returns the tables that need no example: the sizes of the splits, and the arrays of an example."""
    return [_sizes(data), _arrays(data.specs, targets)]


def _sizes(data: Dataset) -> Table:
    rows = []
    for name, source in splits(data).items():
        size = sum(spec.bytes for spec in source.specs.values()) * source.size
        shown = f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size / 1024:,.0f} KiB"
        rows.append((name, f"{source.size:,}", shown, data.selection.get(name, name)))
    return Table("splits", ("split", "examples", "as arrays", "is"), tuple(rows))


def _arrays(specs: Mapping[str, ArraySpec], targets: Sequence[str]) -> Table:
    rows = []
    for name, spec in specs.items():
        dim_names = spec.dims or ("",) * len(spec.shape)
        dims = [f"{dim} {size}".strip() for dim, size in zip(dim_names, spec.shape, strict=True)]
        names = ""
        if spec.names:
            names = f"{len(spec.names)}: {', '.join(spec.names[:_SHOWN_NAMES])}"
            if len(spec.names) > _SHOWN_NAMES:
                names += ", ..."
        role = "target" if name in targets else ""
        rows.append((name, " x ".join(dims) or "one number", spec.dtype, names, role))
    return Table("arrays of one example", ("array", "dims", "dtype", "names", "role"), tuple(rows))


def _values(source: DataSource, name: str) -> Array:
    """Returns one array (n, ...) of a split: all of it, or of the first examples where each must be decoded."""
    if source.specs[name].is_image:
        return np.empty(0)
    whole = column(source, name)
    if whole is not None:
        return whole
    return source.read(np.arange(min(source.size, _SAMPLE)))[name]


def _sample_note(source: DataSource, values: Array) -> str:
    return f", its first {len(values):,} examples" if len(values) < source.size else ""


def _is_counted(spec: ArraySpec, values: Array) -> bool:
    """Returns whether an array holds classes, or one column of zeros and ones per label."""
    is_named_by_column = len(spec.shape) == 1 and len(spec.names) == spec.shape[0]
    if is_named_by_column:
        return bool(np.isin(np.unique(values[:_SAMPLE]), (0, 1)).all())
    if spec.shape or not np.issubdtype(np.dtype(spec.dtype), np.integer):
        return False
    return bool(spec.names) or len(np.unique(values)) <= _MOST_CLASSES


def _counts(name: str, spec: ArraySpec, values: Mapping[str, Array], sources: Mapping[str, DataSource]) -> Table:
    counts: dict[str, Array] = {}
    if spec.shape:
        labels = list(spec.names)
        for split, array in values.items():
            counts[split] = (array != 0).sum(axis=0)
    else:
        if spec.names:
            labels = list(spec.names)
            numbers = np.arange(len(labels))
        else:
            numbers = np.unique(np.concatenate(list(values.values())))
            labels = [str(number) for number in numbers]
        for split, array in values.items():
            counts[split] = (array[:, None] == numbers).sum(axis=0)
    order = list(range(len(labels)))
    note = ""
    if len(labels) > _MOST_ROWS:
        half = _MOST_ROWS // 2
        by_frequency = np.argsort(-counts["train"], kind="stable").tolist()
        order = [*by_frequency[:half], *by_frequency[-half:]]
        note = f": the {half} most and the {half} least frequent of {len(labels):,}"
    rows = []
    for index in order:
        shares = [_share(int(counts[split][index]), len(values[split])) for split in values]
        rows.append((labels[index], *shares))
    titles = [f"{split}{_sample_note(sources[split], array)}" for split, array in values.items()]
    return Table(f"examples by {name}{note}", (name, *titles), tuple(rows))


def _share(count: int, total: int) -> str:
    return f"{count:,} ({count / max(total, 1):.1%})"


def _statistics(name: str, spec: ArraySpec, values: Array) -> list[tuple[str, ...]]:
    """Returns one row per column of an array of numbers; one row where its columns have no names."""
    if not np.issubdtype(values.dtype, np.number) or not len(values):
        return []
    flat = values.reshape(len(values), -1).astype(np.float64)
    if not spec.shape:
        return [(name, *_figures(flat[:, 0]))]
    is_named_by_column = len(spec.shape) == 1 and len(spec.names) == flat.shape[1]
    if not is_named_by_column:
        return [(name, *_figures(flat.ravel()))]
    rows: list[tuple[str, ...]] = []
    for index, column_name in enumerate(spec.names):
        rows.append((f"{name} {column_name}", *_figures(flat[:, index])))
    return rows


def _figures(values: Array) -> tuple[str, ...]:
    figures = (values.min(), values.mean(), np.median(values), values.std(), values.max())
    return tuple(f"{figure:,.6g}" for figure in figures)


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
    is_class = not spec.shape and bool(spec.names) and np.issubdtype(np.dtype(spec.dtype), np.integer)
    if is_class:
        index = int(value)
        if 0 <= index < len(spec.names):
            return spec.names[index]
        return str(value)
    if spec.shape and len(spec.names) == value.size and _is_counted(spec, value[None]):
        text = ", ".join(name for name, is_set in zip(spec.names, value, strict=True) if is_set)
    else:
        text = " ".join(f"{number:.5g}" for number in np.ravel(value)[:_SHOWN_NUMBERS].tolist())
        if value.size > _SHOWN_NUMBERS:
            text += " ..."
    if len(text) > _SHOWN_CHARACTERS:
        text = f"{text[: _SHOWN_CHARACTERS - 3]}..."
    return text


def text_tables(data: Dataset, vocabulary: Vocabulary) -> list[Table]:
    """Returns the tables of a text, of which the first sequence is read."""
    rows = []
    for name, text in data.texts.items():
        bytes_per_token = text.bytes / max(text.tokens, 1)
        rows.append((name, f"{text.documents:,}", f"{text.tokens:,}", f"{text.bytes:,}", f"{bytes_per_token:.3g}"))
    end = "none"
    if vocabulary.end is not None:
        end = f"{vocabulary.end_token!r} ({vocabulary.end})"
    about = (
        ("kind", "bytes" if vocabulary.kind == BYTES else "byte pairs, or of a given tokenizer"),
        ("tokens", f"{vocabulary.size:,}"),
        ("end of a document", end),
        ("stored as", str(vocabulary.dtype)),
        ("sha256", vocabulary.sha256),
    )
    return [
        Table("text, by split", ("split", "documents", "tokens", "bytes", "bytes per token"), tuple(rows)),
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
    numbers = " ".join(map(str, tokens[:_SHOWN_TOKENS].tolist()))
    if len(tokens) > _SHOWN_TOKENS:
        numbers += " ..."
    return Table("train, the first sequence", ("array", "begins"), ((TOKENS, numbers), ("text", shown)))

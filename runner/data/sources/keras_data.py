"""What Keras's `fit` takes, as arrays by name: `(x, y)`, `((x, y), (x, y))`, and objects that return batches.

A `keras.utils.PyDataset` (`Sequence` of earlier versions) or a finite `tf.data.Dataset` is read once, from its first
batch to its last. Both are recognized by the names of their classes: this module imports neither library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from runner.config.import_path import raised
from runner.data.base import Array
from runner.errors import DataError, describe

# What the third entry of a batch becomes, where weights are asked for.
SAMPLE_WEIGHT = "sample_weight"
_TARGET = "label"
_SPLITS = {2: ("train", "test"), 3: ("train", "validation", "test")}


def by_split(returned: Any, where: str, *, weighted: bool = False) -> dict[str, Any]:
    """Returns the content of each split that a user's function returned, with arrays by name for what `fit` takes.

    `weighted`: batches may be `(x, y, sample_weight)`.
    """
    parts = {"train": returned}
    if isinstance(returned, tuple) and len(returned) in _SPLITS and all(map(_is_pair, returned)):
        parts = dict(zip(_SPLITS[len(returned)], returned, strict=True))
    elif isinstance(returned, Mapping) and "train" in returned and not any(map(is_column, returned.values())):
        parts = _with_string_keys(returned)
    places = split_places(parts, where)
    return {split: _split(content, places[split], weighted) for split, content in parts.items()}


def split_places(splits: Iterable[str], where: str) -> dict[str, str]:
    """Returns each split's name for messages, which is `where` if there are no others."""
    places = dict.fromkeys(splits, where)
    if len(places) > 1:
        for split in places:
            places[split] += f", split {split}"
    return places


def is_column(value: object) -> bool:
    """Returns whether a value is an array, or a list that is no list of examples."""
    if isinstance(value, list):
        return not value or not isinstance(value[0], Mapping | tuple)
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _split(content: Any, where: str, weighted: bool) -> object:
    if _is_pair(content):
        return named(content, where)
    is_sequence = _has_base(content, "Sequence", "keras", "tf_keras", "tensorflow")
    is_tensorflow = _has_base(content, "DatasetV2", "tensorflow")
    if is_sequence or is_tensorflow or _has_base(content, "PyDataset", "keras"):
        try:
            # Those of Keras 3 may have `num_batches` in place of a length, and no end.
            if hasattr(type(content), "num_batches"):
                numbers = range(content.num_batches)
            else:
                numbers = range(len(content))
        # The user's code may raise errors of any type.
        except Exception as error:
            raise DataError(
                f"{where}: its number of batches is unknown ({describe(error)}); give it an end (a tf.data.Dataset by "
                ".take(n) and tf.data.experimental.assert_cardinality(n)), or return arrays by name"
            ) from error
        if is_tensorflow:
            return _joined(content.as_numpy_iterator(), where, weighted)
        return _joined(map(content.__getitem__, numbers), where, weighted)
    first, last = _rows_at_ends(content)
    if last and (last < first or getattr(content, "batch_size", None) == first):
        batches = []
        for number in range(len(content)):  # a `map` would end where the user's code raises StopIteration
            batches.append(content[number])
        # Of batches, only the last may be shorter. Anything else is a dataset of examples of different sizes.
        if all(_rows_if_batch(batch) == first for batch in batches[:-1]):
            return _joined(iter(batches), where, weighted)
    if isinstance(content, list) and content and all(map(_rows_if_batch, content)):
        raise DataError(_batches_or_examples(where, content[0]))
    return content


def _batches_or_examples(where: str, entry: Any) -> str:
    return (
        f"{where}: its entries may be batches or examples ({_shapes(named(entry[-2:], where))}); join batches to "
        "arrays by name with np.concatenate, or return each example as {'x': x, 'label': y}"
    )


def _shapes(arrays: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())


def doubt(content: Any, where: str) -> str:
    """Returns an error if the entries of an object look like batches (x (B, ...), y (B,)); empty: they do not."""
    first, _ = _rows_at_ends(content)
    if not first or len(np.shape(content[0][-1])) != 1:
        return ""
    return _batches_or_examples(where, content[0])


def _rows_at_ends(content: Any) -> tuple[int, int]:
    """Returns the rows of the first and the last entry of a user's list or object; 0: it is no batch (x, y)."""
    if isinstance(content, Mapping | tuple | str) or _is_array(content):
        return 0, 0
    try:
        return _rows_if_batch(content[0]), _rows_if_batch(content[len(content) - 1])
    # The user's code may raise errors of any type, which are reported where it is read as examples.
    except Exception:
        return 0, 0


def _rows_if_batch(entry: object) -> int:
    """Returns the rows of an entry that may be a batch (x, y), arrays with one first dim; 0: it is none."""
    if not isinstance(entry, tuple | list) or len(entry) < 2:
        return 0
    arrays: list[Any] = []
    for part in entry:
        if isinstance(part, Mapping):
            arrays += part.values()
        else:
            arrays.append(part)
    # Examples may be vectors; a batch of vectors has two dims.
    if not all(map(_is_array, arrays)) or all(len(array.shape) == 1 for array in arrays):
        return 0
    rows = int(arrays[0].shape[0])
    for array in arrays:
        if int(array.shape[0]) != rows:
            return 0
    return rows


def _has_base(value: object, name: str, *packages: str) -> bool:
    return any(base.__name__ == name and base.__module__.partition(".")[0] in packages for base in type(value).__mro__)


def _is_array(value: object) -> bool:
    return hasattr(value, "dtype") and bool(getattr(value, "shape", ()))


def _is_pair(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    x, y = value
    has_named_inputs = isinstance(x, Mapping) and bool(x) and all(map(_is_array, x.values()))
    return (_is_array(x) or has_named_inputs) and _is_array(y)


def named(batch: object, where: str, *, weighted: bool = False) -> dict[str, Any]:
    """Returns the arrays of `(x, y)`, or `(x, y, sample_weight)`, by name."""
    if isinstance(batch, Mapping):
        return _with_string_keys(batch)
    if weighted and isinstance(batch, tuple | list) and len(batch) == 3:
        return {**named(batch[:2], where), SAMPLE_WEIGHT: batch[2]}
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        kind = f"{len(batch)} entries" if isinstance(batch, tuple | list) else type(batch).__name__
        raise DataError(
            f"{where} has {kind}, and must be (x, y) or arrays by name; return sample weights by name, as "
            "{'x': x, 'label': y, 'share': weights}, and set task.example_weight=share"
        )
    return {**_parts(batch[0], "x"), **targets(batch[1])}


def targets(y: Any) -> dict[str, Any]:
    """Returns the targets of `(x, y)` by name."""
    return _parts(y, _TARGET)


def _with_string_keys(content: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in content.items()}


def _parts(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return _with_string_keys(value)
    if isinstance(value, tuple | list) and value and all(map(_is_array, value)):
        return {f"{name}{index}": array for index, array in enumerate(value)}
    return {name: value}


def _joined(batches: Iterator[object], where: str, weighted: bool) -> dict[str, Array]:
    """Returns the arrays of all batches, by name; those of single examples if they have no dim of a batch."""
    parts: dict[str, list[Array]] = {}
    number = 0
    try:
        for batch in batches:
            number += 1
            place = f"{where}: batch {number}"
            arrays = {}
            for name, array in named(batch, place, weighted=weighted).items():
                arrays[name] = np.asarray(array)
            # `fit` takes batches only. A tf.data.Dataset that is not batched yet has a label without dims.
            if 0 in map(np.ndim, arrays.values()):
                arrays = {name: array[None] for name, array in arrays.items()}
            for name, array in arrays.items():
                parts.setdefault(name, []).append(array)
            lengths = set(map(len, arrays.values()))
            if len(lengths) > 1 or set(arrays) != set(parts):
                raise DataError(f"{place} has {_shapes(arrays)}; each batch needs the same arrays, of one length")
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}
    except DataError:
        raise
    # The user's code may raise errors of any type.
    except Exception as error:
        raise DataError(f"{where}: batch {number} can't be read: {raised(error)}") from error

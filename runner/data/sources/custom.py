"""`custom`: a user's own code, which returns arrays by name, or an object with `__len__` and `__getitem__`.

So have the datasets of Grain, PyTorch and Hugging Face. Either may come by split, as {train: ..., test: ...}.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, runtime_checkable

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data.base import Array, ArraySpec, DataSource, Encoding, Rows, in_order, stacked
from runner.data.cut import Whole
from runner.data.digest import digest
from runner.data.encode import Column, as_column, by_name, check_lengths, described, encode, numbers, shown, spec
from runner.errors import ConfigError, DataError, describe, invalid
from runner.host import definition

_KEY = "dataset._target_"
_FORMS = (
    "arrays by name, as {'image': ..., 'label': ...}, or an object with __len__ and __getitem__, or either "
    "of these by split, as {'train': ..., 'test': ...}"
)


@runtime_checkable
class Indexed(Protocol):
    """What a user's dataset is: an example a number."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> object: ...


@dataclass(frozen=True, eq=False)
class Examples:
    """A user's object, whose examples are made one at a time.

    Attributes:
      held: the object.
      specs: of its first example; every other one must have them.
      where: what messages call it.
      holds_gil: its `__getitem__` is Python code.
    """

    held: Indexed
    specs: Mapping[str, ArraySpec]
    where: str
    holds_gil: bool = True

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.held)

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        """Returns the arrays of one example.

        Raises:
          DataError: the user's code raised, or the example has other arrays than the first one.
        """
        del epoch
        arrays = _example(self.held, row, self.where)
        for name in [*self.specs, *arrays]:
            if name not in arrays or name not in self.specs:
                has = "has no" if name not in arrays else "has"
                raise DataError(
                    f"{self.example_name(row)} {has} {name!r}; the first one has {shown(list(self.specs))}"
                )
            arrays[name] = self._fitted(name, arrays[name], row)
        return arrays

    def _fitted(self, name: str, array: Array, row: int) -> Array:
        wanted = self.specs[name]
        if array.shape != wanted.shape:
            raise DataError(
                f"{self.example_name(row)}, {name}: shape {list(array.shape)}, and the first one's is "
                f"{list(wanted.shape)}; all examples need one shape"
            )
        if array.dtype == wanted.dtype:
            return array
        if wanted.dtype != "float32" or array.dtype != np.int32:  # a whole number among broken ones is one of them
            raise DataError(f"{self.example_name(row)}, {name}: {array.dtype}, and the first one's is {wanted.dtype}")
        return array.astype(np.float32)

    def example_name(self, row: int) -> str:
        """Returns what a message calls an example."""
        return f"{self.where}: example {row}"

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some examples."""
        return stacked(self.specs, rows, self.example)


def load(config: DatasetConfig, encoding: Encoding | None = None) -> Whole:
    """Calls the user's code.

    Args:
      config: of which `target` names it and `options` are its keyword arguments.
      encoding: of the run that the data is read for; None: words are numbered here.

    Raises:
      ConfigError: it can't be imported or called, or returns something else.
      DataError: it raises, or its data is not what an array can hold.
    """
    returned = _called(config)
    splits = _splits(returned)
    if splits is None:
        raise invalid(
            _KEY, config.target, problem=f"what returns {_FORMS}, not {_told_kind(returned)}", fix="return that"
        )
    where = {name: f"{config.target}, split {name}" if len(splits) > 1 else config.target for name in splits}
    tables = {name: _table(content, where[name]) for name, content in splits.items()}
    columns = {name: found for name, found in tables.items() if found is not None}
    if len(columns) == len(splits):
        arrays, encoding = encode(columns, where, encoding)
        sources: dict[str, DataSource] = dict(arrays)
        content = digest((name, source.arrays) for name, source in arrays.items())
    elif columns:
        raise DataError(f"{config.target}: one split is arrays and the other an object; return the same kind for all")
    else:
        sources = {}
        for name, held in splits.items():
            assert isinstance(held, Indexed)
            sources[name] = _examples(held, where[name])
        _check_alike(sources, where)
        content = _code_digest(config, sources)
    return Whole(
        name=config.target,
        version="",
        splits={name: sources[name] for name in in_order(sources)},
        digest=content,
        source=config.target,
        encoding=encoding or Encoding(),
    )


def _called(config: DatasetConfig) -> object:
    module, _, name = config.target.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # whatever a user's module raises at import
        fix = "fix that module"
        raise invalid(_KEY, config.target, problem=f"it does not import ({describe(error)})", fix=fix) from error
    if not callable(found):
        raise invalid(_KEY, config.target, problem=f"{name} is not callable", fix="name a function or a class")
    try:
        return found(**config.options)
    except (ConfigError, DataError):
        raise
    except Exception as error:  # whatever a user's code raises
        raise DataError(f"{_KEY}={config.target} failed: {describe(error)}") from error


def _is_array(value: object) -> bool:
    """Tells whether a value is an array, of any library, or a list that is no list of examples."""
    if isinstance(value, list):
        return not (value and isinstance(value[0], Mapping | tuple))
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _is_examples(value: object) -> bool:
    """Tells whether it has an example a number; a tuple has arrays, and a table of pandas columns by name."""
    has_names = callable(getattr(value, "keys", None))
    return isinstance(value, Indexed) and not isinstance(value, tuple | str | bytes) and not has_names


def _splits(returned: object) -> dict[str, object] | None:
    """Returns what was returned by split; None where it is none of the forms."""
    if not isinstance(returned, Mapping):
        return {"train": returned} if _is_examples(returned) else None
    values = list(returned.values())
    by_split = all((isinstance(one, Mapping) or _is_examples(one)) and not _is_array(one) for one in values)
    if "train" in returned and by_split:
        return {str(name): value for name, value in returned.items()}
    return {"train": returned} if values and all(_is_array(one) or isinstance(one, list) for one in values) else None


def _told_kind(returned: object) -> str:
    """Returns what was returned, in words, and of a dict the first value that is no array."""
    kind = type(returned).__name__
    if not isinstance(returned, Mapping):
        return kind
    name = next((name for name, value in returned.items() if not _is_array(value)), None)
    return f"an empty {kind}" if name is None else f"{kind} whose {name!r} is {type(returned[name]).__name__}"


def _table(content: object, where: str) -> dict[str, Column] | None:
    """Returns a split's arrays by name; None where it is an object of examples."""
    if not isinstance(content, Mapping):
        return None
    found: dict[str, Column] = {}
    for name, value in by_name(content.items(), where).items():
        place = f"{where}, {name}"
        found[name] = as_column(place, _as_array(value, place))
    if not found:
        raise DataError(f"{where} returned no arrays")
    check_lengths(found, where)
    return found


def _as_array(value: object, where: str) -> Array:
    try:
        array = np.asarray(value)
    except Exception as error:  # as a ragged list
        raise DataError(f"{where}: no array can be made of it ({describe(error)})") from error
    words = array.dtype == object and all(isinstance(one, str) for one in array.flat)  # as a column of pandas
    return array.astype(np.str_) if words else array


def _examples(held: Indexed, where: str) -> Examples:
    try:
        size = len(held)
    except Exception as error:  # as of a stream, which has no length
        raise DataError(f"{where}: it has no length ({describe(error)}); examples are read in any order") from error
    if size < 1:
        raise DataError(f"{where} has no examples")
    first = _example(held, 0, where)
    specs = {name: spec(array[None]) for name, array in first.items()}
    return Examples(held, specs, where)


def _example(held: Indexed, row: int, where: str) -> dict[str, Array]:
    try:
        returned = held[row]
    except DataError:
        raise
    except Exception as error:  # whatever a user's code raises
        raise DataError(f"{where}: example {row} failed: {describe(error)}") from error
    named = _named(returned, f"{where}: example {row}")
    return {name: _value(value, f"{where}: example {row}, {name}") for name, value in named.items()}


def _named(returned: object, where: str) -> dict[str, object]:
    """Returns an example's values by name; those of a tuple are called `x` (`x0`, `x1`, ...), the last one `label`."""
    if isinstance(returned, Mapping):
        return by_name(returned.items(), where)
    if isinstance(returned, tuple | list) and len(returned) > 1:
        *inputs, label = returned
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            return by_name([*inputs[0].items(), ("label", label)], where)
        names = ["x"] if len(inputs) == 1 else [f"x{place}" for place in range(len(inputs))]
        return dict(zip([*names, "label"], returned, strict=True))
    raise DataError(f"{where} is a {type(returned).__name__}; a dict, or a tuple (x, y), is needed")


def _value(value: object, where: str) -> Array:
    array = _as_array(value, where)
    if array.dtype.kind in "US":
        raise DataError(
            f"{where} is the word {str(array)[:40]!r}; return a number for each word, or arrays of all words"
        )
    found: Array = numbers(where, array[None])[0]
    return found


def _check_alike(sources: Mapping[str, DataSource], where: Mapping[str, str]) -> None:
    first, *others = sources
    for split in others:
        for name in {**sources[first].specs, **sources[split].specs}:
            mine = sources[first].specs.get(name)
            theirs = sources[split].specs.get(name)
            if mine is None or theirs is None or (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
                raise DataError(
                    f"{where[split]}: {name} is {_told(theirs)}, and {_told(mine)} in {where[first]}; all splits need "
                    "the same arrays"
                )


def _told(one: ArraySpec | None) -> str:
    return "missing" if one is None else f"{one.dtype} {list(one.shape)}"


def _code_digest(config: DatasetConfig, sources: Mapping[str, DataSource]) -> str:
    """Hashes what tells objects apart without making their examples: specs, sizes, options and the source code."""
    total = hashlib.sha256()
    for name, source in sorted(sources.items()):
        total.update(f"{name} {source.size} ".encode() + described(source.specs))
    total.update(json.dumps(config.options, sort_keys=True, default=str).encode())
    path = definition.source_of(config.target.rpartition(".")[0])
    total.update(path.read_bytes() if path else config.target.encode())
    return total.hexdigest()

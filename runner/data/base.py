# ruff: noqa: D102 - a source overrides what DataSource documents
"""The data interface of the runner: named arrays, specs, sources and datasets. Imports NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from runner.data.vocabulary import Vocabulary

Value = TypeVar("Value")
Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
Batch = Mapping[str, Array]

# float32 (B,): 1 for an example, 0 for padding. Nothing else marks padding.
WEIGHT = "weight"
# int32 (B,): the example's row in a split whose arrays an engine keeps on its devices.
ROW = "row"
# Names that no array of a dataset may have.
RESERVED = (WEIGHT, ROW)
# Without `task.target`, the first of these names that the dataset has is the target.
TARGETS = ("label", "labels", "target", "y")
SPLITS = ("train", "validation", "test")
# Dims of an image.
IMAGE_DIMS = ("height", "width", "channel")


@dataclass(frozen=True)
class ArraySpec:
    """One named array of a dataset; `shape` is that of one example, without the batch dim.

    `dims` has one name per dim, such as `height` or `sequence`, or is empty. `names` are those of the categories that
    an integer array counts, or of the columns of its last dim.
    """

    shape: tuple[int, ...]
    dtype: str
    dims: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def is_image(self) -> bool:
        """Returns whether the array has the dims height and width."""
        return "height" in self.dims and "width" in self.dims

    @property
    def bytes(self) -> int:
        """Bytes per example."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Draw:
    """What the order of an epoch depends on; `stream` distinguishes the orders of the parts of a mixture."""

    seed: int
    epoch: int
    shuffle: bool = True
    stream: tuple[int, ...] = ()

    def generator(self) -> np.random.Generator:
        """Returns the epoch's generator, which depends on nothing else: a resumed run need not replay others."""
        return np.random.default_rng([self.seed, self.epoch, *self.stream])

    def order(self, size: int) -> Rows:
        """Returns int64 (size,): any permutation, each equally likely; without `shuffle` 0 to size - 1."""
        if not self.shuffle:
            return np.arange(size, dtype=np.int64)
        return self.generator().permutation(size).astype(np.int64, copy=False)


class DataSource:
    """Random access to examples.

    A source has `specs` and `size`, and one of `read` and `example`, each of which is by default made of the other.
    One that wraps another passes on what else it should keep: names, order, whole columns.
    """

    # For types only: a dataclass would take a real property for the default of its field of that name.
    if TYPE_CHECKING:

        @property
        def specs(self) -> Mapping[str, ArraySpec]:
            """Specs of the arrays by name."""
            ...

        @property
        def size(self) -> int:
            """Number of examples."""
            ...

    @property
    def one_at_a_time(self) -> bool:
        """Whether it makes one example at a time, by decoding or by user code, so that workers can share its work."""
        return False

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some examples, each `(len(rows), *shape)`; the rows are in any order, also repeated.

        Raises:
          DataError: an example can't be read; the message names the file.
        """
        return stack_examples(self.specs, rows, self.example)

    def column(self, name: str) -> Array | None:
        """Returns one complete array, (size, ...); None if every example would have to be made for it."""
        del name
        return None

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        """Returns the arrays of one example; the epoch selects the random augmentation."""
        del epoch
        return take(self.read(np.array([row])), 0)

    def original(self, row: int) -> dict[str, Array]:
        """Returns one example, whose images have the size of their files."""
        return self.example(row)

    def example_name(self, row: int) -> str:
        """Returns the example's name for messages, such as its file name."""
        return f"example {row:,}"

    def epoch_order(self, draw: Draw) -> Rows:
        """Returns the rows of an epoch in order, int64 (size,): a permutation, unless the source is a mixture."""
        return draw.order(self.size)


class ExampleSource(DataSource):
    """A source that makes one example at a time; it has `example`, and the name of each."""

    @property
    def one_at_a_time(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class ChangedSource(DataSource):
    """The examples of another source, under their names and in its order, but changed when they are read."""

    source: DataSource
    specs: Mapping[str, ArraySpec]

    @property
    def size(self) -> int:
        return self.source.size

    def example_name(self, row: int) -> str:
        return self.source.example_name(row)

    def epoch_order(self, draw: Draw) -> Rows:
        return self.source.epoch_order(draw)


@dataclass(frozen=True, eq=False)
class ArraySource(DataSource):
    """Examples as complete read-only arrays (N, ...), in RAM or memory-mapped."""

    arrays: Mapping[str, Array]
    specs: Mapping[str, ArraySpec]

    @property
    def size(self) -> int:
        return len(next(iter(self.arrays.values())))

    def column(self, name: str) -> Array:
        return self.arrays[name]

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        del epoch
        return take(self.arrays, row)

    def read(self, rows: Rows) -> dict[str, Array]:
        has_mapped = any(isinstance(array, np.memmap) for array in self.arrays.values())
        if not has_mapped:
            return take(self.arrays, rows)
        # Memory-mapped rows are read in the order of the file, each once, because shuffled reads make the disk seek.
        sorted_rows, positions = np.unique(rows, return_inverse=True)
        return take(take(self.arrays, sorted_rows), positions)


def take(arrays: Mapping[str, Array], rows: Rows | slice | int) -> dict[str, Array]:
    """Returns some rows of each array; of one row, the example without its first dim."""
    return {name: array[rows] for name, array in arrays.items()}


def empty_arrays(specs: Mapping[str, ArraySpec], count: int) -> dict[str, Array]:
    """Returns uninitialized arrays (count, *shape) by name."""
    return {name: np.empty((count, *spec.shape), spec.dtype) for name, spec in specs.items()}


def example_bytes(specs: Mapping[str, ArraySpec]) -> int:
    """Returns the bytes of one example."""
    return sum(spec.bytes for spec in specs.values())


def in_memory(source: DataSource, most_bytes: float, count: int) -> DataSource:
    """Returns a source as arrays, read `count` examples at a time, if these take at most `most_bytes`, else itself."""
    if source.size * example_bytes(source.specs) > most_bytes:
        return source
    arrays = empty_arrays(source.specs, source.size)
    for start in range(0, source.size, count):
        rows = np.arange(start, min(start + count, source.size))
        for name, values in source.read(rows).items():
            arrays[name][rows] = values
    return ArraySource(arrays, source.specs)


def stack_examples(
    specs: Mapping[str, ArraySpec], rows: Rows, example: Callable[[int], Mapping[str, Array]]
) -> dict[str, Array]:
    """Returns the arrays (len(rows), *shape) of examples that are made one at a time."""
    stacked = empty_arrays(specs, len(rows))
    for index, row in enumerate(rows):
        for name, array in example(int(row)).items():
            stacked[name][index] = array
    return stacked


def in_split_order(splits: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the entries of splits with train, validation and test first."""
    first = {name: splits[name] for name in SPLITS if name in splits}
    return {**first, **splits}


@dataclass(frozen=True)
class Encoding:
    """How the data became numbers; it is recorded with a run, so that later data is read the same way.

    `categories` are the names of an integer array that was read from strings. `mean` was subtracted from a float array
    and the result divided by `deviation`: one number per column, or one if the array has no dims.
    """

    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mean: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    deviation: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for the record of a run."""
        content: dict[str, Any] = {
            "categories": dict(self.categories),
            "mean": dict(self.mean),
            "deviation": dict(self.deviation),
        }
        if self.vocabulary is not None:
            content["vocabulary"] = self.vocabulary.to_json()
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Encoding:
        """Reads the result of `to_json`."""
        vocabulary = None
        if content.get("vocabulary") is not None:
            vocabulary = Vocabulary.from_json(content["vocabulary"])
        return cls(
            categories=_as_tuples(content.get("categories", {}), str),
            mean=_as_tuples(content.get("mean", {}), float),
            deviation=_as_tuples(content.get("deviation", {}), float),
            vocabulary=vocabulary,
        )


def _as_tuples(values: Mapping[str, Sequence[Any]], kind: Callable[[Any], Value]) -> dict[str, tuple[Value, ...]]:
    return {name: tuple(map(kind, entries)) for name, entries in values.items()}


@dataclass(frozen=True)
class TextSize:
    """Documents of a text that have tokens, and all tokens with end tokens."""

    documents: int
    tokens: int


@dataclass(frozen=True, eq=False)
class FullDataset:
    """All splits of a source, before the config's split expressions are applied; all have the same specs."""

    name: str  # such as `mnist` or `emnist/letters`, or the name of a file or folder
    version: str  # the builder's; empty if there is none
    splits: Mapping[str, DataSource]
    digest: str  # sha256 (hex) of all splits
    source: str  # where the data came from, for the record
    encoding: Encoding = field(default_factory=Encoding)
    about: Mapping[str, str] = field(default_factory=dict)  # split -> description, if its name does not say enough
    texts: Mapping[str, TextSize] = field(default_factory=dict)  # split -> its size, of text
    doubt: str = ""  # an error for tasks of one target per example, if the examples may be batches


@dataclass(frozen=True, eq=False)
class Dataset:
    """The train, validation and test examples that the config selects; other fields are those of `FullDataset`."""

    name: str
    version: str
    train: DataSource
    test: DataSource  # for the final evaluation and for runner.evaluate
    validation: DataSource | None  # for evaluations during training; None: those use `test`
    digest: str  # of the full dataset, independent of the selection
    source: str
    selection: Mapping[str, str] = field(default_factory=dict)  # split -> such as `train without the 144 of test`
    encoding: Encoding = field(default_factory=Encoding)
    texts: Mapping[str, TextSize] = field(default_factory=dict)  # of the source's own splits

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        """Specs of the arrays, the same for every split."""
        return self.train.specs

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Vocabulary of a text; None for other data."""
        return self.encoding.vocabulary

    @property
    def selecting(self) -> DataSource:
        """Examples for evaluations during training and for selecting the best checkpoint."""
        return self.test if self.validation is None else self.validation

    @property
    def selecting_name(self) -> str:
        """`validation` or `test`."""
        return "test" if self.validation is None else "validation"

"""What the rest of the runner knows of data: named arrays, whose first dim is the examples. Imports NumPy alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from runner.data.vocabulary import Vocabulary

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
Batch = Mapping[str, Array]

WEIGHT = "weight"  # float32 (B,): 1 an example, 0 padding; the only way in which padding is told
ROW = "row"  # int32 (B,): where the example is in a split whose arrays an engine keeps on its devices
RESERVED = (WEIGHT, ROW)  # names that no array of a dataset may have
TARGETS = ("label", "labels", "target", "y")  # the first there is predicted where no config names a target
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class ArraySpec:
    """One named array of a dataset.

    Attributes:
      shape: of one example, without the examples' dim.
      dtype: as `uint8`.
      dims: a name a dim of `shape`, as `height`, `width`, `channel`, `sequence`; empty where a dim has none.
      names: of the categories that an integer array counts, or of the columns of its last dim; empty: they have none.
    """

    shape: tuple[int, ...]
    dtype: str
    dims: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def is_image(self) -> bool:
        """Tells whether it has the dims height and width."""
        return "height" in self.dims and "width" in self.dims

    @property
    def bytes(self) -> int:
        """Bytes of one example."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class DataSource(Protocol):
    """Examples that can be read in any order; a source has no order of its own."""

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        """Specs of its arrays by name."""
        ...

    @property
    def size(self) -> int:
        """Number of examples."""
        ...

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some examples, each (len(rows), *shape).

        Args:
          rows: int64 (n,), each from 0 to `size` - 1, in any order and as often as wanted.

        Raises:
          DataError: an example can't be read; names the file.
        """
        ...


@runtime_checkable
class ExampleSource(DataSource, Protocol):
    """A source whose examples are made one at a time, by decoding or by a user's code, so that workers share them."""

    @property
    def holds_gil(self) -> bool:
        """Whether making one is Python code; False where the libraries that do it let go of the interpreter's lock."""
        ...

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        """Returns the arrays of one example.

        Args:
          row: from 0 to `size` - 1.
          epoch: which draws of an augmentation are taken; without effect on what draws nothing.

        Raises:
          DataError: it can't be made; names the file.
        """
        ...

    def example_name(self, row: int) -> str:
        """Returns what a message calls an example, as its file's name."""
        ...


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Examples that lie in RAM, or mapped from disk, as whole arrays.

    Attributes:
      arrays: by name, each (N, ...), read-only.
      specs: of the same names.
    """

    arrays: Mapping[str, Array]
    specs: Mapping[str, ArraySpec]

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(next(iter(self.arrays.values())))

    def column(self, name: str) -> Array:
        """Returns one array whole."""
        return self.arrays[name]

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some examples; what is on disk is read in the order in which it lies there."""
        if not any(isinstance(array, np.memmap) for array in self.arrays.values()):
            return {name: array[rows] for name, array in self.arrays.items()}
        there, back = np.unique(rows, return_inverse=True)
        return {
            name: array[there][back] if isinstance(array, np.memmap) else array[rows]
            for name, array in self.arrays.items()
        }


def column(source: DataSource, name: str) -> Array | None:
    """Returns one array of a source whole, (size, ...); None where every example would have to be made for it."""
    whole: Callable[[str], Array | None] | None = getattr(source, "column", None)
    return None if whole is None else whole(name)


def empty(specs: Mapping[str, ArraySpec], count: int) -> dict[str, Array]:
    """Returns arrays (count, *shape) by name, to be filled."""
    return {name: np.empty((count, *spec.shape), spec.dtype) for name, spec in specs.items()}


def stacked(
    specs: Mapping[str, ArraySpec], rows: Rows, example: Callable[[int], Mapping[str, Array]]
) -> dict[str, Array]:
    """Returns the arrays (len(rows), *shape) of examples that are made one at a time."""
    made = empty(specs, len(rows))
    for place, row in enumerate(rows):
        for name, array in example(int(row)).items():
            made[name][place] = array
    return made


def in_order(splits: Iterable[str]) -> list[str]:
    """Returns names of splits, train, validation and test before all others."""
    names = list(splits)
    return sorted(names, key=lambda name: SPLITS.index(name) if name in SPLITS else len(SPLITS))


@dataclass(frozen=True)
class Encoding:
    """How values of a user's data became numbers: a run's, which every later look at other data must use.

    Attributes:
      categories: array of whole numbers -> names of what they count, where words were read.
      mean: float array -> what was subtracted, one number a column (one where the array has no dims).
      deviation: likewise, what it was then divided by.
      vocabulary: by which text became tokens; null where it did not.
    """

    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mean: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    deviation: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None

    def to_json(self) -> dict[str, Mapping[str, object]]:
        """Returns it as plain values, to be recorded."""
        vocabulary = {} if self.vocabulary is None else {"vocabulary": self.vocabulary.to_json()}
        return {
            "categories": {name: list(names) for name, names in self.categories.items()},
            "mean": {name: list(numbers) for name, numbers in self.mean.items()},
            "deviation": {name: list(numbers) for name, numbers in self.deviation.items()},
            **vocabulary,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Mapping[str, Sequence[Any]]]) -> Encoding:
        """Reads what `to_json` gave."""
        recorded = content.get("vocabulary")
        return cls(
            categories={name: tuple(map(str, names)) for name, names in content.get("categories", {}).items()},
            mean={name: tuple(map(float, numbers)) for name, numbers in content.get("mean", {}).items()},
            deviation={name: tuple(map(float, numbers)) for name, numbers in content.get("deviation", {}).items()},
            vocabulary=None if recorded is None else Vocabulary.from_json(recorded),
        )


@dataclass(frozen=True)
class TextSize:
    """How much text there is.

    Attributes:
      documents: that are not empty.
      tokens: of them, ends of documents among them.
      bytes: of them, as UTF-8.
    """

    documents: int
    tokens: int
    bytes: int


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset, cut as the config says.

    Attributes:
      name: as `mnist` or `emnist/letters`, or the name of a file or folder.
      version: the builder's; empty where there is none.
      train: what is trained on.
      validation: what evaluations during training are on; None: they are on `test`.
      test: what is evaluated at the end, and by runner.evaluate.
      digest: sha256 (hex) of all the dataset's content, whatever the splits select.
      source: where the data came from, in words.
      selection: `train`, `validation` and `test` -> what each one is, in words, as `train without the 144 held out`.
      encoding: how its values became numbers; a run records it.
      texts: of text, the source's own splits -> how much each is.
    """

    name: str
    version: str
    train: DataSource
    test: DataSource
    validation: DataSource | None
    digest: str
    source: str
    selection: Mapping[str, str] = field(default_factory=dict)
    encoding: Encoding = field(default_factory=Encoding)
    texts: Mapping[str, TextSize] = field(default_factory=dict)

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        """Specs of the arrays of every split."""
        return self.train.specs

    @property
    def vocabulary(self) -> Vocabulary | None:
        """What the tokens of a text stand for; None of other data."""
        return self.encoding.vocabulary

    @property
    def selecting(self) -> DataSource:
        """What evaluations during training are on, and what selects the best checkpoint."""
        return self.test if self.validation is None else self.validation

    @property
    def selecting_name(self) -> str:
        """`validation` or `test`."""
        return "test" if self.validation is None else "validation"

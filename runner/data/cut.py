"""From what a source has to what a run uses: split expressions, the share held out, the default of a test split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from runner.config.schema_data import OWN, DatasetConfig
from runner.data.base import (
    SPLITS,
    Array,
    ArraySource,
    ArraySpec,
    Dataset,
    DataSource,
    Encoding,
    Rows,
    TextSize,
    column,
    empty,
)
from runner.data.splits import Slice, parse_split, resolve
from runner.errors import ConfigError, invalid

RAM_BYTES = 1 << 30  # selections below this many bytes are read into RAM, which makes gathering rows faster
TEST_SHARE = 0.2
_TEST_SEED = 0  # not the run's: what is tested on must be the same for every run on the same data
# Behind the seed: epochs draw from (seed, epoch), which these differ from for every epoch.
_HELD_OUT = (0, 1)
_TEST = (0, 2)


@dataclass(frozen=True, eq=False)
class Whole:
    """What a source has, before it is cut.

    Attributes:
      name: as `mnist` or `emnist/letters`, or the name of a file or folder.
      version: the builder's; empty where there is none.
      splits: by name, in the data's order; all have the same specs.
      digest: sha256 (hex) of all of them.
      source: where the data came from, in words.
      encoding: how words became numbers.
      about: split -> what it is in words, where its name does not tell.
      texts: of text, split -> how much it is.
    """

    name: str
    version: str
    splits: Mapping[str, DataSource]
    digest: str
    source: str
    encoding: Encoding = field(default_factory=Encoding)
    about: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, TextSize] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Selection:
    """Some examples of one or more sources, in an order of their own.

    Attributes:
      pieces: sources, and int64 rows of each.
      specs: of the arrays.
    """

    pieces: Sequence[tuple[DataSource, Rows]]
    specs: Mapping[str, ArraySpec]

    @property
    def size(self) -> int:
        """Number of examples."""
        return sum(len(rows) for _, rows in self.pieces)

    def locate(self, row: int) -> tuple[DataSource, int]:
        """Returns the source that an example is of, and its row there."""
        for source, own in self.pieces:
            if row < len(own):
                return source, int(own[row])
            row -= len(own)
        raise IndexError(f"row {row} lies behind the selection's end")

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some examples."""
        if len(self.pieces) == 1:
            source, own = self.pieces[0]
            return source.read(own[rows])
        starts = np.cumsum([0, *(len(own) for _, own in self.pieces)])
        piece = np.searchsorted(starts, rows, side="right") - 1
        arrays = empty(self.specs, len(rows))
        for number, (source, own) in enumerate(self.pieces):
            here = np.flatnonzero(piece == number)
            if len(here):
                for name, array in source.read(own[rows[here] - starts[number]]).items():
                    arrays[name][here] = array
        return arrays

    def column(self, name: str) -> Array | None:
        """Returns one array whole, where each source has it so."""
        found = [whole[rows] for source, rows in self.pieces if (whole := column(source, name)) is not None]
        return np.concatenate(found) if len(found) == len(self.pieces) else None


def make_dataset(whole: Whole, config: DatasetConfig, seed: int) -> Dataset:
    """Cuts a dataset as its config says.

    Args:
      whole: what the source has.
      config: its split expressions, and the share held out.
      seed: the run's, at least 0, which chooses what is held out.

    Returns:
      The dataset; no example is in two of its splits by what is chosen here.

    Raises:
      ConfigError: an expression does not fit the splits, or selects examples without labels.
    """
    train = select("train", config.train, whole)
    said = {"train": config.train}
    if config.test is not None:
        test, said["test"] = select("test", config.test, whole), config.test
    elif "test" in whole.splits:
        test, said["test"] = select("test", "test", whole), "test"
    else:
        train, test = _part(train, TEST_SHARE, (_TEST_SEED, *_TEST), "test")
        said["test"] = f"a fixed fifth of {config.train}, as there is no split test"
        said["train"] = f"{config.train} without the {test.size:,} of test"
    validation = None
    own = config.name in OWN and "validation" in whole.splits and not config.holdout
    expression = config.validation or ("validation" if own else None)
    if expression is not None:
        validation, said["validation"] = select("validation", expression, whole), expression
    elif config.holdout:
        train, validation = _part(train, config.holdout, (seed, *_HELD_OUT), "holdout")
        said["validation"] = f"{validation.size:,} of {config.train}, chosen by seed {seed}"
        joint = " and" if "without" in said["train"] else " without"
        said["train"] += f"{joint} the {validation.size:,} of validation"
    return Dataset(
        name=whole.name,
        version=whole.version,
        train=train,
        test=test,
        validation=validation,
        digest=whole.digest,
        source=whole.source,
        selection={key: whole.about.get(said[key], said[key]) for key in SPLITS if key in said},
        encoding=whole.encoding,
        texts=whole.texts,
    )


def terms(key: str, text: str) -> tuple[Slice, ...]:
    """Reads a key's split expression.

    Raises:
      ConfigError: it is none.
    """
    try:
        return parse_split(text)
    except ValueError as error:
        fix = f"write dataset.{key}='train[:5000]'"
        raise invalid(f"dataset.{key}", text, problem=str(error), fix=fix) from error


def select(key: str, text: str, whole: Whole) -> DataSource:
    """Returns what a split expression selects.

    Args:
      key: `train`, `validation` or `test`.
      text: the expression.
      whole: what the source has.

    Returns:
      Arrays where the source has arrays: a range of a file that is 1 GiB or more stays on disk, all else is in RAM.

    Raises:
      ConfigError: a term does not fit the splits, or selects examples without labels.
    """
    try:
        ranges = resolve(terms(key, text), {name: source.size for name, source in whole.splits.items()})
    except ConfigError:
        raise
    except ValueError as error:
        fix = f"write dataset.{key}={next(iter(whole.splits))}"
        raise ConfigError(f"dataset.{key}={text}: {error}; {fix}") from error
    pieces = [(whole.splits[name], start, stop) for name, start, stop in ranges]
    arrays = [
        {name: array[start:stop] for name, array in source.arrays.items()}
        for source, start, stop in pieces
        if isinstance(source, ArraySource)
    ]
    specs = pieces[0][0].specs
    if len(arrays) < len(pieces):
        if len(pieces) == 1 and (pieces[0][1], pieces[0][2]) == (0, pieces[0][0].size):
            return pieces[0][0]
        return Selection([(source, np.arange(start, stop)) for source, start, stop in pieces], specs)
    joined = {name: _gathered([piece[name] for piece in arrays]) for name in specs}
    _check_categories(key, text, whole, joined, specs)
    return ArraySource(joined, specs)


def _gathered(pieces: Sequence[Array]) -> Array:
    if len(pieces) > 1:
        return _read_only(np.concatenate(pieces))
    piece = pieces[0]
    return _read_only(np.array(piece) if isinstance(piece, np.memmap) and piece.nbytes < RAM_BYTES else piece)


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _check_categories(
    key: str, text: str, whole: Whole, arrays: Mapping[str, Array], specs: Mapping[str, ArraySpec]
) -> None:
    """Refuses examples whose label the publisher withholds, which TFDS tells by -1."""
    for name, spec in specs.items():
        if spec.names and not spec.shape and (arrays[name].min() < 0 or arrays[name].max() >= len(spec.names)):
            raise invalid(
                f"dataset.{key}",
                text,
                problem=f"{whole.name} withholds labels there, and only examples with one can be used",
                fix=f"the splits are {', '.join(whole.splits)}",
            )


def _part(source: DataSource, share: float, entropy: Sequence[int], key: str) -> tuple[DataSource, DataSource]:
    """Parts a source in two by chance; both keep the order of what they hold.

    Args:
      source: at least two examples.
      share: of the second one, above 0 and below 1.
      entropy: what the choice is a function of, beside the size.
      key: of the share, for the refusal.

    Raises:
      ConfigError: one of the two would be empty.
    """
    count = round(source.size * share)
    if not 0 < count < source.size:
        raise invalid(
            f"dataset.{key}",
            share if key == "holdout" else None,
            problem=f"{source.size} examples can't be parted with {share:g} of them on one side",
            fix="name the splits, as dataset.train=train dataset.test=train, or take more examples",
        )
    order = np.random.default_rng(list(entropy)).permutation(source.size)
    return _rows(source, np.sort(order[count:])), _rows(source, np.sort(order[:count]))


def _rows(source: DataSource, rows: Rows) -> DataSource:
    if isinstance(source, ArraySource) and sum(array.nbytes for array in source.arrays.values()) < RAM_BYTES:
        return ArraySource({name: _read_only(array[rows]) for name, array in source.arrays.items()}, source.specs)
    return Selection([(source, rows)], source.specs)

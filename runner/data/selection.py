# ruff: noqa: D102 - a source overrides what DataSource documents
"""The examples that a run uses: split expressions, holdout and test split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data import registry
from runner.data.base import Array, ArraySource, ArraySpec, Dataset, DataSource, FullDataset, Rows, empty_arrays, take
from runner.data.splits import parse_key, resolve
from runner.errors import invalid

# Memory-mapped selections below this size are copied into RAM, where gathering shuffled rows is faster. 1 GiB fits
# next to a model on every machine that we run on; larger selections stay mapped and are cached by the kernel.
RAM_BYTES = 1 << 30
# Without a validation split, this share of train becomes one (`dataset.holdout=null`).
HOLDOUT = 0.1
# Without a split `test`, this share of train becomes the test split.
TEST_SHARE = 0.2
# A constant and not the run's seed: the test examples must be the same for every run on the same data.
_TEST_SEED = 0
# Appended to the seed, so that these draws differ from each other and from the orders of all epochs, which are drawn
# from [seed, epoch].
_HOLDOUT_STREAM = (0, 1)
_TEST_STREAM = (0, 2)


@dataclass(frozen=True, eq=False)
class Selection(DataSource):
    """Some rows of one or more sources, in an order of their own."""

    pieces: Sequence[tuple[DataSource, Rows]]
    specs: Mapping[str, ArraySpec]

    @property
    def size(self) -> int:
        return sum(len(rows) for _, rows in self.pieces)

    @property
    def one_at_a_time(self) -> bool:
        return any(source.one_at_a_time for source, _ in self.pieces)

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        source, source_row = self.locate(row)
        return source.example(source_row, epoch)

    def original(self, row: int) -> dict[str, Array]:
        source, source_row = self.locate(row)
        return source.original(source_row)

    def example_name(self, row: int) -> str:
        source, source_row = self.locate(row)
        return source.example_name(source_row)

    def locate(self, row: int) -> tuple[DataSource, int]:
        """Returns the source of an example and its row there."""
        for source, source_rows in self.pieces:
            if row < len(source_rows):
                return source, int(source_rows[row])
            row -= len(source_rows)
        raise IndexError(f"row {row} is past the end of the selection")

    def read(self, rows: Rows) -> dict[str, Array]:
        if len(self.pieces) == 1:
            source, source_rows = self.pieces[0]
            return source.read(source_rows[rows])
        starts = np.cumsum([0, *(len(source_rows) for _, source_rows in self.pieces)])
        piece_of_row = np.searchsorted(starts, rows, side="right") - 1
        arrays = empty_arrays(self.specs, len(rows))
        for piece, (source, source_rows) in enumerate(self.pieces):
            positions = np.flatnonzero(piece_of_row == piece)
            if len(positions):
                for name, array in source.read(source_rows[rows[positions] - starts[piece]]).items():
                    arrays[name][positions] = array
        return arrays

    def column(self, name: str) -> Array | None:
        columns = []
        for source, rows in self.pieces:
            values = source.column(name)
            if values is None:
                return None
            columns.append(values[rows])
        return np.concatenate(columns)


def make_dataset(full: FullDataset, config: DatasetConfig, seed: int, evaluated: str | None = None) -> Dataset:
    """Selects the train, validation and test examples of a config.

    The seed chooses the held-out examples, and the splits that are chosen here at random share no example. The
    examples of the split expression `evaluated`, which may name these splits too, take the place of `test`.
    """
    train = select("train", config.train, full)
    about = {"train": config.train}
    held_out: dict[str, DataSource] = {}

    if config.test is not None or "test" in full.splits:
        about["test"] = config.test or "test"
        test = select("test", about["test"], full)
    else:
        train, test = _random_parts(train, TEST_SHARE, (_TEST_SEED, *_TEST_STREAM), "test")
        held_out["test"] = test
        about["test"] = f"a fixed fifth of {config.train}, as there is no split test"
        about["train"] = f"{config.train} without the {test.size:,} of test"

    validation_split = config.validation
    is_default = config.holdout is None
    uses_own_validation = "validation" in full.splits and (is_default or registry.entry(config).is_users_data)
    if validation_split is None and uses_own_validation and not config.holdout:
        validation_split = "validation"
    holdout = _default_holdout(train.size, config) if is_default else config.holdout
    validation = None
    if validation_split is not None:
        validation = select("validation", validation_split, full)
        about["validation"] = validation_split
    elif holdout:
        train, validation = _random_parts(train, holdout, (seed, *_HOLDOUT_STREAM), "holdout")
        if "validation" not in full.splits:
            held_out["validation"] = validation
        about["validation"] = f"{validation.size:,} of {config.train}, chosen by seed {seed}"
        # It may already lack the examples of test.
        joint = "and" if "without" in about["train"] else "without"
        about["train"] += f" {joint} the {validation.size:,} of validation"

    if evaluated is not None:
        for term in parse_key("test", evaluated):
            # The examples that are held out are in the source's own splits.
            if term.name == "all":
                held_out = {}
        test = select("test", evaluated, replace(full, splits={**full.splits, **held_out}))
        about["test"] = evaluated

    # The source's own description wins, such as "the last 12 of 120 documents" for a text's test split.
    for split, selected in about.items():
        about[split] = full.about.get(selected, selected)
    return Dataset(
        name=full.name,
        version=full.version,
        train=train,
        test=test,
        validation=validation,
        digest=full.digest,
        source=full.source,
        selection=about,
        encoding=full.encoding,
        texts=full.texts,
    )


def select(key: str, text: str, full: FullDataset) -> DataSource:
    """Returns the examples that the split expression of `dataset.<key>` selects.

    They are arrays if the source has arrays. A single range of 1 GiB or more stays memory-mapped.
    """
    slices = parse_key(key, text)
    sizes = {name: source.size for name, source in full.splits.items()}
    try:
        ranges = resolve(slices, sizes)
    except ValueError as error:
        raise invalid(f"dataset.{key}", text, problem=str(error), fix=_other_split(key, full)) from error

    pieces_of_arrays = []
    for split, start, stop in ranges:
        source = full.splits[split]
        if isinstance(source, ArraySource):
            pieces_of_arrays.append(take(source.arrays, slice(start, stop)))
    first_split, first_start, first_stop = ranges[0]
    first = full.splits[first_split]
    if len(pieces_of_arrays) == len(ranges):
        arrays = {}
        for name in first.specs:
            arrays[name] = _joined([piece[name] for piece in pieces_of_arrays])
        return ArraySource(arrays, first.specs)

    if len(ranges) == 1 and (first_start, first_stop) == (0, first.size):
        return first
    pieces = []
    for split, start, stop in ranges:
        pieces.append((full.splits[split], np.arange(start, stop)))
    return Selection(pieces, first.specs)


def _default_holdout(size: int, config: DatasetConfig) -> float:
    """Returns the share of a training split that becomes the validation split if the config names none."""
    count = round(size * HOLDOUT)
    # The splits of a mixture are those of its parts.
    is_mixture = "parts" in registry.entry(config).keys
    if is_mixture or not count or size - count < config.batch_size:
        return 0.0
    return HOLDOUT


def _other_split(key: str, full: FullDataset) -> str:
    """Returns the fix for a split that can't be selected; for an evaluation it is never the training split."""
    others = [name for name in full.splits if key == "train" or name != "train"]
    if key in others:
        return f"set dataset.{key}={key}"
    if others:
        return f"set dataset.{key}={others[0]}"
    if key == "validation":
        return "set dataset.holdout=0.1, which holds out a tenth of train"
    return f"set dataset.{key}=null, which holds out a fifth of train"


def _joined(pieces: Sequence[Array]) -> Array:
    """Returns one read-only array; a single large piece stays memory-mapped."""
    if len(pieces) > 1:
        return _read_only(np.concatenate(pieces))
    array = pieces[0]
    if isinstance(array, np.memmap) and array.nbytes < RAM_BYTES:
        array = np.array(array)
    return _read_only(array)


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _random_parts(source: DataSource, share: float, entropy: Sequence[int], key: str) -> tuple[DataSource, DataSource]:
    """Splits a source at random into two, of which the second has the share; both keep the order of the source."""
    count = round(source.size * share)
    if not 0 < count < source.size:
        fix = "use more examples"
        if source.size > 1 and key == "holdout":
            fix += ", or set dataset.holdout=0.5"
        elif source.size > 1:
            fix += ", or name two ranges: \"dataset.train='train[:1]'\" \"dataset.test='train[1:]'\""
        problem = f"can't split {source.size} examples: {share:g} of them is {count}, which leaves one part empty"
        raise invalid(f"dataset.{key}", share if key == "holdout" else None, problem=problem, fix=fix)
    order = np.random.default_rng(list(entropy)).permutation(source.size)
    return _rows_of(source, np.sort(order[count:])), _rows_of(source, np.sort(order[:count]))


def _rows_of(source: DataSource, rows: Rows) -> DataSource:
    if isinstance(source, ArraySource):
        total_bytes = sum(array.nbytes for array in source.arrays.values())
        if total_bytes < RAM_BYTES:
            arrays = {name: _read_only(array[rows]) for name, array in source.arrays.items()}
            return ArraySource(arrays, source.specs)
    return Selection([(source, rows)], source.specs)

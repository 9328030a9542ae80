"""`mixture`: several datasets, trained on in given proportions.

Which part and which example a position of an epoch takes is a function of the seed and of the position alone. So a
resumed run, another mesh and another number of processes see the same batches.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from runner.config.schema_data import BYTES, DatasetConfig
from runner.data import registry
from runner.data.base import Dataset, DataSource, Draw, Encoding, FullDataset, Rows, TextSize
from runner.data.encode import check_same_specs
from runner.data.parts import Part, describe, in_part, parts_of
from runner.data.selection import Selection, make_dataset
from runner.data.sources import text
from runner.data.vocabulary import Vocabulary
from runner.errors import ConfigError, invalid

# In the third place of the entropy of a part's order. The orders of whole splits have none there, and the draws of
# held-out examples have 1 and 2; see `runner.data.selection`.
_PART_STREAM = 3
# With fewer examples per epoch, rounding could leave an epoch without any, or with a negative number.
_FEWEST = 2


@dataclass(frozen=True, eq=False)
class Mixture(Selection):
    """The train split of a mixture, whose pieces are all examples of each part.

    An epoch has as many examples as all parts together. A part with the share w of the weights has w of them, rounded
    so that the errors do not add up over epochs, and spread evenly over the epoch. Each part goes through its examples
    in an order of its own, which continues from one epoch to the next: an example is repeated only after all others
    of its part.
    """

    weights: Sequence[float]

    def epoch_order(self, draw: Draw) -> Rows:
        """Returns int64 (size,), the row of each position."""
        rng = draw.generator()
        rows = []
        places = []
        start = 0
        taken_before = self._taken_before(draw.epoch)
        taken_after = self._taken_before(draw.epoch + 1)
        for part, (source, _) in enumerate(self.pieces):
            part_rows = self._rows_of_part(part, draw, taken_before[part], taken_after[part])
            rows.append(start + part_rows)
            # Evenly spaced over the epoch, from a random start.
            offset = rng.random() if draw.shuffle else 0.5
            places.append((np.arange(len(part_rows)) + offset) / len(part_rows))
            start += source.size
        # Stable, so that equal places have one order on every machine.
        return np.concatenate(rows)[np.argsort(np.concatenate(places), kind="stable")]

    def _taken_before(self, epoch: int) -> list[int]:
        """Returns how many examples of each part all epochs before one have together."""
        positions = epoch * self.size
        total = math.fsum(self.weights)
        # Where the parts begin if they follow each other. It is rounded, so that the parts add up exactly.
        starts = []
        for count in range(len(self.weights)):
            starts.append(math.floor(math.fsum(self.weights[:count]) / total * positions + 0.5))
        return [end - start for start, end in pairwise([*starts, positions])]

    def _rows_of_part(self, part: int, draw: Draw, first: int, stop: int) -> Rows:
        """Returns the rows of a part's examples `first` to `stop`, counted over all epochs."""
        source, _ = self.pieces[part]
        rows = []
        while first < stop:
            # A pass takes every example of the part once.
            number, done = divmod(first, source.size)
            order = source.epoch_order(Draw(draw.seed, number, draw.shuffle, (_PART_STREAM, part)))
            taken = order[done : done + stop - first]
            rows.append(taken)
            first += len(taken)
        return np.concatenate(rows)

    def check(self, keys: Sequence[str]) -> None:
        """Checks that every part has examples in every epoch."""
        assert all(len(rows) == source.size for source, rows in self.pieces), "a part is a whole source"
        total = math.fsum(self.weights)
        for key, weight in zip(keys, self.weights, strict=True):
            if weight / total * self.size < _FEWEST:
                least = _FEWEST / self.size * total
                problem = f"gives the part fewer than {_FEWEST} of the {self.size:,} examples of an epoch"
                fix = f"set weight: {least:.2g} or more, or remove the part"
                raise invalid(f"{key}.weight", weight, problem=problem, fix=fix)


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Loads all parts: train is mixed by the weights, the other splits have every example of the parts' own once."""
    parts = parts_of(config)
    datasets, doubt = _load_parts(parts, encoding)
    first = datasets[0]
    first_name = f"{parts[0].key} ({parts[0].name})"
    for part, dataset in zip(parts, datasets, strict=True):
        check_same_specs(dataset.specs, f"{part.key} ({part.name})", first.specs, first_name, "all parts")

    weights = [part.weight for part in parts]
    train = Mixture([_whole(dataset.train) for dataset in datasets], first.specs, weights)
    train.check([part.key for part in parts])
    splits: dict[str, DataSource] = {"train": train}
    validations = [_whole(dataset.validation) for dataset in datasets if dataset.validation is not None]
    if validations:
        splits["validation"] = Selection(validations, first.specs)
    splits["test"] = Selection([_whole(dataset.test) for dataset in datasets], first.specs)
    encoded = first.encoding
    return FullDataset(
        name="mixture",
        version="",
        splits=splits,
        digest=_digest(parts, datasets),
        source=", ".join(dataset.source for dataset in datasets),
        encoding=replace(encoding or Encoding(), categories=encoded.categories, vocabulary=encoded.vocabulary),
        about={"train": f"a mixture: {describe(parts)}"},
        texts=_texts(datasets),
        doubt=doubt,
    )


def _load_parts(parts: Sequence[Part], encoding: Encoding | None) -> tuple[list[Dataset], str]:
    """Returns the data of each part, and the first doubt of a part, see FullDataset; empty: no part has one."""
    datasets: list[Dataset] = []
    doubt = ""
    first: Vocabulary | None = None
    for part in parts:
        with in_part(part.key):
            has_recorded = encoding is not None and encoding.vocabulary is not None
            # Each part is compared with a recorded run's as it is read. This comes before text is encoded, which may
            # take long.
            if not has_recorded and registry.is_text(part.config):
                own = text.vocabulary_of(part.config)
                first = first or own
                if own.end_token != first.end_token:
                    raise _differs("end_token", part.config.end_token)
                if own.sha256 != first.sha256:
                    raise _differs("tokenizer", part.config.tokenizer or BYTES)
            full = registry.entry(part.config).load(part.config, encoding)
            # The seed chooses held-out examples, which a part has none of.
            datasets.append(make_dataset(full, part.config, seed=0))
        if full.doubt and not doubt:
            doubt = f"{part.key}, {full.doubt}"
    return datasets, doubt


def _differs(key: str, value: str | None) -> ConfigError:
    problem = f"all parts need one {key}, but an earlier part has another"
    return invalid(f"dataset.{key}", value, problem=problem, fix="set the same in all parts")


def _whole(source: DataSource) -> tuple[DataSource, Rows]:
    """Returns all examples of a source, as a piece of a selection."""
    return source, np.arange(source.size)


def _digest(parts: Sequence[Part], datasets: Sequence[Dataset]) -> str:
    total = hashlib.sha256()
    for part, dataset in zip(parts, datasets, strict=True):
        selected = f"{part.config.train} {part.config.validation} {part.config.test}"
        total.update(f"{dataset.digest} {selected}\n".encode())
    return total.hexdigest()


def _texts(datasets: Sequence[Dataset]) -> dict[str, TextSize]:
    """Returns the sizes of the texts of all parts together; empty if a part has no text."""
    texts: dict[str, TextSize] = {}
    for split in datasets[0].texts:
        sizes = [dataset.texts[split] for dataset in datasets if split in dataset.texts]
        if len(sizes) == len(datasets):
            texts[split] = TextSize(sum(size.documents for size in sizes), sum(size.tokens for size in sizes))
    return texts

"""`mixture`: several datasets, trained on in given proportions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data import registry
from runner.data.base import ArraySpec, Dataset, DataSource, Encoding, FullDataset, Rows, TextSize
from runner.data.mixture import Mixture
from runner.data.packed_examples import packed_dataset
from runner.data.parts import Part, describe, in_part, parts_of
from runner.data.selection import Selection, make_dataset
from runner.errors import DataError

# Names of categories that a message lists.
_SHOWN_NAMES = 5


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Loads all parts.

    The split train is mixed by the weights. The splits validation and test have every example of the parts' own splits
    once.

    Args:
      config: its `parts` are the datasets and their weights.
      encoding: of the run that the data is read for; None: the data gets an encoding of its own.

    Raises:
      ConfigError: a key of a part does not fit its data; a weight is too small.
      DataError: the parts have different arrays or tokenizers, or their data is missing or broken.
    """
    parts = parts_of(config)
    datasets: list[Dataset] = []
    part_encoding = encoding
    for part in parts:
        dataset = in_part(part.key, lambda part=part, used=part_encoding: _load_part(part, used))  # type: ignore[misc]
        datasets.append(dataset)
        if encoding is None:
            # A trained tokenizer is that of the first part. Categories are compared below.
            part_encoding = Encoding(vocabulary=dataset.encoding.vocabulary)
    specs = datasets[0].specs
    for part, dataset in zip(parts, datasets, strict=True):
        _check_same_arrays(parts[0], specs, part, dataset)

    train = Mixture(_whole([dataset.train for dataset in datasets]), specs, [part.weight for part in parts])
    train.check([part.key for part in parts])
    splits: dict[str, DataSource] = {"train": train}
    validations = [dataset.validation for dataset in datasets if dataset.validation is not None]
    if validations:
        splits["validation"] = Selection(_whole(validations), specs)
    splits["test"] = Selection(_whole([dataset.test for dataset in datasets]), specs)
    first = datasets[0].encoding
    lengths: dict[str, int] = {}
    for dataset in datasets:
        lengths |= dataset.encoding.lengths
    return FullDataset(
        name="mixture",
        version="",
        splits=splits,
        digest=_digest(parts, datasets),
        source=", ".join(dataset.source for dataset in datasets),
        encoding=replace(
            encoding or Encoding(), categories=first.categories, vocabulary=first.vocabulary, lengths=lengths
        ),
        about={"train": f"a mixture: {describe(parts)}"},
        texts=_texts(datasets),
    )


def location(config: DatasetConfig) -> str:
    """Returns where each part is."""
    locations = []
    for part in parts_of(config):
        locations.append(registry.entry(part.config).import_module().location(part.config))
    return ", ".join(locations)


def _load_part(part: Part, encoding: Encoding | None) -> Dataset:
    full = registry.entry(part.config).import_module().load(part.config, encoding)
    # The seed chooses held-out examples, which a part has none of.
    return packed_dataset(make_dataset(full, part.config, seed=0), part.config)


def _whole(sources: Sequence[DataSource]) -> list[tuple[DataSource, Rows]]:
    return [(source, np.arange(source.size)) for source in sources]


def _check_same_arrays(first: Part, specs: Mapping[str, ArraySpec], part: Part, dataset: Dataset) -> None:
    for name in {**specs, **dataset.specs}:
        expected = specs.get(name)
        actual = dataset.specs.get(name)
        if expected is None or actual is None or actual != expected:
            raise DataError(
                f"{part.key} ({part.name}): array {name} is {_describe(actual)}, but {_describe(expected)} in "
                f"{first.key} ({first.name}); all parts need the same arrays"
            )


def _describe(spec: ArraySpec | None) -> str:
    if spec is None:
        return "missing"
    text = f"{spec.dtype} {list(spec.shape)}"
    if spec.names:
        text += f" with the names {', '.join(spec.names[:_SHOWN_NAMES])}"
        if len(spec.names) > _SHOWN_NAMES:
            text += ", ..."
    return text


def _digest(parts: Sequence[Part], datasets: Sequence[Dataset]) -> str:
    """Hashes the digests of the parts, and what is selected of them."""
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
            texts[split] = TextSize(
                documents=sum(size.documents for size in sizes),
                tokens=sum(size.tokens for size in sizes),
                bytes=sum(size.bytes for size in sizes),
            )
    return texts

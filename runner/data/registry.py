"""The table of data sources: one entry per kind of data. Imports neither NumPy nor a source's libraries.

To add a source, write a module `runner/data/sources/<name>.py` (or a package), add its entry to `SOURCES` and write
`conf/dataset/<name>.yaml`. The module has the function

    load(config: DatasetConfig, encoding: Encoding | None) -> FullDataset

A `check` of the entry, in `runner/data/checks_source.py`, reports what the config alone and a look at the files show.
`dataset.name` selects the entry. A name without an entry is that of a TFDS builder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from runner.config.schema_data import DatasetConfig
from runner.data.checks_source import HUGGINGFACE, IMAGES, PARQUET, TABLES, TEXTS, check_custom

if TYPE_CHECKING:
    from runner.data.base import Encoding, FullDataset


@dataclass(frozen=True)
class SourceEntry:
    """One data source; its module is imported when it is loaded, after the config is checked."""

    module: str
    keys: tuple[str, ...] = ()  # of the group `dataset` that this source has and not every source
    # Whether its examples are sequences of tokens; `maybe` if only the data shows it.
    tokens: Literal["always", "never", "maybe"] = "never"
    # The split `validation` of users' data is used without being named; a published dataset's is not, so that results
    # compare with those in the literature.
    is_users_data: bool = False
    check: Callable[[DatasetConfig], None] | None = None

    def load(self, config: DatasetConfig, encoding: Encoding | None) -> FullDataset:
        """Reads all splits, with the encoding of the recorded run that the data is read for, if any."""
        full: FullDataset = import_module(f"runner.data.sources.{self.module}").load(config, encoding)
        return full


_TEXT = ("tokenizer", "end_token", "sequence_length", "documents")
_TABLE = ("path", "features", "standardize")
_IMAGES = ("image_size", "channels")
_STORED = (*_TABLE, *_IMAGES)
SOURCES: dict[str, SourceEntry] = {
    "arrays": SourceEntry("arrays", _TABLE, tokens="maybe", is_users_data=True, check=TABLES.check),
    "custom": SourceEntry("custom", ("target", "standardize"), tokens="maybe", is_users_data=True, check=check_custom),
    "digits": SourceEntry("digits", ("image_size",)),
    "image_folder": SourceEntry("image_folder", ("path", *_IMAGES), is_users_data=True, check=IMAGES.check),
    "mnist": SourceEntry("mnist", ("image_size",)),
    "fashion_mnist": SourceEntry("mnist", ("image_size",)),
    "mixture": SourceEntry("mixture", ("parts", "standardize", "image_size"), tokens="maybe", is_users_data=True),
    "parquet": SourceEntry("stored", _STORED, tokens="maybe", is_users_data=True, check=PARQUET.check),
    "huggingface": SourceEntry("stored", _STORED, tokens="maybe", is_users_data=True, check=HUGGINGFACE.check),
    "pydoc": SourceEntry("pydoc", _TEXT, tokens="always"),
    "text": SourceEntry("text", ("path", "column", *_TEXT), tokens="always", is_users_data=True, check=TEXTS.check),
}

# Any other name.
TFDS = SourceEntry("tfds", ("features", "standardize", "image_size"))


def entry(config: DatasetConfig) -> SourceEntry:
    """Returns the source that a config selects."""
    # Only TFDS knows the names of its builders, and it is not imported here.
    return SOURCES.get(config.name, TFDS)


def is_text(config: DatasetConfig) -> bool:
    """Returns whether the examples of a dataset are sequences of tokens, encoded by `dataset.tokenizer`."""
    return entry(config).tokens == "always"

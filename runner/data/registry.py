"""The table of data sources: one entry per kind of data.

Imports neither NumPy nor a source's libraries.

To add a source, write a module `runner/data/sources/<name>.py` (or a package), add its entry to `SOURCES` and write
`conf/dataset/<name>.yaml`. The module has two functions:

    load(config: DatasetConfig, encoding: Encoding | None) -> FullDataset
    location(config: DatasetConfig) -> str      where the data is on this machine, for `runner.data`

A `check` of the entry, in `runner/data/checks_source.py`, reports what the config alone and a look at the files show.
`dataset.name` selects the entry. A name without an entry is that of a TFDS builder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol, cast

from runner.config.schema_data import DatasetConfig
from runner.data import checks_source

if TYPE_CHECKING:
    from runner.data.base import Encoding, FullDataset

_FOLDER = "runner.data.sources"


class SourceModule(Protocol):
    """The module of a data source."""

    def load(self, config: DatasetConfig, encoding: Encoding | None) -> FullDataset:
        """Reads all splits.

        Args:
          config: the dataset's.
          encoding: of the recorded run that the data is read for; None: the data gets an encoding of its own.

        Raises:
          ConfigError: the value of a key does not fit the data.
          DataError: the data is missing or broken.
        """
        ...

    def location(self, config: DatasetConfig) -> str:
        """Returns where the data is on this machine."""
        ...


@dataclass(frozen=True)
class SourceEntry:
    """One data source.

    Attributes:
      module: import path of its module, see `SourceModule`. It is imported when the source is loaded, because an
        invalid config is reported before a source's libraries are imported.
      keys: keys of the group `dataset` that this source has and not every source.
      tokens: whether its examples are sequences of tokens: `always`, `never`, or `tokenizer`, with
        `dataset.tokenizer`; `maybe` if only the data shows it.
      is_users_data: the data is the user's own. Its split `validation` is then used without being named; a published
        dataset's is not, so that results compare with those in the literature.
      check: checks that what the config names exists and fits, without importing a library; None: nothing to check.
    """

    module: str
    keys: tuple[str, ...] = ()
    tokens: Literal["always", "never", "tokenizer", "maybe"] = "never"
    is_users_data: bool = False
    check: Callable[[DatasetConfig], None] | None = None

    def import_module(self) -> SourceModule:
        """Imports the source's module, with its libraries."""
        return cast(SourceModule, import_module(self.module))


SOURCES: dict[str, SourceEntry] = {
    "arrays": SourceEntry(
        f"{_FOLDER}.arrays",
        keys=("path", "features", "pad", "pad_length", "pack"),
        tokens="maybe",
        is_users_data=True,
        check=checks_source.check_tables,
    ),
    "custom": SourceEntry(
        f"{_FOLDER}.custom",
        keys=("target", "pad", "pad_length", "pack"),
        tokens="maybe",
        is_users_data=True,
        check=checks_source.check_custom,
    ),
    "digits": SourceEntry(f"{_FOLDER}.digits"),
    "image_folder": SourceEntry(
        f"{_FOLDER}.image_folder",
        keys=("path", "channels", "skip_broken"),
        is_users_data=True,
        check=checks_source.check_images,
    ),
    "mnist": SourceEntry(f"{_FOLDER}.mnist"),
    "fashion_mnist": SourceEntry(f"{_FOLDER}.mnist"),
    "mixture": SourceEntry(f"{_FOLDER}.mixture", keys=("parts",), tokens="maybe", is_users_data=True),
    "parquet": SourceEntry(
        f"{_FOLDER}.parquet",
        keys=("path", "features", "channels", "pad", "pad_length", "pack"),
        tokens="maybe",
        is_users_data=True,
        check=checks_source.check_parquet,
    ),
    "huggingface": SourceEntry(
        f"{_FOLDER}.huggingface",
        keys=("path", "features", "channels", "pad", "pad_length", "pack"),
        tokens="maybe",
        is_users_data=True,
        check=checks_source.check_huggingface,
    ),
    "array_record": SourceEntry(
        f"{_FOLDER}.array_record",
        keys=("path", "features", "channels"),
        tokens="maybe",
        is_users_data=True,
        check=checks_source.check_array_record,
    ),
    "pydoc": SourceEntry(f"{_FOLDER}.pydoc", keys=("pack",), tokens="always"),
    "shakespeare": SourceEntry(f"{_FOLDER}.shakespeare", keys=("pack",), tokens="always"),
    "text": SourceEntry(
        f"{_FOLDER}.text",
        keys=("path", "column", "pack"),
        tokens="always",
        is_users_data=True,
        check=checks_source.check_texts,
    ),
}

# Any other name, and `dataset.builder`.
TFDS = SourceEntry(f"{_FOLDER}.tfds", keys=("features", "pack"), tokens="tokenizer", check=checks_source.check_builder)


def entry(config: DatasetConfig) -> SourceEntry:
    """Returns the source that a config selects."""
    if config.builder is not None:
        return TFDS
    return named(config)


def named(config: DatasetConfig) -> SourceEntry:
    """Returns the source that `dataset.name` selects if `dataset.builder` is null."""
    # Only TFDS knows the names of its builders, and it is not imported here.
    return SOURCES.get(config.name, TFDS)

"""The decoded cache: `<data_dir>/.decoded/<builder>-<config>-<version>[-HxW]/`, one folder of arrays a split."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from runner.config.errors import ConfigError, DataError, refuse
from runner.config.schema import DatasetConfig
from runner.data.arrays import Dataset, Images, Labels, Split
from runner.data.splits import Slice, resolve
from runner.host.folders import remove_empty, remove_files

FORMAT = 1
_META = "meta.json"
RAM_BYTES = 1 << 30  # selections below this many bytes are read into RAM, which makes gathering rows faster

_NAME = re.compile(r"(?P<builder>\w+)(?:/(?P<config>[\w.+-]+))?(?::(?P<version>\d+\.\d+\.\d+))?")


@dataclass(frozen=True)
class Request:
    """Which decoded dataset is wanted.

    Attributes:
      builder: name of the TFDS builder.
      config: name of the builder's config; null: its default.
      version: null: the newest there is.
      image_size: height and width to resize to; null: as they are.
    """

    builder: str
    config: str | None
    version: str | None
    image_size: tuple[int, int] | None

    @property
    def name(self) -> str:
        """The name as TFDS writes it, without the version."""
        return f"{self.builder}/{self.config}" if self.config else self.builder


@dataclass(frozen=True)
class Meta:
    """What meta.json says of a decoded dataset.

    Attributes:
      name: builder.
      config: the builder's config, null where it has none.
      default_config: whether `config` is what the bare builder name means.
      version: the builder's version.
      image_size: size that images were resized to, null for their own.
      num_classes: number of labels.
      class_names: their names, in label order.
      splits: number of examples of each split, in TFDS's order.
      digest: see `arrays.digest`.
      source: where the data came from, in words.
      format: version of this layout.
    """

    name: str
    config: str | None
    default_config: bool
    version: str
    image_size: list[int] | None
    num_classes: int
    class_names: list[str]
    splits: dict[str, int]
    digest: str
    source: str
    format: int = FORMAT

    @property
    def folder(self) -> str:
        """Folder name in the cache."""
        size = "x".join(str(side) for side in self.image_size) if self.image_size else None
        parts = [part for part in (self.name, self.config, self.version, size) if part]
        return re.sub(r"[^\w.+-]", "_", "-".join(parts))


def data_dir(config: DatasetConfig) -> Path:
    """Where prepared data lies: `dataset.data_dir`, else $TFDS_DATA_DIR, else ~/tensorflow_datasets."""
    chosen = config.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(chosen).expanduser().absolute()


def decoded_dir(root: Path) -> Path:
    """The cache's folder inside a data_dir."""
    return root / ".decoded"


def request(config: DatasetConfig) -> Request:
    """Reads `dataset.name` and `dataset.image_size`.

    Args:
      config: the dataset's config.

    Returns:
      What to look for in the cache.

    Raises:
      ConfigError: the name is none of a builder that TFDS ships, or the size is not two positive numbers.
    """
    match = _NAME.fullmatch(config.name)
    if match is None:
        # Community names, as in `namespace:name`, would have TFDS fetch and import code.
        allowed = "a builder that TFDS ships, as cifar10, emnist/letters or mnist:3.0.1, or digits"
        raise refuse("dataset.name", config.name, allowed=allowed, mend="dataset.name=mnist works")
    size = config.image_size
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise refuse(
            "dataset.image_size",
            list(size),
            allowed="height and width, both positive",
            mend="write dataset.image_size=[64,64]",
        )
    return Request(match["builder"], match["config"], match["version"], (size[0], size[1]) if size else None)


def find(root: Path, wanted: Request) -> tuple[Path, Meta] | None:
    """Looks a decoded dataset up.

    Args:
      root: the data_dir.
      wanted: what is asked for; without a version, the newest is taken.

    Returns:
      Its folder and its meta.json, or None.
    """
    found = [(path.parent, meta) for path in decoded_dir(root).glob("[!.]*/meta.json") if (meta := _read_meta(path))]
    fits = [entry for entry in found if _fits(entry[1], wanted)]
    return max(fits, key=lambda entry: [int(part) for part in entry[1].version.split(".")], default=None)


def _fits(meta: Meta, wanted: Request) -> bool:
    return (
        meta.name == wanted.builder
        and (meta.config == wanted.config if wanted.config else meta.default_config)
        and wanted.version in (None, meta.version)
        and meta.image_size == (list(wanted.image_size) if wanted.image_size else None)
    )


def _read_meta(path: Path) -> Meta | None:
    try:
        fields = json.loads(path.read_text("utf-8"))
        return Meta(**fields) if fields.get("format") == FORMAT else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None  # of another layout, or removed meanwhile: it is decoded anew


def write_meta(folder: Path, meta: Meta) -> None:
    """Writes meta.json; it comes last, so a folder that has one is complete."""
    (folder / _META).write_text(json.dumps(asdict(meta), indent=1), "utf-8")


def publish(partial: Path, root: Path, meta: Meta) -> Path:
    """Moves a finished folder to its place in one step; the caller holds the lock.

    Args:
      partial: the folder, on the same file system.
      root: the data_dir.
      meta: names the place.

    Returns:
      The place.
    """
    final = decoded_dir(root) / meta.folder
    remove(final)  # of another format, or broken
    partial.replace(final)
    return final


def remove(folder: Path) -> None:
    """Removes a decoded dataset, or what a killed process left of one.

    Raises:
      DataError: it holds something else besides, which stays.
    """
    split = ("images.npy", "labels.npy")
    names = [_META, *(f"{one.parent.name}/{one.name}" for name in split for one in folder.glob(f"*/{name}"))]
    remove_files(folder, names)
    remove_empty([*folder.glob("*"), folder])
    if folder.exists():
        raise DataError(f"{folder} is in the way, and holds what no run wrote; move that elsewhere")


def arrays(folder: Path, split: str) -> tuple[Images, Labels]:
    """Maps a split's arrays from disk.

    Args:
      folder: a dataset's folder in the cache.
      split: the split's name.

    Returns:
      Images, uint8 (N, H, W, C), and labels, int32 (N,), both read-only.

    Raises:
      DataError: a file is missing or no such array.
    """
    try:
        images = np.load(folder / split / "images.npy", mmap_mode="r", allow_pickle=False)
        labels = np.load(folder / split / "labels.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"the decoded data in {folder} is broken ({error}), remove that folder") from error
    if images.dtype != np.uint8 or images.ndim != 4 or labels.dtype != np.int32 or labels.shape != images.shape[:1]:
        raise DataError(f"the decoded data in {folder} holds other arrays than it should, remove that folder")
    return images, labels


def read(folder: Path, meta: Meta, train: Sequence[Slice], evaluate: Sequence[Slice]) -> Dataset:
    """Cuts the two selections out of a decoded dataset.

    Args:
      folder: its folder.
      meta: its meta.json.
      train: terms of `dataset.train`.
      evaluate: terms of `dataset.eval`.

    Returns:
      The dataset. A selection of one range stays a view of the file where it is 1 GiB or more; sums of ranges and
      smaller selections are copied into RAM.

    Raises:
      ConfigError: a selection does not fit the splits, or selects examples without labels.
      DataError: the files are broken.
    """
    parts = {key: _select(folder, meta, key, terms) for key, terms in (("train", train), ("eval", evaluate))}
    return Dataset(
        name=f"{meta.name}/{meta.config}" if meta.config else meta.name,
        version=meta.version,
        train=parts["train"],
        eval=parts["eval"],
        num_classes=meta.num_classes,
        class_names=tuple(meta.class_names),
        digest=meta.digest,
        source=meta.source,
    )


def ranges(key: str, terms: Sequence[Slice], sizes: dict[str, int]) -> list[tuple[str, int, int]]:
    """`splits.resolve`, refusing in the form that a config key's refusal has.

    Raises:
      ConfigError: a term does not fit the splits.
    """
    try:
        return resolve(terms, sizes)
    except ValueError as error:
        raise ConfigError(f"dataset.{key} is refused: {error}; write dataset.{key}={next(iter(sizes))}") from error


def _select(folder: Path, meta: Meta, key: str, terms: Sequence[Slice]) -> Split:
    pieces = []
    for name, start, stop in ranges(key, terms, meta.splits):
        images, labels = arrays(folder, name)
        if len(labels) != meta.splits[name]:
            raise DataError(f"the decoded data in {folder} holds {len(labels)} examples of {name}, remove that folder")
        pieces.append((images[start:stop], labels[start:stop]))
    labels = np.concatenate([piece[1] for piece in pieces])
    if labels.min() < 0 or labels.max() >= meta.num_classes:
        names = "+".join(term.name for term in terms)
        allowed = f"{meta.name} withholds labels there, and only examples with one can be used"
        raise refuse(f"dataset.{key}", names, allowed=allowed, mend=f"the splits are {', '.join(meta.splits)}")
    return Split(_gather([piece[0] for piece in pieces]), labels)


def _gather(pieces: list[Images]) -> Images:
    if len(pieces) > 1:
        return np.concatenate(pieces)
    return np.array(pieces[0]) if pieces[0].nbytes < RAM_BYTES else pieces[0]

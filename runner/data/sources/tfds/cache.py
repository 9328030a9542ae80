"""The decoded cache: `<data_dir>/.decoded/<builder>-<config>-<version>[-HxW][-...]/`, one folder of arrays a split."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data.base import Array, ArraySource, ArraySpec
from runner.data.cut import Whole
from runner.errors import DataError, invalid
from runner.host.folders import remove_empty, remove_files

FORMAT = 2
TEXTS_FORMAT = 3  # of documents, in text.jsonl
_IMAGES_FORMAT = 1  # of images and class labels alone, in images.npy and labels.npy
_IMAGES_FILES = {"image": "images.npy", "label": "labels.npy"}
_META = "meta.json"
_TEXTS = "text.jsonl"

_NAME = re.compile(r"(?P<builder>\w+)(?:/(?P<config>[\w.+-]+))?(?::(?P<version>\d+\.\d+\.\d+))?")


@dataclass(frozen=True)
class Request:
    """Which decoded dataset is wanted.

    Attributes:
      builder: name of the TFDS builder, or import path of a user's own.
      config: name of the builder's config; null: its default.
      version: null: the newest there is.
      image_size: height and width to resize to; null: as they are.
      features: names of the features that are taken; null: the supervised ones.
      code: of a user's own builder, the first digits of its source's sha256; null: one that TFDS ships.
      text: whether a feature of text is wanted, as documents; else arrays are.
    """

    builder: str
    config: str | None = None
    version: str | None = None
    image_size: tuple[int, int] | None = None
    features: tuple[str, ...] | None = None
    code: str | None = None
    text: bool = False

    @property
    def name(self) -> str:
        """The name as TFDS writes it, without the version."""
        return f"{self.builder}/{self.config}" if self.config else self.builder

    @property
    def key(self) -> str:
        """What names it on the command line, with its value."""
        return f"dataset.builder={self.builder}" if self.code else f"dataset.name={self.name}"


@dataclass(frozen=True)
class Meta:
    """What meta.json says of a decoded dataset.

    Attributes:
      name: builder.
      config: the builder's config, null where it has none.
      default_config: whether `config` is what the bare builder name means.
      version: the builder's version.
      image_size: size that images were resized to, null for their own.
      features: names of the features that were asked for, null for the supervised ones.
      code: see `Request.code`.
      arrays: by name, the fields of an `ArraySpec`.
      splits: number of examples of each split, in TFDS's order.
      digest: see `runner.data.digest`.
      source: where the data came from, in words.
      format: version of this layout.
    """

    name: str
    config: str | None
    default_config: bool
    version: str
    image_size: list[int] | None
    features: list[str] | None
    code: str | None
    arrays: dict[str, dict[str, Any]]
    splits: dict[str, int]
    digest: str
    source: str
    format: int = FORMAT

    @property
    def folder(self) -> str:
        """Folder name in the cache."""
        size = "x".join(str(side) for side in self.image_size) if self.image_size else None
        features = ",".join(self.features) if self.features else None
        kind = "text" if self.format == TEXTS_FORMAT else None
        parts = [part for part in (self.name, self.config, self.version, size, features, self.code, kind) if part]
        return re.sub(r"[^\w.+-]", "_", "-".join(parts))

    @property
    def specs(self) -> dict[str, ArraySpec]:
        """Specs of the arrays."""
        return {
            name: ArraySpec(tuple(one["shape"]), one["dtype"], tuple(one["dims"]), tuple(one["names"]))
            for name, one in self.arrays.items()
        }

    def file(self, array: str) -> str:
        """Name of an array's file in the folder of a split."""
        return _IMAGES_FILES[array] if self.format == _IMAGES_FORMAT else f"{array}.npy"


def data_dir(config: DatasetConfig) -> Path:
    """Where prepared data lies: `dataset.data_dir`, else $TFDS_DATA_DIR, else ~/tensorflow_datasets."""
    chosen = config.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(chosen).expanduser().absolute()


def decoded_dir(root: Path) -> Path:
    """The cache's folder inside a data_dir."""
    return root / ".decoded"


def request(config: DatasetConfig, code: str | None = None) -> Request:
    """Reads what of a config says which data is wanted.

    Args:
      config: the dataset's config.
      code: of a user's own builder, see `Request.code`.

    Returns:
      What to look for in the cache.

    Raises:
      ConfigError: the name is none of a builder that TFDS ships.
    """
    size = (config.image_size[0], config.image_size[1]) if config.image_size else None
    features = tuple(config.features) if config.features else None
    text = config.tokenizer is not None
    if config.builder is not None:
        return Request(config.builder, image_size=size, features=features, code=code, text=text)
    match = _NAME.fullmatch(config.name)
    if match is None:
        # Community names, as in `namespace:name`, would have TFDS fetch and import code.
        allowed = "a builder that TFDS ships, as cifar10, emnist/letters or mnist:3.0.1, or digits"
        raise invalid("dataset.name", config.name, problem=allowed, fix="dataset.name=mnist works")
    return Request(match["builder"], match["config"], match["version"], size, features, text=text)


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
        meta.code == wanted.code
        and (meta.format == TEXTS_FORMAT) == wanted.text
        and (wanted.code is not None or meta.name == wanted.builder)
        and (meta.config == wanted.config if wanted.config else meta.default_config)
        and wanted.version in (None, meta.version)
        and meta.image_size == (list(wanted.image_size) if wanted.image_size else None)
        and meta.features == (list(wanted.features) if wanted.features else None)
    )


def _read_meta(path: Path) -> Meta | None:
    try:
        fields = json.loads(path.read_text("utf-8"))
        if fields.get("format") == _IMAGES_FORMAT:
            fields = _of_images(path.parent, fields)
        return Meta(**fields) if fields.get("format") in (_IMAGES_FORMAT, FORMAT, TEXTS_FORMAT) else None
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None  # of another layout, or removed meanwhile: it is decoded again


def _of_images(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Completes what meta.json says in the first format, whose images tell their shape themselves."""
    del fields["num_classes"]
    label = ArraySpec((), "int32", (), tuple(fields.pop("class_names")))
    shape: tuple[int, ...] = ()
    with contextlib.suppress(OSError, ValueError):  # a broken file is told of by who reads it
        first = folder / next(iter(fields["splits"])) / "images.npy"
        shape = np.load(first, mmap_mode="r", allow_pickle=False).shape[1:]
    image = ArraySpec(shape, "uint8", ("height", "width", "channel"))
    return fields | {"features": None, "code": None, "arrays": {"image": asdict(image), "label": asdict(label)}}


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
    written = [one for pattern in ("*.npy", _TEXTS) for one in folder.glob(f"*/{pattern}")]
    names = [_META, *(f"{one.parent.name}/{one.name}" for one in written)]
    remove_files(folder, names)
    remove_empty([*folder.glob("*"), folder])
    if folder.exists():
        raise DataError(f"{folder} is in the way, and holds what no run wrote; move that elsewhere")


def texts(folder: Path, split: str) -> Path:
    """Returns the file of a split's documents, an object a line whose field `text` holds one."""
    return folder / split / _TEXTS


def arrays(folder: Path, meta: Meta, split: str) -> dict[str, Array]:
    """Maps a split's arrays from disk.

    Args:
      folder: a dataset's folder in the cache.
      meta: its meta.json.
      split: the split's name.

    Returns:
      Arrays by name, each (N, ...), read-only.

    Raises:
      DataError: a file is missing or no such array.
    """
    found = {}
    for name, spec in meta.specs.items():
        try:
            array = np.load(folder / split / meta.file(name), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"the decoded data in {folder} is broken ({error}), remove that folder") from error
        if array.dtype != spec.dtype or array.shape[1:] != spec.shape:
            raise DataError(f"the decoded data in {folder} holds other arrays than it should, remove that folder")
        if len(array) != meta.splits[split]:
            raise DataError(f"the decoded data in {folder} holds {len(array)} examples of {split}, remove that folder")
        found[name] = array
    return found


def read(folder: Path, meta: Meta) -> Whole:
    """Reads a decoded dataset; its arrays stay on disk.

    Raises:
      DataError: the files are broken.
    """
    specs: Mapping[str, ArraySpec] = meta.specs
    return Whole(
        name=f"{meta.name}/{meta.config}" if meta.config else meta.name,
        version=meta.version,
        splits={split: ArraySource(arrays(folder, meta, split), specs) for split in meta.splits},
        digest=meta.digest,
        source=meta.source,
    )

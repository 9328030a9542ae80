"""The cache of decoded TFDS datasets.

Its files are `<data_dir>/.decoded/<builder>-<config>-<version>[-HxW][-...]/<split>/<array>.npy`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data.base import IMAGE_DIMS, Array, ArraySource, ArraySpec, FullDataset
from runner.data.sources import prepared
from runner.errors import DataError, invalid
from runner.host.folders import remove_empty, remove_files

Value = TypeVar("Value")

# Versions of the layout. 1: images and class labels only, in images.npy and labels.npy; still read. 2: any arrays.
# 3: documents, in text.jsonl.
_IMAGES_FORMAT = 1
FORMAT = 2
TEXTS_FORMAT = 3
_FORMATS = (_IMAGES_FORMAT, FORMAT, TEXTS_FORMAT)
_IMAGES_FILES = {"image": "images.npy", "label": "labels.npy"}
_TEXT_FILE = "text.jsonl"

_NAME = re.compile(r"(?P<builder>\w+)(?:/(?P<config>[\w.+-]+))?(?::(?P<version>\d+\.\d+\.\d+))?")


@dataclass(frozen=True)
class Request:
    """The requested decoded dataset.

    Attributes:
      builder: name of the TFDS builder, or import path of a user's own.
      config: name of the builder's config; None: its default.
      version: None: the newest.
      image_size: height and width to resize to; None: no resizing.
      features: names of the features to decode; None: the supervised ones.
      code: of a user's own builder, the first digits of its source's sha256; None: one that TFDS ships.
      text: whether a text feature is requested, as documents; else arrays are.
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
        return _full_name(self.builder, self.config)

    @property
    def key(self) -> str:
        """The config key that names the dataset, with its value."""
        if self.code:
            return f"dataset.builder={self.builder}"
        return f"dataset.name={self.name}"


@dataclass(frozen=True)
class Meta:
    """The content of a decoded dataset's meta.json.

    Attributes:
      name: the name of the builder.
      config: the config of the builder; None if it has none.
      default_config: whether the builder's name without a config means `config`.
      version: the version of the builder.
      image_size: size that images were resized to; None: not resized.
      features: names of the requested features; None: the supervised ones.
      code: see `Request.code`.
      arrays: by name, the fields of an `ArraySpec`.
      splits: number of examples of each split, in TFDS's order.
      digest: see `runner.data.digest`.
      source: where the data came from, for the record.
      format: version of the layout.
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
    def full_name(self) -> str:
        """The name as TFDS writes it, without the version."""
        return _full_name(self.name, self.config)

    @property
    def folder(self) -> str:
        """Name of the folder in the cache."""
        parts = [self.name, self.config, self.version]
        if self.image_size:
            parts.append("x".join(map(str, self.image_size)))
        if self.features:
            parts.append(",".join(self.features))
        parts.append(self.code)
        if self.format == TEXTS_FORMAT:
            parts.append("text")
        name = "-".join(filter(None, parts))
        return re.sub(r"[^\w.+-]", "_", name)

    @property
    def specs(self) -> dict[str, ArraySpec]:
        """Specs of the arrays."""
        specs = {}
        for name, fields in self.arrays.items():
            specs[name] = ArraySpec(
                tuple(fields["shape"]), fields["dtype"], tuple(fields["dims"]), tuple(fields["names"])
            )
        return specs

    def file(self, array: str) -> str:
        """Returns the name of an array's file in the folder of a split."""
        if self.format == _IMAGES_FORMAT:
            return _IMAGES_FILES[array]
        return f"{array}.npy"


def _full_name(builder: str, config: str | None) -> str:
    if not config:
        return builder
    return f"{builder}/{config}"


def data_dir(config: DatasetConfig) -> Path:
    """Returns the folder of prepared data.

    It is `dataset.data_dir`, else $TFDS_DATA_DIR, else ~/tensorflow_datasets.
    """
    folder = config.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(folder).expanduser().absolute()


def decoded_dir(root: Path) -> Path:
    """Returns the cache's folder inside a data_dir."""
    return root / ".decoded"


def request(config: DatasetConfig, code: str | None = None) -> Request:
    """Returns the data that a config requests.

    Args:
      config: the dataset's config.
      code: of a user's own builder, see `Request.code`.

    Raises:
      ConfigError: the name is not that of a builder that TFDS ships.
    """
    size = None
    if config.image_size:
        height, width = config.image_size
        size = (height, width)
    features = None
    if config.features:
        features = tuple(config.features)
    text = config.tokenizer is not None
    if config.builder is not None:
        return Request(config.builder, image_size=size, features=features, code=code, text=text)
    match = _NAME.fullmatch(config.name)
    if match is None:
        # This excludes community names such as `namespace:name`, for which TFDS would download and import code.
        raise invalid(
            "dataset.name",
            config.name,
            problem="must be a builder that TFDS ships, such as cifar10, emnist/letters or mnist:3.0.1, or digits",
            fix="try dataset.name=mnist",
        )
    return Request(match["builder"], match["config"], match["version"], size, features, text=text)


def as_list(values: Sequence[Value] | None) -> list[Value] | None:
    """Returns values as JSON stores them; None if there are none."""
    if not values:
        return None
    return list(values)


def find(root: Path, request: Request) -> tuple[Path, Meta] | None:
    """Looks up a decoded dataset.

    Args:
      root: the data_dir.
      request: the requested data; without a version, the newest is returned.

    Returns:
      Its folder and its meta.json, or None.
    """
    newest: tuple[Path, Meta] | None = None
    newest_version: list[int] = []
    for path in decoded_dir(root).glob(f"[!.]*/{prepared.META}"):
        meta = _read_meta(path)
        if meta is None or not _matches(meta, request):
            continue
        version = list(map(int, meta.version.split(".")))
        if newest is None or version > newest_version:
            newest = (path.parent, meta)
            newest_version = version
    return newest


def _matches(meta: Meta, request: Request) -> bool:
    is_same_builder = meta.code == request.code and (request.code is not None or meta.name == request.builder)
    is_same_config = meta.config == request.config
    if request.config is None:
        is_same_config = meta.default_config
    is_same_version = request.version in (None, meta.version)
    is_same_content = (
        (meta.format == TEXTS_FORMAT) == request.text
        and meta.image_size == as_list(request.image_size)
        and meta.features == as_list(request.features)
    )
    return is_same_builder and is_same_config and is_same_version and is_same_content


def _read_meta(path: Path) -> Meta | None:
    try:
        fields = json.loads(path.read_text("utf-8"))
        if fields.get("format") == _IMAGES_FORMAT:
            fields = _upgraded(path.parent, fields)
        if fields.get("format") not in _FORMATS:
            return None
        return Meta(**fields)
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        # Another layout, or deleted in the meantime: the data is decoded again.
        return None


def _upgraded(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Completes a meta.json of the first format, which has no specs.

    The shape is that of the stored images.
    """
    del fields["num_classes"]
    label = ArraySpec((), "int32", (), tuple(fields.pop("class_names")))
    shape: tuple[int, ...] = ()
    # Reading the arrays reports a corrupted file.
    with contextlib.suppress(OSError, ValueError):
        first = folder / next(iter(fields["splits"])) / "images.npy"
        shape = np.load(first, mmap_mode="r", allow_pickle=False).shape[1:]
    image = ArraySpec(shape, "uint8", IMAGE_DIMS)
    return fields | {"features": None, "code": None, "arrays": {"image": asdict(image), "label": asdict(label)}}


def write_meta(folder: Path, meta: Meta) -> None:
    """Writes meta.json, last: a folder that has one is complete."""
    (folder / prepared.META).write_text(json.dumps(asdict(meta), indent=1), "utf-8")


def publish(partial: Path, root: Path, meta: Meta) -> Path:
    """Moves a finished folder to its place in one step; the caller holds the lock.

    Args:
      partial: the folder, on the same file system.
      root: the data_dir.
      meta: determines the place.

    Returns:
      The place.
    """
    final = decoded_dir(root) / meta.folder
    # An existing folder there has another format or is corrupted.
    remove(final)
    partial.replace(final)
    return final


def remove(folder: Path) -> None:
    """Deletes a decoded dataset, or the remains of a killed process.

    Raises:
      DataError: it has other files, which stay.
    """
    names = [prepared.META]
    for pattern in ("*.npy", _TEXT_FILE):
        names.extend(f"{file.parent.name}/{file.name}" for file in folder.glob(f"*/{pattern}"))
    remove_files(folder, names)
    remove_empty([*folder.glob("*"), folder])
    if folder.exists():
        raise prepared.foreign_files(folder)


def text_file(folder: Path, split: str) -> Path:
    """Returns the file of a split's documents.

    It has one object per line, with the field `text`.
    """
    return folder / split / _TEXT_FILE


def arrays(folder: Path, meta: Meta, split: str) -> dict[str, Array]:
    """Memory-maps a split's arrays.

    Args:
      folder: a dataset's folder in the cache.
      meta: its meta.json.
      split: the split's name.

    Returns:
      Arrays by name, each (N, ...), read-only.

    Raises:
      DataError: a file is missing or has another array.
    """
    mapped = {}
    for name, spec in meta.specs.items():
        try:
            array = np.load(folder / split / meta.file(name), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise _corrupted(folder, str(error)) from error
        if array.dtype != spec.dtype or array.shape[1:] != spec.shape:
            raise _corrupted(
                folder, f"{split}/{name} is {array.dtype} {array.shape[1:]}, not {spec.dtype} {spec.shape}"
            )
        if len(array) != meta.splits[split]:
            raise _corrupted(folder, f"{split}/{name} has {len(array)} examples, not {meta.splits[split]}")
        mapped[name] = array
    return mapped


def _corrupted(folder: Path, problem: str) -> DataError:
    return DataError(f"the decoded data in {folder} is corrupted ({problem}); delete that folder")


def read(folder: Path, meta: Meta) -> FullDataset:
    """Reads a decoded dataset; its arrays stay memory-mapped.

    Raises:
      DataError: the files are corrupted.
    """
    specs = meta.specs
    return FullDataset(
        name=meta.full_name,
        version=meta.version,
        splits={split: ArraySource(arrays(folder, meta, split), specs) for split in meta.splits},
        digest=meta.digest,
        source=meta.source,
    )

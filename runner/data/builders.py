"""TFDS builders: found by name, and what of them is an image and a label. Imported in the child process only."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from runner.config.errors import ConfigError, DataError, refuse
from runner.data.cache import Request


@dataclass(frozen=True)
class Pair:
    """The supervised pair of a builder.

    Attributes:
      image: the image's feature key.
      label: the label's feature key.
      shape: height, width and channels of the decoded images.
      resize: whether images must be resized to that.
      class_names: in label order.
    """

    image: str
    label: str
    shape: tuple[int, int, int]
    resize: bool
    class_names: tuple[str, ...]


def one_line(error: BaseException, limit: int = 200) -> str:
    """An exception as one line: its type, and its text cut to `limit` characters."""
    text = " ".join(str(error).split())
    shown = text if len(text) <= limit else text[:limit].rstrip() + "…"
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def find_builder(root: Path, wanted: Request) -> Any:
    """Makes the TFDS builder that a request names, of the code that TFDS ships and no other.

    Args:
      root: the data_dir.
      wanted: builder, config and version.

    Returns:
      The `tfds.core.DatasetBuilder`.

    Raises:
      ConfigError: TFDS has no such builder, config or version.
      DataError: the builder needs a module that is not installed.
    """
    names = tfds.list_builders(with_community_datasets=False)
    if wanted.builder not in names:
        raise _unknown("dataset.name", wanted.builder, [*names, "digits"], "a TFDS builder's name or digits")
    try:
        cls = tfds.builder_cls(wanted.builder)
        configs = list(cls.builder_configs)
        if wanted.config and wanted.config not in configs:
            allowed = f"{wanted.builder} has {len(configs)} configs" if configs else f"{wanted.builder} has no configs"
            raise _unknown("dataset.name", wanted.name, [f"{wanted.builder}/{name}" for name in configs], allowed)
        return cls(data_dir=str(root), config=wanted.config, version=wanted.version)
    except ConfigError:
        raise
    except ImportError as error:
        raise DataError(f"dataset.name={wanted.name} needs a module that is missing: {one_line(error)}") from error
    except Exception as error:
        asked = f"{wanted.name}:{wanted.version}" if wanted.version else wanted.name
        raise refuse("dataset.name", asked, allowed=one_line(error), mend=f"try dataset.name={wanted.name}") from error


def _unknown(key: str, value: str, known: list[str], allowed: str) -> ConfigError:
    close = difflib.get_close_matches(value, known, n=3, cutoff=0.5) or known[:3]
    mend = f"did you mean {' or '.join(close)}?" if close else "leave the config out"
    return refuse(key, value, allowed=allowed, mend=mend)


def supervised_pair(builder: Any, wanted: Request) -> Pair:
    """Finds a builder's image and label.

    Args:
      builder: from `find_builder`; it need not be prepared.
      wanted: says the size to resize to, if any.

    Returns:
      The pair.

    Raises:
      ConfigError: there is no pair of an 8-bit image and a class label, or its images differ in size and no size is
        given.
    """
    keys, features = builder.info.supervised_keys, builder.info.features
    allowed = "only builders with an image and a class label"
    mend = "try dataset.name=cifar10"
    if not (keys and len(keys) == 2 and all(isinstance(key, str) for key in keys)):
        raise refuse("dataset.name", wanted.name, allowed=f"{allowed}, it has no such pair", mend=mend)
    image, label = features[keys[0]], features[keys[1]]
    plain = isinstance(image, tfds.features.Image) and not isinstance(image, tfds.features.LabeledImage)
    if not plain or not isinstance(label, tfds.features.ClassLabel) or label.num_classes is None:
        kinds = f"{keys[0]} is {type(image).__name__} and {keys[1]} is {type(label).__name__}"
        raise refuse("dataset.name", wanted.name, allowed=f"{allowed}, {kinds}", mend=mend)
    height, width, channels = image.shape
    if np.dtype(image.np_dtype) != np.uint8 or channels is None:
        found = f"{np.dtype(image.np_dtype)} with {channels or 'varying'} channels"
        raise refuse("dataset.name", wanted.name, allowed=f"only 8-bit images, it has {found}", mend=mend)
    rows, columns = wanted.image_size or (height, width)
    if rows is None or columns is None:
        allowed = f"the images of {wanted.name} differ in size, so one is needed"
        raise refuse("dataset.image_size", None, allowed=allowed, mend="write dataset.image_size=[64,64]")
    names = tuple(str(name) for name in label.names)
    return Pair(keys[0], keys[1], (rows, columns, channels), (rows, columns) != (height, width), names)

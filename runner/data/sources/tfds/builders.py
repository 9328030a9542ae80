"""TFDS builders: found by name or import path, and what of them is taken. Imported in the child process only."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from runner.data.base import RESERVED, ArraySpec
from runner.data.sources.tfds import cache
from runner.data.sources.tfds.cache import Request
from runner.errors import ConfigError, DataError, invalid

_FEATURES = "dataset.features"


@dataclass(frozen=True)
class Taken:
    """One feature of a builder, and the array that it becomes.

    Attributes:
      feature: its path in the builder's examples, as `image` or `features/age`.
      spec: of the array; of words, its `names` are known once all are read.
      resize: whether images must be resized to the spec's shape.
      words: whether it holds words, which become categories.
    """

    feature: str
    spec: ArraySpec
    resize: bool = False
    words: bool = False


def one_line(error: BaseException, limit: int = 200) -> str:
    """An exception as one line: its type, and its text cut to `limit` characters."""
    text = " ".join(str(error).split())
    shown = text if len(text) <= limit else text[:limit].rstrip() + "…"
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def find_builder(root: Path, wanted: Request) -> Any:
    """Makes the TFDS builder that a request names: of the code that TFDS ships, or a user's own.

    Args:
      root: the data_dir.
      wanted: builder, config and version.

    Returns:
      The `tfds.core.DatasetBuilder`.

    Raises:
      ConfigError: TFDS has no such builder, config or version, or the user's own is none.
      DataError: the builder needs a module that is not installed.
    """
    if wanted.code is not None:
        return _own_builder(root, wanted)
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
        raise invalid("dataset.name", asked, problem=one_line(error), fix=f"try dataset.name={wanted.name}") from error


def _own_builder(root: Path, wanted: Request) -> Any:
    """Makes a user's own builder; what it prepares lies in a folder that its source names, so it is never stale."""
    module, _, name = wanted.builder.rpartition(".")
    try:
        cls = getattr(import_module(module), name)
    except Exception as error:  # whatever a user's module raises at import
        fix = "fix that module"
        raise invalid(
            "dataset.builder", wanted.builder, problem=f"it does not import ({one_line(error)})", fix=fix
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, tfds.core.DatasetBuilder)):
        fix = "derive it from tfds.core.GeneratorBasedBuilder"
        raise invalid("dataset.builder", wanted.builder, problem="a builder class of TFDS", fix=fix)
    try:
        return cls(data_dir=str(cache.decoded_dir(root).parent / ".own_builders" / str(wanted.code)))
    except Exception as error:  # whatever its constructor raises
        raise invalid("dataset.builder", wanted.builder, problem=one_line(error), fix="fix that class") from error


def _unknown(key: str, value: str, known: list[str], allowed: str) -> ConfigError:
    close = difflib.get_close_matches(value, known, n=3, cutoff=0.5) or known[:3]
    fix = f"did you mean {' or '.join(close)}?" if close else "leave the config out"
    return invalid(key, value, problem=allowed, fix=fix)


def taken(builder: Any, wanted: Request) -> dict[str, Taken]:
    """Chooses a builder's features.

    Args:
      builder: from `find_builder`; it need not be prepared.
      wanted: names the features, and the size to resize images to, if any.

    Returns:
      What is taken, by the array's name: `image` and `label` of a supervised pair of these kinds, else the features'
      own names.

    Raises:
      ConfigError: there is no such feature, one that is no array, or images differ in size and no size is given.
    """
    features = dict(_flat(builder.info.features))
    if wanted.features is not None:
        for name in wanted.features:
            if name not in features:
                close = difflib.get_close_matches(name, features, n=1)
                fix = f"did you mean {close[0]}?" if close else f"write {_FEATURES}=[{','.join(list(features)[:2])}]"
                raise invalid(
                    _FEATURES, name, problem=f"the features of {wanted.name}: {', '.join(features)}", fix=fix
                )
        found = {_array_name(name): _taken(name, features[name], wanted, named=True) for name in wanted.features}
    else:
        names = list(_supervised(builder.info.supervised_keys))
        if not names:
            known = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items())
            first = ",".join(list(features)[:2])
            raise invalid(
                _FEATURES, None, problem=f"{wanted.name} names no supervised ones; it has {known}",
                fix=f"write {_FEATURES}=[{first}]",
            )  # fmt: skip
        found = {_array_name(name): _taken(name, features[name], wanted, named=False) for name in names}
        kinds = [type(features[name]) for name in names]
        if kinds == [tfds.features.Image, tfds.features.ClassLabel]:
            found = dict(zip(("image", "label"), found.values(), strict=True))
    for name in found:
        if name in RESERVED:
            raise invalid(_FEATURES, name, problem=f"{' and '.join(RESERVED)} are the runner's own", fix="rename it")
    return found


def text_of(builder: Any, wanted: Request) -> Taken:
    """Chooses the feature of a builder that holds its documents.

    Args:
      builder: from `find_builder`; it need not be prepared.
      wanted: names it, unless there is one alone or a supervised one.

    Raises:
      ConfigError: there is no such feature, none of text, or several.
    """
    texts = [name for name, feature in _flat(builder.info.features) if type(feature) is tfds.features.Text]
    supervised = [name for name in _supervised(builder.info.supervised_keys) if name in texts]
    named = list(wanted.features) if wanted.features is not None else (texts if len(texts) == 1 else supervised[:1])
    if len(named) != 1 or named[0] not in texts:
        there = ", ".join(texts) or "none"
        raise invalid(
            _FEATURES,
            ",".join(named) or None,
            problem=f"one feature of text of {wanted.name}, which has {there}",
            fix=f"write {_FEATURES}=[{texts[0]}]" if texts else "leave dataset.tokenizer out",
        )
    return Taken(named[0], ArraySpec((), "int32"), words=True)


def _array_name(feature: str) -> str:
    return feature.replace("/", "_").replace("-", "_").replace(" ", "_")


def _flat(features: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, feature in features.items():
        if type(feature) is tfds.features.FeaturesDict:
            yield from _flat(feature, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", feature


def _supervised(keys: Any) -> Iterator[str]:
    """Yields the paths of the supervised features, which may be nested in any way."""
    if isinstance(keys, str):
        yield keys
    elif isinstance(keys, Mapping):
        for one in keys.values():
            yield from _supervised(one)
    elif keys:
        for one in keys:
            yield from _supervised(one)


def _taken(name: str, feature: Any, wanted: Request, *, named: bool) -> Taken:
    if type(feature) is tfds.features.Image:
        return _image(name, feature, wanted)
    if isinstance(feature, tfds.features.ClassLabel) and feature.num_classes is not None:
        return Taken(name, ArraySpec((), "int32", names=tuple(str(one) for one in feature.names)))
    text = f"{wanted.name}: {name} is {type(feature).__name__}"
    others = f"name others, as {_FEATURES}=[image,label]"
    plain = type(feature) in (tfds.features.Tensor, tfds.features.Scalar, tfds.features.Text, tfds.features.ClassLabel)
    if not plain or feature.shape is None or any(size is None for size in feature.shape):
        allowed = f"images, labels, numbers and arrays of a fixed shape, and {text}"
        raise invalid(_FEATURES, name, problem=allowed, fix=others)
    dtype = np.dtype(feature.np_dtype)
    if dtype.kind in "OSU":
        if feature.shape == () and named:
            return Taken(name, ArraySpec((), "int32"), words=True)
        fix = f"set dataset.tokenizer=bytes, or {others}; words of few kinds can be named there"
        raise invalid(_FEATURES, name, problem=f"numbers, and {text}, which needs a tokenizer", fix=fix)
    kind = {"b": "bool", "f": "float32", "i": "int32", "u": "int32"}.get(dtype.kind)
    if kind is None:
        raise invalid(_FEATURES, name, problem=f"numbers, and {text} of {dtype}", fix=others)
    return Taken(name, ArraySpec(tuple(feature.shape), kind))


def _image(name: str, feature: Any, wanted: Request) -> Taken:
    height, width, channels = feature.shape
    if np.dtype(feature.np_dtype) != np.uint8 or channels is None:
        found = f"{np.dtype(feature.np_dtype)} with {channels or 'varying'} channels"
        raise invalid(
            _FEATURES, name, problem=f"only 8-bit images, {wanted.name} has {found}", fix="try dataset.name=cifar10"
        )
    rows, columns = wanted.image_size or (height, width)
    if rows is None or columns is None:
        allowed = f"the images of {wanted.name} differ in size, so one is needed"
        raise invalid("dataset.image_size", None, problem=allowed, fix="write dataset.image_size=[64,64]")
    spec = ArraySpec((rows, columns, channels), "uint8", ("height", "width", "channel"))
    return Taken(name, spec, resize=(rows, columns) != (height, width))

"""TFDS builders and the selection of their features. Child process only."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from runner.data.base import IMAGE_DIMS, RESERVED, ArraySpec
from runner.data.sources.tfds.cache import Request
from runner.errors import ConfigError, DataError, invalid

_FEATURES = "dataset.features"
# dtype of the array, by the kind of a feature's dtype.
_ARRAY_DTYPES = {"b": "bool", "f": "float32", "i": "int32", "u": "int32"}
# Suggestions that an error lists, and how similar they must be to what was typed.
_SUGGESTIONS = 3
_SIMILARITY = 0.5


@dataclass(frozen=True)
class SelectedFeature:
    """One feature of a builder, and the array that it becomes.

    Attributes:
      feature: its path in the builder's examples, such as `image` or `features/age`.
      spec: the spec of the array; the `names` of strings are known only once all of them are read.
      resize: whether images must be resized to the spec's shape.
      is_string: whether the feature is a string, which becomes a category.
    """

    feature: str
    spec: ArraySpec
    resize: bool = False
    is_string: bool = False


def one_line(error: BaseException, limit: int = 200) -> str:
    """Returns an exception as one line of its type and its truncated text."""
    text = " ".join(str(error).split())
    if len(text) > limit:
        text = text[:limit].rstrip() + "…"
    kind = type(error).__name__
    if not text:
        return kind
    return f"{kind}: {text}"


def find_builder(root: Path, request: Request) -> Any:
    """Returns the TFDS builder that a request names.

    It is one that TFDS ships, or a user's own.

    Args:
      root: the data_dir.
      request: its builder, config and version.

    Returns:
      The `tfds.core.DatasetBuilder`.

    Raises:
      ConfigError: TFDS has no such builder, config or version, or the user's class is not a builder.
      DataError: the builder needs a module that is not installed.
    """
    if request.code is not None:
        return _own_builder(root, request)
    names = tfds.list_builders(with_community_datasets=False)
    if request.builder not in names:
        raise _unknown("dataset.name", request.builder, [*names, "digits"], "unknown TFDS builder")
    try:
        builder_class = tfds.builder_cls(request.builder)
        configs = list(builder_class.builder_configs)
        if request.config and request.config not in configs:
            problem = f"unknown config ({request.builder} has {len(configs) or 'none'})"
            raise _unknown("dataset.name", request.name, [f"{request.builder}/{name}" for name in configs], problem)
        return builder_class(data_dir=str(root), config=request.config, version=request.version)
    except ConfigError:
        raise
    except ImportError as error:
        raise DataError(
            f"dataset.name={request.name}: needs a module that is not installed ({one_line(error)}); install it"
        ) from error
    # Builders raise errors of any type.
    except Exception as error:
        typed = request.name
        if request.version:
            typed += f":{request.version}"
        fix = f"try dataset.name={request.name}"
        raise invalid("dataset.name", typed, problem=one_line(error), fix=fix) from error


def _own_builder(root: Path, request: Request) -> Any:
    """Returns a user's own builder.

    Its data is in a folder named by its source code, so it is never out of date.
    """
    module, _, name = request.builder.rpartition(".")
    try:
        builder_class = getattr(import_module(module), name)
    # A user's module may raise errors of any type when it is imported.
    except Exception as error:
        problem = f"can't be imported ({one_line(error)})"
        raise invalid("dataset.builder", request.builder, problem=problem, fix="fix that module") from error
    if not (isinstance(builder_class, type) and issubclass(builder_class, tfds.core.DatasetBuilder)):
        raise invalid(
            "dataset.builder",
            request.builder,
            problem="must be a TFDS builder class",
            fix="derive it from tfds.core.GeneratorBasedBuilder",
        )
    data_dir = root / ".own_builders" / str(request.code)
    try:
        return builder_class(data_dir=str(data_dir))
    # A user's constructor may raise errors of any type.
    except Exception as error:
        raise invalid("dataset.builder", request.builder, problem=one_line(error), fix="fix that class") from error


def _unknown(key: str, value: str, known: list[str], problem: str) -> ConfigError:
    similar = difflib.get_close_matches(value, known, n=_SUGGESTIONS, cutoff=_SIMILARITY)
    suggestions = similar or known[:_SUGGESTIONS]
    fix = "remove the config from dataset.name"
    if suggestions:
        fix = f"did you mean {' or '.join(suggestions)}?"
    return invalid(key, value, problem=problem, fix=fix)


def selected_features(builder: Any, request: Request) -> dict[str, SelectedFeature]:
    """Selects the features of a builder that become arrays.

    Args:
      builder: from `find_builder`; it need not be prepared.
      request: names the features, and the size to resize images to.

    Returns:
      The features by the array's name: `image` and `label` for a supervised pair of these kinds, else the features'
      own names.

    Raises:
      ConfigError: there is no such feature, one can't become an array, or images differ in size and no size is given.
    """
    features = dict(_flat(builder.info.features))
    if request.features is not None:
        selected = _named_features(features, request)
    else:
        selected = _supervised_features(builder, features, request)
    for name in selected:
        if name in RESERVED:
            problem = f"is a reserved name ({' and '.join(RESERVED)} are the runner's)"
            raise invalid(_FEATURES, name, problem=problem, fix="select other features")
    return selected


def _named_features(features: Mapping[str, Any], request: Request) -> dict[str, SelectedFeature]:
    assert request.features is not None
    selected = {}
    for name in request.features:
        if name not in features:
            similar = difflib.get_close_matches(name, features, n=1)
            fix = f"set {_FEATURES}=[{','.join(list(features)[:2])}]"
            if similar:
                fix = f"did you mean {similar[0]}?"
            problem = f"{request.name} has no such feature (its features: {', '.join(features)})"
            raise invalid(_FEATURES, name, problem=problem, fix=fix)
        selected[_array_name(name)] = _select(name, features[name], request, is_named=True)
    return selected


def _supervised_features(builder: Any, features: Mapping[str, Any], request: Request) -> dict[str, SelectedFeature]:
    names = list(_supervised_names(builder.info.supervised_keys))
    if not names:
        described = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items())
        raise invalid(
            _FEATURES,
            None,
            problem=f"{request.name} states no supervised features (its features: {described})",
            fix=f"set {_FEATURES}=[{','.join(list(features)[:2])}]",
        )
    selected = {}
    for name in names:
        selected[_array_name(name)] = _select(name, features[name], request, is_named=False)
    kinds = [type(features[name]) for name in names]
    if kinds == [tfds.features.Image, tfds.features.ClassLabel]:
        image, label = selected.values()
        return {"image": image, "label": label}
    return selected


def selected_text(builder: Any, request: Request) -> SelectedFeature:
    """Selects the feature of a builder that has its documents.

    Args:
      builder: from `find_builder`; it need not be prepared.
      request: names the feature, unless there is only one text feature or a supervised one.

    Raises:
      ConfigError: there is no such feature, no text feature, or several.
    """
    texts = [name for name, feature in _flat(builder.info.features) if type(feature) is tfds.features.Text]
    if request.features is not None:
        names = list(request.features)
    elif len(texts) == 1:
        names = texts
    else:
        names = [name for name in _supervised_names(builder.info.supervised_keys) if name in texts][:1]
    if len(names) != 1 or names[0] not in texts:
        fix = "remove dataset.tokenizer"
        if texts:
            fix = f"set {_FEATURES}=[{texts[0]}]"
        raise invalid(
            _FEATURES,
            ",".join(names) or None,
            problem=f"must name one text feature of {request.name} (its text features: {', '.join(texts) or 'none'})",
            fix=fix,
        )
    return SelectedFeature(names[0], ArraySpec((), "int32"), is_string=True)


def _array_name(feature: str) -> str:
    return feature.replace("/", "_").replace("-", "_").replace(" ", "_")


def _flat(features: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every feature with its path, such as `features/age`."""
    for name, feature in features.items():
        if type(feature) is tfds.features.FeaturesDict:
            yield from _flat(feature, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", feature


def _supervised_names(keys: Any) -> Iterator[str]:
    """Yields the paths of the supervised features, which may be nested in any way."""
    if isinstance(keys, str):
        yield keys
    elif isinstance(keys, Mapping):
        for value in keys.values():
            yield from _supervised_names(value)
    elif keys:
        for value in keys:
            yield from _supervised_names(value)


def _select(name: str, feature: Any, request: Request, *, is_named: bool) -> SelectedFeature:
    """Returns the array of one feature.

    Strings become categories only if the config names the feature.
    """
    if type(feature) is tfds.features.Image:
        return _select_image(name, feature, request)
    if isinstance(feature, tfds.features.ClassLabel) and feature.num_classes is not None:
        return SelectedFeature(name, ArraySpec((), "int32", names=tuple(map(str, feature.names))))
    described = f"{request.name}: {name} is {type(feature).__name__}"
    fix = f"select other features, such as {_FEATURES}=[image,label]"
    simple_types = (tfds.features.Tensor, tfds.features.Scalar, tfds.features.Text, tfds.features.ClassLabel)
    has_fixed_shape = feature.shape is not None and None not in feature.shape
    if type(feature) not in simple_types or not has_fixed_shape:
        problem = f"must be images, labels, numbers or arrays of a fixed shape, but {described}"
        raise invalid(_FEATURES, name, problem=problem, fix=fix)
    dtype = np.dtype(feature.np_dtype)
    if dtype.kind in "OSU":
        if feature.shape == () and is_named:
            return SelectedFeature(name, ArraySpec((), "int32"), is_string=True)
        raise invalid(
            _FEATURES,
            name,
            problem=f"must be numeric, but {described}, which needs a tokenizer",
            fix=f"set dataset.tokenizer=bytes, or {fix}; strings of few kinds can be named there",
        )
    array_dtype = _ARRAY_DTYPES.get(dtype.kind)
    if array_dtype is None:
        raise invalid(_FEATURES, name, problem=f"must be numeric, but {described} of {dtype}", fix=fix)
    return SelectedFeature(name, ArraySpec(tuple(feature.shape), array_dtype))


def _select_image(name: str, feature: Any, request: Request) -> SelectedFeature:
    height, width, channels = feature.shape
    dtype = np.dtype(feature.np_dtype)
    if dtype != np.uint8 or channels is None:
        described = f"{dtype} with {channels or 'varying'} channels"
        raise invalid(
            _FEATURES,
            name,
            problem=f"must be 8-bit images, but {request.name} has {described}",
            fix="select other features, or another dataset",
        )
    rows, columns = request.image_size or (height, width)
    if rows is None or columns is None:
        raise invalid(
            "dataset.image_size",
            None,
            problem=f"the images of {request.name} differ in size, so they need a common size",
            fix="set dataset.image_size=[64,64]",
        )
    spec = ArraySpec((rows, columns, channels), "uint8", IMAGE_DIMS)
    return SelectedFeature(name, spec, resize=(rows, columns) != (height, width))

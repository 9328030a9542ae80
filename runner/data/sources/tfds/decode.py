"""The job of the child process: decodes a TFDS dataset into the cache.

`runner.data.sources.tfds.child` starts it, through `worker`.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow_datasets as tfds

from runner.data.base import Array, ArraySpec
from runner.data.digest import digest
from runner.data.sources.tfds import cache
from runner.data.sources.tfds.builders import (
    SelectedFeature,
    find_builder,
    one_line,
    selected_features,
    selected_text,
)
from runner.data.sources.tfds.cache import Meta, Request
from runner.data.sources.tfds.fetch import PreparedData, prepare
from runner.errors import ConfigError, DataError
from runner.host.late import late
from runner.host.lock import locked

if TYPE_CHECKING:
    import tensorflow as tf
else:
    # Takes seconds to import, and an invalid request is reported without it.
    tf = late("tensorflow")

# Examples per batch of the decoding pipeline: large enough that its overhead per batch does not matter.
_BATCH = 256
_TEXT = "text"
# A feature with more distinct strings is free text; the same limit as for a user's tables.
_MAX_CATEGORIES = 1000
_INT32 = np.iinfo(np.int32)
# Errors of a folder that this user may not write.
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)

# Feature -> string -> the number of its first occurrence.
_StringNumbers = dict[str, dict[bytes, int]]


def run(job: Mapping[str, Any], send: Callable[[str, str], None]) -> None:
    """Does one job and reports the outcome.

    Args:
      job: `root`, `request` (the fields of a `cache.Request`), `download` and `mirror`.
      send: takes the kind of a message and its text.
    """
    fields = dict(job["request"])
    for name in ("image_size", "features"):
        # JSON has lists only.
        if fields[name]:
            fields[name] = tuple(fields[name])
    request = Request(**fields)
    root = Path(job["root"])

    def report(text: str) -> None:
        send("progress", text)

    try:
        decode(root, request, download=job["download"], use_mirror=job["mirror"], report=report)
    except ConfigError as error:
        send("invalid", str(error))
    except DataError as error:
        send("failed", str(error))
    except Exception as error:
        # The parent gets one line, whatever TFDS raises; the log gets the traceback.
        send("failed", f"preparing {request.key} in {root} failed: {one_line(error)}")
        raise
    else:
        send("done", "")


def decode(root: Path, request: Request, *, download: bool, use_mirror: bool, report: Callable[[str], None]) -> None:
    """Prepares and decodes a dataset, unless another process just did.

    Args:
      root: the data_dir.
      request: the data to decode.
      download: whether anything may be downloaded.
      use_mirror: whether the mirror may be used if TFDS's hosts can't be reached.
      report: receives progress lines.

    Raises:
      ConfigError: a requested feature can't become an array.
      DataError: the data can't be prepared or stored.
    """
    builder = find_builder(root, request)
    if request.text:
        features = {_TEXT: selected_text(builder, request)}
    else:
        features = selected_features(builder, request)
    folder = cache.decoded_dir(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f"{builder.name}.lock", report, request.name):
            if cache.find(root, request):
                return
            data = prepare(builder, root, request, download=download, use_mirror=use_mirror, report=report)
            write(builder, features, root, request, data, report)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        raise DataError(
            f"{root} can't be written ({error.strerror}); decode {request.name} once as a user who may write there, "
            "or set dataset.data_dir to another folder"
        ) from error


def write(
    builder: Any,
    features: Mapping[str, SelectedFeature],
    root: Path,
    request: Request,
    data: PreparedData,
    report: Callable[[str], None],
) -> None:
    """Decodes a builder's data into the cache; the caller holds the lock.

    Args:
      builder: the `tfds.core.DatasetBuilder`.
      features: the features to decode, by the array's name.
      root: the data_dir.
      request: the requested data.
      data: the prepared data.
      report: receives progress lines.

    Raises:
      DataError: the builder has another number of examples than it states, or values that no array can represent.
    """
    sizes = _split_sizes(builder, data)
    if not sizes:
        raise DataError(f"dataset.name={request.name}: no split has examples; use another dataset")
    bytes_per_example = sum(feature.spec.bytes for feature in features.values())
    _require_space(request.name, root, sum(sizes.values()) * bytes_per_example)
    # The caller holds the lock, so an existing partial folder is of a run that was killed.
    partial = cache.decoded_dir(root) / f".partial-{builder.name}"
    cache.remove(partial)
    counts = ", ".join(f"{size:,} examples of {split}" for split, size in sizes.items())
    report(f"{request.name}: decoding {counts}")

    string_numbers: _StringNumbers = {}
    for name, feature in features.items():
        if feature.is_string:
            string_numbers[name] = {}
    for split, size in sizes.items():
        if data.examples is not None:
            _write_arrays(data.examples[split], partial / split)
        elif request.text:
            _write_texts(builder, features, split, cache.text_file(partial, split))
        else:
            _write_split(builder, features, string_numbers, split, size, partial / split)

    specs: dict[str, ArraySpec] = {}
    if not request.text:
        for name, feature in features.items():
            specs[name] = feature.spec
            if name in string_numbers:
                names = _sort_categories(name, string_numbers[name], partial, list(sizes))
                specs[name] = replace(feature.spec, names=names)
    meta = _meta(builder, request, data, specs, sizes)
    arrays_by_split = ((split, cache.arrays(partial, meta, split)) for split in sizes)
    meta = replace(meta, digest=digest(arrays_by_split))
    cache.write_meta(partial, meta)
    cache.publish(partial, root, meta)


def _split_sizes(builder: Any, data: PreparedData) -> dict[str, int]:
    """Returns the number of examples of each split that has any."""
    if data.examples is not None:
        return {split: len(arrays["label"]) for split, arrays in data.examples.items()}
    sizes = {}
    for split, info in builder.info.splits.items():
        if info.num_examples:
            sizes[split] = info.num_examples
    return sizes


def _meta(
    builder: Any, request: Request, data: PreparedData, specs: Mapping[str, ArraySpec], sizes: dict[str, int]
) -> Meta:
    config = None
    if builder.builder_config:
        config = builder.builder_config.name
    data_format = cache.FORMAT
    if request.text:
        data_format = cache.TEXTS_FORMAT
    default = builder.default_builder_config
    is_default = config is None or (default is not None and default.name == config)
    return Meta(
        name=builder.name,
        config=config,
        default_config=is_default,
        version=str(builder.version),
        image_size=cache.as_list(request.image_size),
        features=cache.as_list(request.features),
        code=request.code,
        arrays={name: asdict(spec) for name, spec in specs.items()},
        splits=sizes,
        digest="",
        source=data.label,
        format=data_format,
    )


def _write_arrays(arrays: Mapping[str, Array], folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)


def _write_split(
    builder: Any,
    features: Mapping[str, SelectedFeature],
    string_numbers: _StringNumbers,
    split: str,
    size: int,
    folder: Path,
) -> None:
    """Writes a split's arrays through memory maps, so they need not fit into memory."""
    folder.mkdir(parents=True)
    arrays = {}
    for name, feature in features.items():
        arrays[name] = np.lib.format.open_memmap(
            folder / f"{name}.npy", mode="w+", dtype=np.dtype(feature.spec.dtype), shape=(size, *feature.spec.shape)
        )
    start = 0
    for batch in _batches(builder, features, split):
        stop = start + len(next(iter(batch.values())))
        if stop > size:
            raise DataError(
                f"{builder.name} has more than the {size} examples of {split} that it states; prepare it again"
            )
        for name, values in batch.items():
            numbers = values
            if name in string_numbers:
                numbers = _number_strings(name, values, string_numbers[name])
            _check_range(f"{builder.name}, split {split}: {name}", numbers, arrays[name].dtype)
            arrays[name][start:stop] = numbers
        start = stop
    if start != size:
        raise DataError(f"{builder.name} has {start} examples of {split}, but states {size}; prepare it again")
    for array in arrays.values():
        array.flush()


def _write_texts(builder: Any, features: Mapping[str, SelectedFeature], split: str, path: Path) -> None:
    path.parent.mkdir(parents=True)
    with path.open("w", encoding="utf-8") as file:
        for batch in _batches(builder, features, split):
            for number, text in enumerate(batch[_TEXT]):
                try:
                    document = bytes(text).decode()
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{builder.name}, split {split}: {features[_TEXT].feature} is not UTF-8 near example "
                        f"{number:,}; select another feature with dataset.features"
                    ) from error
                file.write(json.dumps({_TEXT: document}, ensure_ascii=False) + "\n")


def _number_strings(name: str, values: Array, numbers: dict[bytes, int]) -> Array:
    """Returns the strings of a batch as numbers, in order of first occurrence."""
    batch_numbers = np.empty(len(values), np.int32)
    for index, value in enumerate(values):
        batch_numbers[index] = numbers.setdefault(bytes(value), len(numbers))
    if len(numbers) > _MAX_CATEGORIES:
        raise DataError(
            f"{name} has more than {_MAX_CATEGORIES} distinct strings, so it is text and not a category; select other "
            "features with dataset.features, or set dataset.tokenizer"
        )
    return batch_numbers


def _sort_categories(name: str, numbers: Mapping[bytes, int], folder: Path, splits: list[str]) -> tuple[str, ...]:
    """Renumbers a feature's strings alphabetically; returns the strings.

    So the numbers do not depend on the order of examples.
    """
    categories = sorted(numbers)
    new_numbers = np.empty(len(categories), np.int32)
    for new_number, category in enumerate(categories):
        new_numbers[numbers[category]] = new_number
    for split in splits:
        array = np.load(folder / split / f"{name}.npy", mmap_mode="r+", allow_pickle=False)
        array[:] = new_numbers[array]
        array.flush()
    return tuple(category.decode("utf-8", "replace") for category in categories)


def _check_range(place: str, values: Array, dtype: np.dtype[Any]) -> None:
    fix = "select other features with dataset.features"
    if dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError(f"{place} has a NaN or Inf; {fix}")
    if dtype == np.int32 and len(values) and not _INT32.min <= values.min() <= values.max() <= _INT32.max:
        raise DataError(f"{place} has integers outside the int32 range; {fix}")


def _batches(builder: Any, features: Mapping[str, SelectedFeature], split: str) -> Iterator[dict[str, Array]]:
    """Yields batches of arrays by name, in the order of TFDS's shards."""

    def select(example: Any) -> dict[str, Any]:
        arrays = {}
        for name, feature in features.items():
            value = example
            for part in feature.feature.split("/"):
                value = value[part]
            if feature.resize:
                value = _resized(value, feature.spec.shape[:2])
            arrays[name] = value
        return arrays

    data = builder.as_dataset(
        split=split,
        shuffle_files=False,
        decoders=tfds.decode.PartialDecoding(_partial_decoding(features)),
        # One shard after the other: the order of the examples must not depend on the timing of parallel reads.
        read_config=tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False),
    )
    data = data.map(select, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    yield from data.batch(_BATCH).prefetch(2).as_numpy_iterator()


def _partial_decoding(features: Mapping[str, SelectedFeature]) -> dict[str, Any]:
    """Returns the selected features as TFDS's nested dict.

    With it, no other feature is decoded.
    """
    selection: dict[str, Any] = {}
    for feature in features.values():
        *parents, leaf = feature.feature.split("/")
        level = selection
        for parent in parents:
            level = level.setdefault(parent, {})
        level[leaf] = True
    return selection


def _resized(image: tf.Tensor, size: tuple[int, ...]) -> tf.Tensor:
    image = tf.image.resize(image, size, method="bilinear", antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)


def _require_space(name: str, root: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(root).free
    if needed_bytes > free_bytes:
        raise DataError(
            f"{name} needs {needed_bytes / 1e9:.1f} GB for its decoded arrays, but {root} has "
            f"{free_bytes / 1e9:.1f} GB left; set dataset.data_dir to a larger disk, or lower dataset.image_size"
        )

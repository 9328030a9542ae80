"""The child process that gets a dataset prepared and writes it, decoded, into the cache.

`runner.data.sources.tfds.child` starts it, by way of `worker`.
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

from runner.data.base import Array
from runner.data.digest import digest
from runner.data.sources.tfds import cache, mirror
from runner.data.sources.tfds.builders import Taken, find_builder, one_line, taken, text_of
from runner.data.sources.tfds.cache import Meta, Request
from runner.data.sources.tfds.fetch import Source, prepare
from runner.errors import ConfigError, DataError
from runner.host.late import late
from runner.host.lock import locked

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = late("tensorflow")  # takes seconds, which a refusal of the request does not need

_BATCH = 256
_TEXT = "text"
_MOST_WORDS = 1000
_INT32 = np.iinfo(np.int32)


def run(job: Mapping[str, Any], report: Callable[[str, str], None]) -> None:
    """Does one job and reports how it went.

    Args:
      job: `root`, `wanted` (a `cache.Request`), `download` and `mirror`.
      report: takes a kind of message and its text.
    """
    fields = job["wanted"]
    sequences = {key: tuple(fields[key]) for key in ("image_size", "features") if fields[key]}
    wanted = Request(**(fields | sequences))
    root = Path(job["root"])
    try:
        decode(root, wanted, download=job["download"], use_mirror=job["mirror"], say=lambda text: report("say", text))
    except ConfigError as error:
        report("refused", str(error))
    except DataError as error:
        report("failed", str(error))
    except Exception as error:  # the boundary of the process: whatever TFDS raises becomes one line
        report("failed", f"preparing {wanted.key} in {root} failed: {one_line(error)}")
        raise
    else:
        report("done", "")


def decode(root: Path, wanted: Request, *, download: bool, use_mirror: bool, say: Callable[[str], None]) -> None:
    """Gets a dataset prepared and decodes it into the cache, unless another process just did.

    Args:
      root: the data_dir.
      wanted: what to decode.
      download: whether anything may be fetched.
      use_mirror: whether the package indexes may stand in for TFDS's hosts.
      say: told the progress.

    Raises:
      ConfigError: the request names what can't become arrays.
      DataError: the data can't be had or not be stored.
    """
    builder = find_builder(root, wanted)
    features = {_TEXT: text_of(builder, wanted)} if wanted.text else taken(builder, wanted)
    folder = cache.decoded_dir(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f"{builder.name}.lock", say, wanted.name):
            if cache.find(root, wanted):
                return
            as_files = _is_ordered(builder, wanted)
            source = prepare(builder, root, download=download, use_mirror=use_mirror, as_files=as_files, say=say)
            write(builder, features, root, wanted, source, say)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise DataError(
            f"{root} can't be written ({error.strerror}); decode {wanted.name} once where it can, or set "
            "dataset.data_dir to a folder of your own"
        ) from error


def _is_ordered(builder: Any, wanted: Request) -> bool:
    """Returns whether what is asked for is a builder's images and labels as they are, in an order that is known."""
    is_plain = wanted.features is None and wanted.image_size is None and wanted.code is None and not wanted.text
    return is_plain and mirror.ORDERED.get(builder.name) == str(builder.version)


def write(
    builder: Any,
    features: Mapping[str, Taken],
    root: Path,
    wanted: Request,
    source: Source,
    say: Callable[[str], None],
) -> None:
    """Decodes a builder's data into the cache; the caller holds the lock.

    Args:
      builder: the `tfds.core.DatasetBuilder`.
      features: what is taken of it, by the array's name.
      root: the data_dir.
      wanted: what was asked for.
      source: where the data is, and where it came from.
      say: told the progress.

    Raises:
      DataError: the builder holds other examples than it states, or values that no array can hold.
    """
    examples = None if source.files is None else mirror.ordered(source.files)
    if examples is None:
        sizes = {name: info.num_examples for name, info in builder.info.splits.items() if info.num_examples}
    else:
        sizes = {name: len(arrays["label"]) for name, arrays in examples.items()}
    if not sizes:
        raise DataError(f"{builder.name} has no split with examples")
    _require_space(wanted.name, root, sum(sizes.values()) * sum(one.spec.bytes for one in features.values()))
    partial = cache.decoded_dir(root) / f".partial-{builder.name}"  # under the lock, so one there is a killed run's
    cache.remove(partial)
    words: dict[str, dict[bytes, int]] = {name: {} for name, one in features.items() if one.words}
    say(f"{wanted.name}: decoding {', '.join(f'{size:,} examples of {name}' for name, size in sizes.items())}")
    for name, size in sizes.items():
        if examples is not None:
            _write_arrays(examples[name], partial / name)
        elif wanted.text:
            _write_texts(builder, features, name, cache.texts(partial, name))
        else:
            _write_split(builder, features, words, name, size, partial / name)
    names = {} if wanted.text else {name: _sort_words(name, found, partial, sizes) for name, found in words.items()}
    specs = {name: replace(one.spec, names=names.get(name, one.spec.names)) for name, one in features.items()}
    config = builder.builder_config.name if builder.builder_config else None
    default = builder.default_builder_config
    meta = Meta(
        name=builder.name,
        config=config,
        default_config=config is None or (default is not None and default.name == config),
        version=str(builder.version),
        image_size=list(wanted.image_size) if wanted.image_size else None,
        features=list(wanted.features) if wanted.features else None,
        code=wanted.code,
        arrays={} if wanted.text else {name: asdict(spec) for name, spec in specs.items()},
        splits=sizes,
        digest="",
        source=source.label,
        format=cache.TEXTS_FORMAT if wanted.text else cache.FORMAT,
    )
    meta = replace(meta, digest=digest((split, cache.arrays(partial, meta, split)) for split in sizes))
    cache.write_meta(partial, meta)
    cache.publish(partial, root, meta)


def _write_arrays(arrays: Mapping[str, Array], folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)


def _write_split(
    builder: Any,
    features: Mapping[str, Taken],
    words: Mapping[str, dict[bytes, int]],
    split: str,
    size: int,
    folder: Path,
) -> None:
    folder.mkdir(parents=True)
    whole = {
        name: np.lib.format.open_memmap(
            folder / f"{name}.npy", mode="w+", dtype=np.dtype(one.spec.dtype), shape=(size, *one.spec.shape)
        )
        for name, one in features.items()
    }
    done = 0
    for batch in _batches(builder, features, split):
        stop = done + len(next(iter(batch.values())))
        if stop > size:
            raise DataError(f"{builder.name} holds more than the {size} examples of {split} that it states")
        for name, values in batch.items():
            numbers = _codes(name, values, words[name]) if name in words else values
            whole[name][done:stop] = _checked(f"{builder.name}, split {split}: {name}", numbers, whole[name].dtype)
        done = stop
    if done != size:
        raise DataError(f"{builder.name} holds {done} examples of {split} and states {size}, prepare it again")
    for array in whole.values():
        array.flush()


def _write_texts(builder: Any, features: Mapping[str, Taken], split: str, path: Path) -> None:
    path.parent.mkdir(parents=True)
    with path.open("w", encoding="utf-8") as file:
        for batch in _batches(builder, features, split):
            for number, text in enumerate(batch[_TEXT]):
                try:
                    file.write(json.dumps({_TEXT: bytes(text).decode()}, ensure_ascii=False) + "\n")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{builder.name}, split {split}: {features[_TEXT].feature} holds what is not UTF-8, near "
                        f"example {number:,}; name another feature by dataset.features"
                    ) from error


def _codes(name: str, values: Array, known: dict[bytes, int]) -> Array:
    """Returns the words of a batch by the order in which they came up first."""
    codes = np.array([known.setdefault(bytes(word), len(known)) for word in values], np.int32)
    if len(known) > _MOST_WORDS:
        raise DataError(
            f"{name} has more than {_MOST_WORDS} different words, so it is text and no category; text needs a "
            "tokenizer, name other features by dataset.features"
        )
    return codes


def _sort_words(name: str, known: Mapping[bytes, int], folder: Path, splits: Mapping[str, int]) -> tuple[str, ...]:
    """Renumbers a feature's words in the order of the alphabet, which no order of the examples changes."""
    words = sorted(known)
    places = np.empty(len(words), np.int32)
    places[[known[word] for word in words]] = np.arange(len(words))
    for split in splits:
        array = np.load(folder / split / f"{name}.npy", mmap_mode="r+", allow_pickle=False)
        array[:] = places[array]
        array.flush()
    return tuple(word.decode("utf-8", "replace") for word in words)


def _checked(place: str, values: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError(f"{place} holds a number that is not finite; name other features by dataset.features")
    if dtype == np.int32 and len(values) and not _INT32.min <= values.min() <= values.max() <= _INT32.max:
        raise DataError(f"{place} holds whole numbers that int32 does not; name other features by dataset.features")
    return values


def _batches(builder: Any, features: Mapping[str, Taken], split: str) -> Iterator[dict[str, Array]]:
    """Yields arrays by name, in the order of TFDS's shards."""

    def chosen(example: Any) -> dict[str, Any]:
        found = {}
        for name, one in features.items():
            value = example
            for part in one.feature.split("/"):
                value = value[part]
            found[name] = _resized(value, one.spec.shape[:2]) if one.resize else value
        return found

    partial: dict[str, Any] = {}
    for one in features.values():
        *outer, last = one.feature.split("/")
        inside = partial
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = True
    data = builder.as_dataset(
        split=split,
        shuffle_files=False,
        decoders=tfds.decode.PartialDecoding(partial),
        read_config=tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False),
    )
    data = data.map(chosen, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    yield from data.batch(_BATCH).prefetch(2).as_numpy_iterator()


def _resized(image: tf.Tensor, size: tuple[int, ...]) -> tf.Tensor:
    image = tf.image.resize(image, size, method="bilinear", antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)


def _require_space(name: str, root: Path, need: int) -> None:
    free = shutil.disk_usage(root).free
    if need > free:
        raise DataError(
            f"{name} needs {need / 1e9:.1f} GB for its decoded arrays and {root} has {free / 1e9:.1f} GB left; set "
            "dataset.data_dir to a larger disk or dataset.image_size to a smaller size"
        )

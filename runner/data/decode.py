"""The child process that gets a dataset prepared and writes it, decoded, into the cache.

`runner.data.child` starts it. It reports on stdout, one JSON object a line, and ends when its stdin does.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from runner.config.errors import ConfigError, DataError
from runner.data import cache
from runner.data.arrays import digest
from runner.data.cache import Meta, Request
from runner.host.lock import locked

if TYPE_CHECKING:
    from runner.data.builders import Pair

_BATCH = 256
_MISSING_SIZE = "{name} needs {need:.1f} GB for its decoded images and {root} has {free:.1f} GB left"


def main(job: str) -> None:
    """Does one job and reports how it went.

    Args:
      job: JSON object of `root`, `wanted` (a `cache.Request`), `download` and `mirror`.
    """
    report = _reporter()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    fields = json.loads(job)
    size = fields["wanted"].pop("image_size")
    wanted = Request(**fields["wanted"], image_size=tuple(size) if size else None)
    root = Path(fields["root"])
    try:
        decode(root, wanted, download=fields["download"], use_mirror=fields["mirror"], say=lambda t: report("say", t))
    except ConfigError as error:
        report("refused", str(error))
    except DataError as error:
        report("failed", str(error))
    except Exception as error:  # the boundary of the process: whatever TFDS raises becomes one line
        from runner.data.builders import one_line

        report("failed", f"preparing dataset.name={wanted.name} in {root} failed: {one_line(error)}")
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
      ConfigError: the request names no image classification.
      DataError: the data can't be had or not be stored.
    """
    from runner.data.builders import find_builder, supervised_pair
    from runner.data.fetch import prepare

    builder = find_builder(root, wanted)
    pair = supervised_pair(builder, wanted)
    folder = cache.decoded_dir(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f"{wanted.builder}.lock", say, wanted.name):
            if cache.find(root, wanted):
                return
            source = prepare(builder, root, download=download, use_mirror=use_mirror, say=say)
            _write(builder, pair, root, wanted, source, say)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise DataError(
            f"{root} can't be written ({error.strerror}); decode {wanted.name} once where it can, or set "
            "dataset.data_dir to a folder of your own"
        ) from error


def _write(builder: Any, pair: Pair, root: Path, wanted: Request, source: str, say: Callable[[str], None]) -> None:
    sizes = {name: info.num_examples for name, info in builder.info.splits.items() if info.num_examples}
    _require_space(wanted.name, root, sum(sizes.values()) * int(np.prod(pair.shape)))
    partial = cache.decoded_dir(root) / f".partial-{wanted.builder}"  # under the lock, so one there is a killed run's
    cache.remove(partial)
    for name, size in sizes.items():
        say(f"{wanted.name}: decoding {size:,} examples of {name}")
        _write_split(builder, pair, name, size, partial / name)
    config = builder.builder_config.name if builder.builder_config else None
    default = builder.default_builder_config
    meta = Meta(
        name=builder.name,
        config=config,
        default_config=config is None or (default is not None and default.name == config),
        version=str(builder.version),
        image_size=list(wanted.image_size) if wanted.image_size else None,
        num_classes=len(pair.class_names),
        class_names=list(pair.class_names),
        splits=sizes,
        digest=digest((name, *cache.arrays(partial, name)) for name in sizes),
        source=source,
    )
    cache.write_meta(partial, meta)
    cache.publish(partial, root, meta)


def _write_split(builder: Any, pair: Pair, name: str, size: int, folder: Path) -> None:
    folder.mkdir(parents=True)
    images = np.lib.format.open_memmap(
        folder / "images.npy", mode="w+", dtype=np.dtype(np.uint8), shape=(size, *pair.shape)
    )
    labels = np.empty(size, np.int32)
    done = 0
    for batch_images, batch_labels in _batches(builder, pair, name):
        stop = done + len(batch_labels)
        if stop > size:
            raise DataError(f"{builder.name} holds more than the {size} examples of {name} that it states")
        images[done:stop], labels[done:stop] = batch_images, batch_labels
        done = stop
    if done != size:
        raise DataError(f"{builder.name} holds {done} examples of {name} and states {size}, prepare it anew")
    images.flush()
    del images
    np.save(folder / "labels.npy", labels)


def _batches(builder: Any, pair: Pair, split: str) -> Any:
    """Yields (images, labels) in the order of TFDS's shards."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def resized(image: Any, label: Any) -> Any:
        image = tf.image.resize(image, pair.shape[:2], method="bilinear", antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8), label

    data = builder.as_dataset(
        split=split,
        shuffle_files=False,
        as_supervised=True,
        decoders=tfds.decode.PartialDecoding({pair.image: True, pair.label: True}),
        read_config=tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False),
    )
    if pair.resize:
        data = data.map(resized, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return data.batch(_BATCH).prefetch(2).as_numpy_iterator()


def _require_space(name: str, root: Path, need: int) -> None:
    free = shutil.disk_usage(root).free
    if need > free:
        mend = "set dataset.data_dir to a larger disk or dataset.image_size to a smaller size"
        raise DataError(f"{_MISSING_SIZE.format(name=name, need=need / 1e9, root=root, free=free / 1e9)}; {mend}")


def _reporter() -> Callable[[str, str], None]:
    """Takes stdout for the reports, and leaves to libraries that print a stdout that leads to the log."""
    channel: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def report(kind: str, text: str) -> None:
        channel.write(json.dumps({"kind": kind, "text": " ".join(text.split())}) + "\n")
        channel.flush()

    return report


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)

"""Datasets of TFDS: fetched, prepared and decoded once, then read as plain arrays.

Importing this package imports no TensorFlow. TFDS works in a child process, because TensorFlow must not be initialized
here before the mesh is set up.
"""

from __future__ import annotations

import hashlib

from runner.config.schema_data import DatasetConfig
from runner.data.base import Encoding
from runner.data.cut import Whole
from runner.data.sources import text
from runner.data.sources.tfds import cache, child
from runner.errors import DataError
from runner.host import definition


def load(config: DatasetConfig, encoding: Encoding | None = None) -> Whole:
    """Loads a builder's data, fetching and decoding it first where that was not done yet.

    Args:
      config: the dataset's config.
      encoding: of the run that text is read for; of arrays without effect: a builder's categories are its own.

    Raises:
      ConfigError: a key's value does not work with this builder.
      DataError: the data is not there and can't be fetched, or is broken.
    """
    wanted = cache.request(config, _code(config.builder))
    root = cache.data_dir(config)
    found = cache.find(root, wanted)
    if found is None:
        child.decode(root, wanted, download=config.download, mirror=config.mirror)
        found = cache.find(root, wanted)
    if found is None:
        raise DataError(f"{wanted.key} was decoded and yet is not in {cache.decoded_dir(root)}")
    if not wanted.text:
        return cache.read(*found)
    folder, meta = found
    documents = {split: [cache.texts(folder, split)] for split in meta.splits}
    name = f"{meta.name}/{meta.config}" if meta.config else meta.name
    return text.encoded(text.Corpus(name, meta.version, meta.source, documents), config, encoding)


def _code(builder: str | None) -> str | None:
    """Returns what identifies the source of a user's own builder; its stated version may stay while it changes."""
    if builder is None:
        return None
    source = definition.source_of(builder.rpartition(".")[0])
    return hashlib.sha256(source.read_bytes() if source else b"").hexdigest()[:12]

"""TFDS datasets: decoded once, then read as memory-mapped arrays.

Importing this package imports no TensorFlow; TFDS runs in a child process, see `child`.
"""

from __future__ import annotations

import hashlib

from runner.config.schema_data import DatasetConfig
from runner.data.base import Encoding, FullDataset
from runner.data.sources import text
from runner.data.sources.tfds import cache, child
from runner.errors import DataError
from runner.host import definition


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Loads a builder's data; downloads and decodes it first if necessary.

    Args:
      config: the dataset's config.
      encoding: of the run that text is read for; not used for arrays, whose categories are the builder's.

    Raises:
      ConfigError: the value of a key does not fit this builder.
      DataError: the data is missing and can't be downloaded, or is corrupted.
    """
    request = cache.request(config, _code_digest(config.builder))
    root = cache.data_dir(config)
    decoded = cache.find(root, request)
    if decoded is None:
        child.decode(root, request, download=config.download, mirror=config.mirror)
        decoded = cache.find(root, request)
    if decoded is None:
        raise DataError(f"{request.key} was decoded, but is not in {cache.decoded_dir(root)}; start again")
    folder, meta = decoded
    if not request.text:
        return cache.read(folder, meta)
    documents = {split: [cache.text_file(folder, split)] for split in meta.splits}
    corpus = text.Corpus(meta.full_name, meta.version, meta.source, documents)
    return text.encode_corpus(corpus, config, encoding)


def location(config: DatasetConfig) -> str:
    """Returns the folder of the decoded arrays, or of a text's tokens."""
    if config.tokenizer is not None:
        return str(text.folder(config))
    return str(cache.decoded_dir(cache.data_dir(config)))


def _code_digest(builder: str | None) -> str | None:
    """Returns a digest of a user's own builder's code.

    Its version may stay the same while the code changes.
    """
    if builder is None:
        return None
    source = definition.source_of(builder.rpartition(".")[0])
    content = b""
    if source:
        content = source.read_bytes()
    return hashlib.sha256(content).hexdigest()[:12]

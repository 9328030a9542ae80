"""`pydoc`: the topics of Python's language reference, part of every Python.

They differ between versions.
"""

from __future__ import annotations

import platform
from pydoc_data.topics import topics

from runner.config.schema_data import DatasetConfig
from runner.data.base import Encoding, FullDataset
from runner.data.sources import text
from runner.data.sources.text.files import InlineText


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Encodes the topics, one document each, in the order of their names.

    See `runner.data.sources.text.load`.
    """
    documents = [InlineText(f"pydoc_data.topics, {name}", topics[name]) for name in sorted(topics)]
    version = platform.python_version()
    corpus = text.Corpus("pydoc", version, f"Python {version}", {"train": documents})
    return text.encode_corpus(corpus, config, encoding)


def location(config: DatasetConfig) -> str:
    """Returns the folder of its tokens."""
    return str(text.folder(config))

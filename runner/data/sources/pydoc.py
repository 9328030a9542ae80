"""`pydoc`: Python's reference by topic, which comes with every Python and differs by its version."""

from __future__ import annotations

import platform
from pydoc_data.topics import topics

from runner.config.schema_data import DatasetConfig
from runner.data.base import Encoding
from runner.data.cut import Whole
from runner.data.sources import text
from runner.data.sources.text.files import Text


def load(config: DatasetConfig, encoding: Encoding | None = None) -> Whole:
    """Encodes the topics, one document each, in the order of their names; see `runner.data.sources.text.load`."""
    documents = [Text(f"pydoc_data.topics, {name}", topics[name]) for name in sorted(topics)]
    version = platform.python_version()
    return text.encoded(text.Corpus("pydoc", version, f"Python {version}", {"train": documents}), config, encoding)

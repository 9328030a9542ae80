"""`pydoc`: the topics of Python's language reference, part of every Python; they differ between versions."""

from __future__ import annotations

import json
import os
import platform
from pydoc_data.topics import topics

from runner.config.schema_data import DatasetConfig
from runner.data.base import Encoding, FullDataset
from runner.data.sources import text


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Encodes the topics, one document each, in the order of their names."""
    version = platform.python_version()
    file = text.folder(config) / f"pydoc-{version}.jsonl"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        # Named by the process, because several may write at once; the last one wins.
        partial = file.with_suffix(f".{os.getpid()}")
        with partial.open("w", encoding="utf-8") as opened:
            for name in sorted(topics):
                opened.write(json.dumps({"text": topics[name]}) + "\n")
        partial.replace(file)
    corpus = text.Corpus("pydoc", version, f"Python {version}", {"train": [file]})
    return text.encode_corpus(corpus, config, encoding)

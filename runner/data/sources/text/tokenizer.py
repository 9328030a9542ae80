"""A user's tokenizer.json, which the library `tokenizers` reads."""

from __future__ import annotations

import os
from pathlib import Path

from runner.config.schema_data import MOST_TOKENS
from runner.data.vocabulary import BPE, Vocabulary
from runner.errors import describe, invalid
from runner.host import cores

# Special tokens that a message lists.
_SHOWN_TOKENS = 5


def limit_threads() -> None:
    """Limits the library to this run's cores; before its first use and before starting processes."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(cores.available()))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def read(path: Path, end_token: str | None) -> Vocabulary:
    """Reads a user's tokenizer.json."""
    limit_threads()
    try:
        vocabulary = Vocabulary(BPE, end_token, path.read_text("utf-8"))
        size = vocabulary.size
    # The library tokenizers raises bare exceptions.
    except Exception as error:
        raise invalid(
            "dataset.tokenizer",
            path,
            problem=f"must be a tokenizer.json that the library tokenizers can read ({describe(error)})",
            fix="use another file, or set dataset.tokenizer=bytes",
        ) from error
    if size > MOST_TOKENS:
        raise invalid(
            "dataset.tokenizer",
            path,
            problem=f"must have at most {MOST_TOKENS:,} tokens, but its largest is {size - 1:,}",
            fix="use another file, or set dataset.tokenizer=bytes",
        )
    # Any other token may be a piece of text, which decoding would drop as an end.
    if end_token is not None and end_token not in vocabulary.special:
        special = ", ".join(vocabulary.special[:_SHOWN_TOKENS]) or "none"
        raise invalid(
            "dataset.end_token",
            end_token,
            problem=f"must be one of the special tokens of {path} ({special})",
            fix="use one of them, or remove dataset.end_token",
        )
    return vocabulary

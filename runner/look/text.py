"""Tables of a text dataset: documents, tokens and bytes, the vocabulary, and the first sequence."""

from __future__ import annotations

import numpy as np

from runner.data.base import Dataset
from runner.data.packing import SEGMENTS, TOKENS
from runner.data.vocabulary import BYTES, Vocabulary
from runner.look.contents import Table

_SHOWN_CHARACTERS = 400  # of the first sequence: a paragraph
_SHOWN_TOKENS = 20  # of the first sequence: a line


def tables(data: Dataset, vocabulary: Vocabulary) -> list[Table]:
    """Returns the tables of a text, of which the first sequence is read."""
    rows = []
    for name, text in data.texts.items():
        bytes_per_token = text.bytes / max(text.tokens, 1)
        rows.append((name, f"{text.documents:,}", f"{text.tokens:,}", f"{text.bytes:,}", f"{bytes_per_token:.3g}"))
    end = "none"
    if vocabulary.end is not None:
        end = f"{vocabulary.end_token!r} ({vocabulary.end})"
    about = (
        ("kind", "bytes" if vocabulary.kind == BYTES else "byte pairs, or of a given tokenizer"),
        ("tokens", f"{vocabulary.size:,}"),
        ("end of a document", end),
        ("stored as", str(vocabulary.dtype)),
        ("sha256", vocabulary.sha256),
    )
    return [
        Table("text, by split", ("split", "documents", "tokens", "bytes", "bytes per token"), tuple(rows)),
        Table("vocabulary", ("array", "is"), about),
        _first_sequence(data, vocabulary),
    ]


def _first_sequence(data: Dataset, vocabulary: Vocabulary) -> Table:
    arrays = data.train.read(np.arange(1))
    tokens = arrays[TOKENS][0]
    written = tokens
    if SEGMENTS in arrays:  # segment 0 is padding
        written = tokens[arrays[SEGMENTS][0] > 0]
    text = vocabulary.decode(written)
    shown = repr(text[:_SHOWN_CHARACTERS])[1:-1]
    if len(text) > _SHOWN_CHARACTERS:
        shown += "..."
    numbers = " ".join(map(str, tokens[:_SHOWN_TOKENS].tolist()))
    if len(tokens) > _SHOWN_TOKENS:
        numbers += " ..."
    return Table("train, the first sequence", ("array", "begins"), ((TOKENS, numbers), ("text", shown)))

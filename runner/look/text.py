"""What can be said of a text: how much it is, by which tokens, and how a sequence reads."""

from __future__ import annotations

import numpy as np

from runner.data.base import Dataset
from runner.data.packing import SEGMENTS, TOKENS
from runner.data.vocabulary import BYTES, Vocabulary
from runner.look.contents import Table

_SHOWN = 400  # characters of a sequence
_MOST = 20  # tokens that are counted


def tables(data: Dataset, vocabulary: Vocabulary) -> list[Table]:
    """Returns the tables of a text, of which the first sequence is read."""
    rows = [
        (name, f"{one.documents:,}", f"{one.tokens:,}", f"{one.bytes:,}", f"{one.bytes / max(one.tokens, 1):.3g}")
        for name, one in data.texts.items()
    ]
    end = "none" if vocabulary.end is None else f"{vocabulary.end_token!r} ({vocabulary.end})"
    kind = "bytes" if vocabulary.kind == BYTES else "byte pairs, or of a given tokenizer"
    about = [
        ("kind", kind),
        ("tokens", f"{vocabulary.size:,}"),
        ("end of a document", end),
        ("stored as", str(vocabulary.dtype)),
        ("sha256", vocabulary.sha256),
    ]
    return [
        Table("text, by the splits it has", ("split", "documents", "tokens", "bytes", "bytes a token"), tuple(rows)),
        Table("vocabulary", ("array", "is"), tuple(about)),
        _first(data, vocabulary),
    ]


def _first(data: Dataset, vocabulary: Vocabulary) -> Table:
    arrays = {name: one[0] for name, one in data.train.read(np.arange(1)).items()}
    tokens = arrays[TOKENS]
    text = vocabulary.decode(tokens[arrays[SEGMENTS] > 0] if SEGMENTS in arrays else tokens)
    more = "..." if len(text) > _SHOWN else ""
    shown = repr(text[:_SHOWN])[1:-1] + more
    numbers = " ".join(map(str, tokens[:_MOST].tolist())) + (" ..." if len(tokens) > _MOST else "")
    return Table("train, the first sequence", ("array", "begins"), ((TOKENS, numbers), ("text", shown)))

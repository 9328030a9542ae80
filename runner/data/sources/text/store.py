"""Store of tokens: encoded once, then memory-mapped by every process.

    <folder>/tokens/<key>/meta.json, train.tokens, train.starts, test.tokens, ...

The key is a digest of the content, the splits and the tokenizer. A folder appears in one step, under a lock: if
several processes need it, one encodes and the others wait.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from runner.data.base import Array
from runner.data.sources.prepared import META, load_or_write
from runner.data.vocabulary import Vocabulary

# Version of the layout, part of every key.
FORMAT = 2
_SUFFIXES = ("tokens", "starts")
# A batch of pieces that a tokenizer encodes in parallel is limited by its characters, which bounds the memory, and by
# its number of pieces, because short documents have a cost of their own.
_BATCH_CHARACTERS = 1 << 22
_BATCH_PIECES = 1 << 12

# Split, text, and whether a document of the split ends with it.
Pieces = Iterable[tuple[str, str, bool]]


@dataclass(frozen=True, eq=False)
class StoredTokens:
    """A split's tokens: the memory-mapped `stream` (n,), and the first token of each document."""

    stream: Array
    starts: Array


def tokens(folder: Path, key: object, vocabulary: Vocabulary, pieces: Callable[[], Pieces]) -> dict[str, StoredTokens]:
    """Returns the tokens of every split; encodes and stores them first if necessary."""
    identity = json.dumps([FORMAT, [key, vocabulary.sha256]], sort_keys=True)
    name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    read = partial(_read, vocabulary=vocabulary)
    return load_or_write(
        folder / "tokens" / name, _SUFFIXES, read, lambda path: _write(path, vocabulary, pieces()), "the tokens"
    )


def _read(folder: Path, vocabulary: Vocabulary) -> dict[str, StoredTokens] | None:
    """Maps the stored tokens; None if they are missing, incomplete or of another format."""
    try:
        content = json.loads((folder / META).read_text("utf-8"))
        if content["format"] != FORMAT:
            return None
        splits = {}
        for split, (tokens, documents) in content["splits"].items():
            stream = _map(folder / f"{split}.tokens", vocabulary.dtype, tokens)
            starts = _map(folder / f"{split}.starts", np.dtype(np.int64), documents)
            if documents:
                splits[split] = StoredTokens(stream, starts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return splits


def _map(path: Path, dtype: np.dtype, count: int) -> Array:
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path} has another size")
    if not count:
        # An empty file can't be mapped.
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r", shape=(count,))


class _SplitWriter:
    def __init__(self, folder: Path, name: str, end: int | None, dtype: np.dtype) -> None:
        self._tokens = (folder / f"{name}.tokens").open("wb")
        self._starts = (folder / f"{name}.starts").open("wb")
        self._end = np.array([] if end is None else [end], dtype)
        self._document_count = 0
        self._token_count = 0
        # The first token of the current document.
        self._document_start = 0

    def add(self, tokens: Array, *, ends_document: bool) -> None:
        self._append(tokens)
        is_empty = self._token_count == self._document_start
        if ends_document and not is_empty:
            self._append(self._end)
            self._starts.write(np.int64(self._document_start).tobytes())
            self._document_count += 1
            self._document_start = self._token_count

    def _append(self, tokens: Array) -> None:
        self._tokens.write(tokens.tobytes())
        self._token_count += len(tokens)

    def close(self) -> tuple[int, int]:
        """Returns the numbers of tokens and of documents."""
        for file in (self._tokens, self._starts):
            file.flush()
            os.fsync(file.fileno())
            file.close()
        return self._token_count, self._document_count


def _write(folder: Path, vocabulary: Vocabulary, pieces: Pieces) -> None:
    writers: dict[str, _SplitWriter] = {}
    for batch in _batches(pieces):
        tokens_of_pieces = vocabulary.encode_pieces([text for _, text, _ in batch])
        for (split, _, ends_document), tokens in zip(batch, tokens_of_pieces, strict=True):
            if split not in writers:
                writers[split] = _SplitWriter(folder, split, vocabulary.end, vocabulary.dtype)
            writers[split].add(tokens, ends_document=ends_document)
    sizes = {split: writer.close() for split, writer in writers.items()}
    content = {"format": FORMAT, "splits": sizes}
    # Last: a folder that has this file is complete.
    (folder / META).write_text(json.dumps(content, indent=1), "utf-8")


def _batches(pieces: Pieces) -> Iterator[list[tuple[str, str, bool]]]:
    batch = []
    characters = 0
    for piece in pieces:
        _, text, _ = piece
        batch.append(piece)
        characters += len(text)
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_PIECES:
            yield batch
            batch = []
            characters = 0
    if batch:
        yield batch

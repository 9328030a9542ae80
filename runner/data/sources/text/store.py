"""Tokens on disk: encoded once, in a stream, and mapped into memory by every process that reads them.

    <folder>/tokens/<key>/meta.json, train.tokens, train.starts, test.tokens, ...
    <folder>/tokenizers/<key>.json

The key is a digest of the content, of how it is split and of the tokenizer. A folder comes to its place in one step,
under a lock, so that of several processes one encodes and the others wait.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from runner.data.base import Array, TextSize
from runner.data.sources.place import META, made_once
from runner.data.vocabulary import BPE, Vocabulary
from runner.errors import DataError
from runner.host.lock import locked

FORMAT = 1
_KINDS = ("tokens", "starts")
_BATCH = 1 << 22  # characters that are encoded at once
_MOST_PIECES = 1 << 12

Pieces = Iterable[tuple[str, str, bool]]  # split, text, whether a document of the split ends with it


@dataclass(frozen=True, eq=False)
class Stored:
    """A split's tokens.

    Attributes:
      stream: of all documents (n,), mapped from disk.
      starts: int64 (documents,), where each begins.
      size: what they are of.
    """

    stream: Array
    starts: Array
    size: TextSize


@dataclass(frozen=True)
class Store:
    """A folder of tokens and tokenizers.

    Attributes:
      folder: made where it is not there.
      say: told what takes time.
    """

    folder: Path
    say: Callable[[str], object]

    def vocabulary(self, key: object, end_token: str | None, make: Callable[[], Vocabulary]) -> Vocabulary:
        """Returns a trained tokenizer, which is trained where it was not yet.

        Args:
          key: plain values that it is a function of.
          end_token: of it.
          make: trains it.

        Raises:
          DataError: the folder can't be written.
        """
        place = self.folder / "tokenizers" / f"{_hashed(key)}.json"
        try:
            if (found := _trained(place, end_token)) is not None:  # it comes to its place whole
                return found
            with locked(place.with_suffix(".lock"), self.say, "the tokenizer"):
                found = _trained(place, end_token)
                if found is None:
                    found = make()
                    partial = place.with_suffix(".partial")  # under the lock, so one there is a killed run's
                    with partial.open("wb") as file:
                        file.write(found.tokenizer.encode())
                        file.flush()
                        os.fsync(file.fileno())
                    partial.replace(place)
                return found
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def tokens(self, key: object, vocabulary: Vocabulary, pieces: Callable[[], Pieces]) -> dict[str, Stored]:
        """Returns the tokens of every split, which are encoded where they were not yet.

        Args:
          key: plain values that the text is a function of.
          vocabulary: encodes it.
          pieces: gives the documents, in order.

        Raises:
          DataError: the folder can't be written or is broken, or the text can't be read.
        """
        place = self.folder / "tokens" / _hashed([key, vocabulary.sha256])

        def read(there: Path) -> dict[str, Stored] | None:
            return _read(there, vocabulary)

        def write(partial: Path) -> None:
            _write(partial, vocabulary, pieces())

        try:
            return made_once(place, _KINDS, read, write, self.say, "the tokens")
        except OSError as error:
            raise _unwritable(self.folder, error) from error


def _hashed(key: object) -> str:
    return hashlib.sha256(json.dumps([FORMAT, key], sort_keys=True).encode()).hexdigest()[:32]


def _trained(place: Path, end_token: str | None) -> Vocabulary | None:
    """Reads a trained tokenizer; None where there is none, or what a power cut left of one."""
    try:
        content = place.read_text("utf-8")
        json.loads(content)
    except (FileNotFoundError, ValueError):
        return None
    return Vocabulary(BPE, end_token, content)


def _unwritable(folder: Path, error: OSError) -> DataError:
    return DataError(
        f"{folder} can't be written ({error.strerror or error}); make room, or set dataset.data_dir=<your own folder>"
    )


def _read(place: Path, vocabulary: Vocabulary) -> dict[str, Stored] | None:
    """Maps what is there; None where there is nothing, or no such thing."""
    try:
        content = json.loads((place / META).read_text("utf-8"))
        if content["format"] != FORMAT:
            return None
        sizes = {split: TextSize(**one) for split, one in content["splits"].items()}
        found = {}
        for split, size in sizes.items():
            stream = _mapped(place / f"{split}.tokens", vocabulary.dtype, size.tokens)
            starts = _mapped(place / f"{split}.starts", np.dtype(np.int64), size.documents)
            found[split] = Stored(stream, starts, size)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found


def _mapped(path: Path, dtype: np.dtype, count: int) -> Array:
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path} has another size")
    return np.memmap(path, dtype, "r", shape=(count,)) if count else np.empty(0, dtype)


class _Split:
    """The files of a split that is being written."""

    def __init__(self, folder: Path, name: str, end: int | None, dtype: np.dtype) -> None:
        self._tokens, self._starts = ((folder / f"{name}.{kind}").open("wb") for kind in ("tokens", "starts"))
        self._end = None if end is None else np.array([end], dtype)
        self._documents = self._count = self._begun = self._bytes = 0

    def add(self, text: str, tokens: Array, *, ends: bool) -> None:
        self._append(tokens)
        self._bytes += len(text) if text.isascii() else len(text.encode())
        if ends and self._count > self._begun:  # an empty document is none
            if self._end is not None:
                self._append(self._end)
            self._starts.write(np.int64(self._begun).tobytes())
            self._documents = self._documents + 1
            self._begun = self._count

    def _append(self, tokens: Array) -> None:
        self._tokens.write(tokens.tobytes())
        self._count += len(tokens)

    def close(self) -> TextSize:
        for file in (self._tokens, self._starts):
            file.flush()
            os.fsync(file.fileno())
            file.close()
        return TextSize(self._documents, self._count, self._bytes)


def _write(folder: Path, vocabulary: Vocabulary, pieces: Pieces) -> None:
    splits: dict[str, _Split] = {}
    for batch in _batches(pieces):
        tokens = vocabulary.encode_pieces([text for _, text, _ in batch])
        for (split, text, ends), own in zip(batch, tokens, strict=True):
            if split not in splits:
                splits[split] = _Split(folder, split, vocabulary.end, vocabulary.dtype)
            splits[split].add(text, own, ends=ends)
    sizes: Mapping[str, TextSize] = {name: one.close() for name, one in splits.items()}
    content = {"format": FORMAT, "splits": {name: asdict(size) for name, size in sizes.items()}}
    (folder / META).write_text(json.dumps(content, indent=1), "utf-8")  # last: a folder that has it is complete


def _batches(pieces: Pieces) -> Iterator[list[tuple[str, str, bool]]]:
    batch = []
    size = 0
    for one in pieces:
        batch.append(one)
        size += len(one[1])
        if size >= _BATCH or len(batch) >= _MOST_PIECES:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch

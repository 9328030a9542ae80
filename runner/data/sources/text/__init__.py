"""Text as tokens: a user's files, and Python's reference.

Documents are encoded once, as a stream, into memory-mapped files of tokens: neither the text nor its tokens need to
fit into memory. A document is a .txt file, a line of a .jsonl file or a row of a .parquet or .arrow file. Documents
are concatenated and cut every `dataset.sequence_length` tokens; the label of a token is the next one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.config.schema_data import APART, BYTES, LENGTH, MOST_TOKENS, DatasetConfig
from runner.data import packing
from runner.data.base import DataSource, Encoding, FullDataset, TextSize, in_memory
from runner.data.cache import cache_folder
from runner.data.checks_source import TEXT_SUFFIXES
from runner.data.digest import of_files
from runner.data.packing import PackedSequences
from runner.data.sources import split_files
from runner.data.sources.text import files, store
from runner.data.sources.text.store import Pieces, StoredTokens
from runner.data.vocabulary import EncodingError, Vocabulary
from runner.errors import ConfigError, DataError, describe, invalid
from runner.host import cores

_COLUMN = "text"
# Of a text without a split `test`: enough for a stable loss, and it leaves more to train on than the fifth of other
# data.
_TEST_SHARE = 0.1
# With fewer documents a tenth of them is less than one, so the text is divided by tokens.
_MIN_DOCUMENTS = 10
# Special tokens that a message lists.
_SHOWN_TOKENS = 5


@dataclass(frozen=True)
class Corpus:
    """A text before it is encoded."""

    name: str
    version: str
    source: str
    splits: Mapping[str, Sequence[Path]]
    column: str = _COLUMN


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Encodes a user's files if they are not encoded yet."""
    assert config.path is not None
    splits = split_files.find(config.path, TEXT_SUFFIXES)
    count = sum(map(len, splits.values()))
    source = config.path
    if count > 1:
        source += f", {count:,} files"
    corpus = Corpus(Path(config.path).name, "", source, splits, config.column or _COLUMN)
    return encode_corpus(corpus, config, encoding)


def folder(config: DatasetConfig) -> Path:
    """Returns the folder of tokens."""
    if config.data_dir is not None:
        return Path(config.data_dir).expanduser().absolute() / ".text"
    return cache_folder("text")


def encode_corpus(corpus: Corpus, config: DatasetConfig, encoding: Encoding | None) -> FullDataset:
    """Encodes a text if it is not encoded yet, and cuts it into sequences."""
    content = _digest(corpus)
    vocabulary = vocabulary_of(config, encoding)
    try:
        stored = store.tokens(folder(config), content, vocabulary, lambda: _pieces(corpus, content))
    except EncodingError as error:
        problem = f"can't encode the text ({error})"
        fix = "use a tokenizer with an unknown token, or set dataset.tokenizer=bytes"
        raise invalid("dataset.tokenizer", config.tokenizer, problem=problem, fix=fix) from error
    if "train" not in stored:
        raise DataError(f"{corpus.source}: there is no text to train on, or the tokenizer drops it; check the files")
    about = {}
    if "test" not in corpus.splits:
        stored = _with_test(stored)
        about = {"test": "the last tenth of the text", "train": "what comes before the test"}

    length = config.sequence_length or LENGTH
    apart = (config.documents or APART) == APART
    splits = {}
    sizes = {}
    for split, tokens in stored.items():
        splits[split] = _sequences(corpus, split, tokens, length, apart=apart)
        sizes[split] = TextSize(len(tokens.starts), len(tokens.stream))
    # The digest covers everything that decides the tokens of an example, so another length is other data.
    identity = json.dumps([content, vocabulary.sha256, length, apart])
    return FullDataset(
        name=corpus.name,
        version=corpus.version,
        splits=splits,
        digest=hashlib.sha256(identity.encode()).hexdigest(),
        source=corpus.source,
        encoding=Encoding(vocabulary=vocabulary),
        about=about,
        texts=sizes,
    )


def _with_test(stored: Mapping[str, StoredTokens]) -> dict[str, StoredTokens]:
    """Returns the splits, with the last tenth of train's documents as test; with fewer than ten, of its tokens."""
    stream = stored["train"].stream
    starts = stored["train"].starts
    if len(starts) >= _MIN_DOCUMENTS:
        boundary = int(starts[-round(len(starts) * _TEST_SHARE)])
    else:
        boundary = len(stream) - round(len(stream) * _TEST_SHARE)
    # The first document of test, which may begin in train.
    document = int(np.searchsorted(starts, boundary))
    test_starts = np.union1d([0], starts[document:] - boundary)
    return {
        **stored,
        "train": StoredTokens(stream[:boundary], starts[:document]),
        "test": StoredTokens(stream[boundary:], test_starts),
    }


def _digest(corpus: Corpus) -> str:
    return hashlib.sha256(f"{corpus.column} {of_files(corpus.splits)}".encode()).hexdigest()


def _pieces(corpus: Corpus, content: str) -> Pieces:
    """Yields the pieces of every split, stored by the digest of their content; a DataError if a file has changed."""
    for split, paths in corpus.splits.items():
        for text, ends_document in files.pieces(paths, corpus.column):
            yield split, text, ends_document
    if _digest(corpus) != content:
        raise DataError(f"{corpus.source}: a file was changed while it was read; start again")


def vocabulary_of(config: DatasetConfig, encoding: Encoding | None = None) -> Vocabulary:
    """Returns the tokens of a config's text, or those of a recorded run, which the config must agree with."""
    kind = config.tokenizer or BYTES
    if encoding is not None and encoding.vocabulary is not None:
        return _recorded_vocabulary(config, encoding.vocabulary)
    if kind == BYTES:
        return Vocabulary(config.end_token)
    return _read_tokenizer(Path(kind).expanduser(), config.end_token)


def _limit_threads() -> None:
    """Limits the library to this run's cores; before its first use and before starting processes."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(cores.available()))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def _read_tokenizer(path: Path, end_token: str | None) -> Vocabulary:
    _limit_threads()
    fix = "use another file, or set dataset.tokenizer=bytes"
    try:
        text = path.read_text("utf-8")
        # An empty text is what a vocabulary of bytes has.
        if not text:
            raise ValueError("the file is empty")
        vocabulary = Vocabulary(end_token, text)
        size = vocabulary.size
    # The library tokenizers raises bare exceptions.
    except Exception as error:
        problem = f"must be a tokenizer.json that the library tokenizers can read ({describe(error)})"
        raise invalid("dataset.tokenizer", path, problem=problem, fix=fix) from error
    if size > MOST_TOKENS:
        problem = f"must have at most {MOST_TOKENS:,} tokens, but its largest is {size - 1:,}"
        raise invalid("dataset.tokenizer", path, problem=problem, fix=fix)
    # Any other token may be a piece of text, which decoding would drop as an end.
    if end_token is not None and end_token not in vocabulary.special:
        special = ", ".join(vocabulary.special[:_SHOWN_TOKENS]) or "none"
        problem = f"must be one of the special tokens of {path} ({special})"
        fix = "use one of them, or remove dataset.end_token"
        raise invalid("dataset.end_token", end_token, problem=problem, fix=fix)
    return vocabulary


def _recorded_vocabulary(config: DatasetConfig, recorded: Vocabulary) -> Vocabulary:
    kind = config.tokenizer or BYTES
    if (kind == BYTES) != recorded.is_bytes:
        raise _differs_from_run("tokenizer", kind, f"a tokenizer of {recorded.size:,} tokens")
    if config.end_token != recorded.end_token:
        raise _differs_from_run("end_token", config.end_token, str(recorded.end_token or "null"))
    path = Path(kind).expanduser()
    # The recorded vocabulary is complete, so the file may be gone. If it exists, it must be the same.
    if kind != BYTES and path.exists():
        current = _read_tokenizer(path, config.end_token)
        if current.sha256 != recorded.sha256:
            difference = f"sha256 {recorded.sha256[:12]}, but this file has {current.sha256[:12]}"
            raise _differs_from_run("tokenizer", kind, difference)
    _limit_threads()
    return recorded


def _differs_from_run(key: str, value: object, recorded: str) -> ConfigError:
    problem = f"differs from what the run was trained with: {recorded}"
    return invalid(f"dataset.{key}", value, problem=problem, fix="use the run's own, or train a new run")


def _sequences(corpus: Corpus, split: str, stored: StoredTokens, length: int, *, apart: bool) -> DataSource:
    needed = 2
    if not apart:
        # A sequence can be padded only with document masks, so without them it must be complete, with its last label.
        needed = length + 1
    count = len(stored.stream)
    tokens = f"{count:,} tokens"
    if count == 1:
        tokens = "1 token"
    if count < 2:
        raise DataError(f"split {split} of {corpus.name} has {tokens}, but needs {needed:,}; use more text")
    if count < needed:
        problem = f"split {split} of {corpus.name} has {tokens}, but needs {needed:,}"
        raise invalid("dataset.sequence_length", length, problem=problem, fix="lower it, or use more text")
    if apart and len(stored.stream) == len(stored.starts):
        problem = f"split {split} has no label with weight 1, because each of its documents has one token"
        fix = "set dataset.documents=joined, or \"dataset.end_token='<|endoftext|>'\""
        raise invalid("dataset.documents", APART, problem=problem, fix=fix)
    sequences = PackedSequences(stored.stream, stored.starts, length, apart)
    return in_memory(sequences, packing.RAM_BYTES, packing.ROWS_PER_READ)

"""Text as tokens: a user's files, Shakespeare, Python's reference, TFDS texts.

Documents are encoded once, as a stream, into memory-mapped files of tokens: neither the text nor its tokens need to
fit into memory. A document is a .txt file, a line of a .jsonl file or a row of a .parquet or .arrow file. Documents
are concatenated and cut every `dataset.sequence_length` tokens; the label of a token is the next one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from runner.config.schema_data import APART, DatasetConfig
from runner.data import packing
from runner.data.base import DataSource, Encoding, FullDataset, in_memory
from runner.data.checks_source import TEXT_SUFFIXES
from runner.data.checks_text import BPE, BYTES, LENGTH, VOCABULARY_SIZE
from runner.data.digest import of_files
from runner.data.packing import PackedSequences, WholeDocuments, no_label_counts
from runner.data.sources import split_files
from runner.data.sources.prepared import report_progress
from runner.data.sources.text import bpe, files, store
from runner.data.sources.text.files import Piece
from runner.data.sources.text.split import Boundary, find_boundary, split_pieces, train_pieces
from runner.data.sources.text.store import Pieces, StoredTokens
from runner.data.vocabulary import EncodingError, Vocabulary
from runner.errors import ConfigError, DataError, invalid
from runner.host.folders import cache_folder

_COLUMN = "text"


@dataclass(frozen=True)
class Corpus:
    """A text before it is encoded; without `test`, the end of `train` becomes it."""

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
    """Returns the folder of tokens and tokenizers."""
    if config.data_dir is not None:
        return Path(config.data_dir).expanduser().absolute() / ".text"
    return cache_folder("text")


def encode_corpus(corpus: Corpus, config: DatasetConfig, encoding: Encoding | None) -> FullDataset:
    """Encodes a text if it is not encoded yet, and cuts it into sequences."""
    encoder = _Encoder(corpus, config)
    vocabulary = encoder.vocabulary(encoding)
    try:
        stored = store.tokens(folder(config), encoder.content, vocabulary, encoder.pieces)
    except EncodingError as error:
        raise _unsuitable_tokenizer(config, f"can't encode the text ({error})") from error
    _check_not_empty(corpus, config, stored)

    length = config.sequence_length or LENGTH
    apart = (config.documents or APART) == APART
    splits = {}
    sizes = {}
    for split in encoder.splits:
        if split in stored:
            splits[split] = _sequences(corpus, split, stored[split], length, apart=apart, pack=config.pack)
            sizes[split] = stored[split].size
    about = {}
    if "test" not in corpus.splits:
        about = {"test": "the last tenth of the text", "train": "what comes before the test"}
    # The digest covers everything that decides the tokens of an example, so another length is other data.
    identity_values = [encoder.content, vocabulary.sha256, length, apart]
    if config.pack:
        identity_values.append("whole documents")
    identity = json.dumps(identity_values)
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


def _check_not_empty(corpus: Corpus, config: DatasetConfig, stored: Mapping[str, StoredTokens]) -> None:
    has_text = any(tokens.size.bytes for tokens in stored.values())
    has_tokens = any(tokens.size.tokens for tokens in stored.values())
    if has_text and not has_tokens:
        raise _unsuitable_tokenizer(config, "drops all of the text")
    if not has_tokens or "train" not in stored:
        where = ""
        if stored and "train" not in stored:
            where = " in the split train"
        raise DataError(f"{corpus.source}: there is no text{where}; check dataset.path and the files")


class _Encoder:
    """Reads a corpus to find the test split, to train a tokenizer, and to encode.

    The results are stored under the digest of the content. So it raises if a file has changed since the digest.
    """

    def __init__(self, corpus: Corpus, config: DatasetConfig) -> None:
        self._corpus = corpus
        self._config = config
        self.content = self._digest()

    def _digest(self) -> str:
        return hashlib.sha256(f"{self._corpus.column} {of_files(self._corpus.splits)}".encode()).hexdigest()

    @property
    def splits(self) -> list[str]:
        names = list(self._corpus.splits)
        if "test" not in names:
            names.append("test")
        return names

    @cached_property
    def _boundary(self) -> Boundary:
        """The start of test within train, if the files have no test."""
        return find_boundary(self._read("train"))

    def _read(self, split: str) -> Iterator[Piece]:
        return files.pieces(self._corpus.splits[split], self._corpus.column)

    def pieces(self) -> Pieces:
        for split in self._corpus.splits:
            if split == "train" and "test" not in self._corpus.splits:
                yield from split_pieces(self._read(split), self._boundary)
            else:
                for text, ends_document in self._read(split):
                    yield split, text, ends_document
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        if self._digest() != self.content:
            raise DataError(f"{self._corpus.source}: a file was changed while it was read; start again")

    def vocabulary(self, encoding: Encoding | None) -> Vocabulary:
        end_token = self._config.end_token
        tokenizer = self._config.tokenizer or BYTES
        if encoding is not None and encoding.vocabulary is not None:
            return _recorded_vocabulary(self._config, encoding.vocabulary)
        if tokenizer == BYTES:
            return Vocabulary(BYTES, end_token)
        if tokenizer != BPE:
            return bpe.read(Path(tokenizer).expanduser(), end_token)
        size = self._config.vocabulary_size or VOCABULARY_SIZE
        key = [self.content, size, end_token]
        vocabulary = store.vocabulary(
            folder(self._config), key, end_token, lambda: self._train_tokenizer(size, end_token)
        )
        bpe.check_end(vocabulary)
        return vocabulary

    def _train_tokenizer(self, size: int, end_token: str | None) -> Vocabulary:
        report_progress(f"{self._corpus.name}: training a tokenizer of {size:,} tokens")
        pieces = self._read("train")
        if "test" not in self._corpus.splits:
            pieces = train_pieces(pieces, self._boundary)
        vocabulary = bpe.train((text for text, _ in pieces), size, end_token)
        self._check_unchanged()
        return vocabulary


def _recorded_vocabulary(config: DatasetConfig, recorded: Vocabulary) -> Vocabulary:
    tokenizer = config.tokenizer or BYTES
    if (tokenizer == BYTES) != (recorded.kind == BYTES):
        raise _differs_from_run("tokenizer", tokenizer, f"{recorded.kind}, {recorded.size:,} tokens")
    if config.end_token != recorded.end_token:
        raise _differs_from_run("end_token", config.end_token, str(recorded.end_token or "null"))
    path = Path(tokenizer).expanduser()
    # The recorded vocabulary is complete, so the file may be gone. If it exists, it must be the same.
    if tokenizer not in (BYTES, BPE) and path.exists():
        current = bpe.read(path, config.end_token)
        if current.sha256 != recorded.sha256:
            difference = f"sha256 {recorded.sha256[:12]}, but this file has {current.sha256[:12]}"
            raise _differs_from_run("tokenizer", tokenizer, difference)
    bpe.limit_threads()
    return recorded


def _differs_from_run(key: str, value: object, recorded: str) -> ConfigError:
    return invalid(
        f"dataset.{key}",
        value,
        problem=f"differs from what the run was trained with: {recorded}",
        fix="use the run's own, or train a new run",
    )


def _unsuitable_tokenizer(config: DatasetConfig, problem: str) -> ConfigError:
    return invalid(
        "dataset.tokenizer",
        config.tokenizer,
        problem=problem,
        fix="use a tokenizer with an unknown token, or set dataset.tokenizer=bpe",
    )


def _sequences(
    corpus: Corpus, split: str, stored: StoredTokens, length: int, *, apart: bool, pack: bool
) -> DataSource:
    """Returns the sequences of a split; with `pack` its documents, which are packed after the selection."""
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
        raise invalid(
            "dataset.sequence_length",
            length,
            problem=f"split {split} of {corpus.name} has {tokens}, but needs {needed:,}",
            fix="lower it, or use more text",
        )
    if apart and stored.size.tokens == stored.size.documents:
        raise no_label_counts(split)
    if pack:
        return WholeDocuments(stored.stream, stored.starts, length)
    sequences = PackedSequences(stored.stream, stored.starts, length, apart)
    return in_memory(sequences, packing.RAM_BYTES, packing.ROWS_PER_READ)

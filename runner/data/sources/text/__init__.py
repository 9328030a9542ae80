"""Text as sequences of tokens: a user's files, Shakespeare, Python's own reference, texts of TFDS.

Documents are encoded once, in a stream, into files of tokens that are mapped into memory: neither the text nor its
tokens need fit there. A document is a .txt file, a line of a .jsonl, a row of a .parquet. Documents follow one another
and are cut every `dataset.sequence_length` tokens; the label of a token is the next one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.config.schema_data import TEXT, DatasetConfig
from runner.data.base import DataSource, Encoding
from runner.data.checks_text import APART, BPE, BYTES, LENGTH, VOCABULARY_SIZE
from runner.data.cut import Whole
from runner.data.packed import Packed, no_label_counts
from runner.data.sources.text import bpe, files, scan
from runner.data.sources.text.files import Piece, Source
from runner.data.sources.text.split import Cut, cut, parted, train_part
from runner.data.sources.text.store import Pieces, Store, Stored
from runner.data.tell import tell
from runner.data.vocabulary import EncodingError, Vocabulary
from runner.errors import ConfigError, DataError, invalid

_COLUMN = "text"


@dataclass(frozen=True)
class Corpus:
    """Text before it is encoded.

    Attributes:
      name: of the dataset.
      version: likewise; empty where there is none.
      source: where it came from, in words.
      splits: files of each split; where there is no `test`, the end of `train` is.
      column: of files that have columns.
    """

    name: str
    version: str
    source: str
    splits: Mapping[str, Sequence[Source]]
    column: str = _COLUMN


def load(config: DatasetConfig, encoding: Encoding | None = None) -> Whole:
    """Encodes a user's files, where that was not done yet.

    Args:
      config: of which `path` names them.
      encoding: of the run that the text is read for, whose tokenizer is used; None: the config's.

    Raises:
      ConfigError: the run's tokenizer is another one, the config's has no tokens for the text, sequences are longer
        than the text, or the files have a split test or validation and none that is called train.
      DataError: a file can't be read or is not UTF-8, or there is no text.
    """
    assert config.path is not None
    found = files.find(config.path)
    count = sum(map(len, found.values()))
    of = f", {count:,} files" if count > 1 else ""
    name = Path(config.path).name if config.name == TEXT else config.name
    return encoded(Corpus(name, "", f"{config.path}{of}", found, config.column or _COLUMN), config, encoding)


def folder(config: DatasetConfig) -> Path:
    """Returns where tokens and tokenizers are kept: `dataset.data_dir`, else a folder in the user's cache."""
    if config.data_dir is not None:
        return Path(config.data_dir).expanduser().absolute() / ".text"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "runner" / "text"


def encoded(corpus: Corpus, config: DatasetConfig, encoding: Encoding | None) -> Whole:
    """Encodes a text, where that was not done yet, and cuts it into sequences; see `load`."""
    store = Store(folder(config), tell)
    before = scan.stats(corpus.splits)
    content = scan.digest(corpus.splits, corpus.column, store.folder / "files")
    made = _Encoder(corpus, config, content, before)
    vocabulary = made.vocabulary(store, encoding)
    try:
        stored = store.tokens(content, vocabulary, made.pieces)
    except EncodingError as error:
        raise _unable(config, f"can't encode it ({error})") from error
    if any(one.size.bytes for one in stored.values()) and not any(one.size.tokens for one in stored.values()):
        raise _unable(config, "drops all of it")
    if "train" not in stored or not any(one.size.tokens for one in stored.values()):
        raise DataError(
            f"{corpus.source}: there is no text in it"
            + (" of a split train" if stored and "train" not in stored else "")
        )
    length = config.sequence_length or LENGTH
    apart = (config.documents or APART) == APART
    splits = {name: _packed(corpus, name, stored[name], length, apart=apart) for name in made.names if name in stored}
    sizes = {name: stored[name].size for name in splits}
    identity = json.dumps([content, vocabulary.sha256, length, apart])
    about = {} if "test" in corpus.splits else {"test": made.cut.about, "train": "what comes before the test"}
    return Whole(
        name=corpus.name,
        version=corpus.version,
        splits=splits,
        digest=hashlib.sha256(identity.encode()).hexdigest(),
        source=corpus.source,
        encoding=Encoding(vocabulary=vocabulary),
        about=about,
        texts=sizes,
    )


class _Encoder:
    """Reads a corpus as often as it must: to find what is tested on, to train a tokenizer, to encode.

    What is made of it is stored under its digest, and so is not handed out where a file has changed since.
    """

    def __init__(self, corpus: Corpus, config: DatasetConfig, content: str, before: Sequence[scan.Stat]) -> None:
        self._corpus = corpus
        self._config = config
        self._content = content
        self._before = before
        self._cut: Cut | None = None

    @property
    def names(self) -> list[str]:
        """Names of the splits."""
        found = list(self._corpus.splits)
        return found if "test" in found else [*found, "test"]

    @property
    def cut(self) -> Cut:
        """Where test begins in train; asked for where the files have no test."""
        if self._cut is None:
            self._cut = cut(self._read("train"))
        return self._cut

    def _read(self, split: str) -> Iterator[Piece]:
        return files.pieces(self._corpus.splits[split], self._corpus.column)

    def pieces(self) -> Pieces:
        """Yields all documents by split."""
        for split in self._corpus.splits:
            if split == "train" and "test" not in self._corpus.splits:
                yield from parted(self._read(split), self.cut)
            else:
                for text, ends in self._read(split):
                    yield split, text, ends
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        if scan.stats(self._corpus.splits) != self._before:
            raise DataError(f"{self._corpus.source}: a file was changed while it was read; start again")

    def vocabulary(self, store: Store, encoding: Encoding | None) -> Vocabulary:
        """Returns what the text is to be encoded by."""
        recorded = encoding.vocabulary if encoding else None
        end = self._config.end_token
        wanted = self._config.tokenizer or BYTES
        if recorded is not None:
            return _agreed(self._config, recorded)
        if wanted == BYTES:
            return Vocabulary(BYTES, end)
        if wanted != BPE:
            return bpe.read(Path(wanted).expanduser(), end)
        size = self._config.vocabulary_size or VOCABULARY_SIZE

        def make() -> Vocabulary:
            tell(f"{self._corpus.name}: training a tokenizer of {size:,} tokens")
            whole = "test" in self._corpus.splits
            texts = self._read("train") if whole else train_part(self._read("train"), self.cut)
            found = bpe.trained((text for text, _ in texts), size, end)
            self._check_unchanged()
            return found

        found = store.vocabulary([self._content, size, end], end, make)
        bpe.check_end(found)
        return found


def _agreed(config: DatasetConfig, recorded: Vocabulary) -> Vocabulary:
    """Returns the tokenizer of a recorded run, unless the config names another one that is there."""
    wanted = config.tokenizer or BYTES
    if (wanted == BYTES) != (recorded.kind == BYTES):
        raise _another("tokenizer", wanted, f"{recorded.kind}, {recorded.size:,} tokens")
    if config.end_token != recorded.end_token:
        raise _another("end_token", config.end_token, str(recorded.end_token or "null"))
    if wanted not in (BYTES, BPE) and Path(wanted).expanduser().exists():
        now = bpe.read(Path(wanted).expanduser(), config.end_token)
        if now.sha256 != recorded.sha256:
            raise _another("tokenizer", wanted, f"sha256 {recorded.sha256[:12]}, and this file has {now.sha256[:12]}")
    bpe.settle_threads()
    return recorded


def _another(key: str, value: object, was: str) -> ConfigError:
    allowed = f"what the run was trained with: {was}"
    return invalid(f"dataset.{key}", value, problem=allowed, fix="give the run's own, or train a new run")


def _unable(config: DatasetConfig, why: str) -> ConfigError:
    allowed = f"one that has tokens for the text, and this one {why}"
    fix = "give it a token for what is unknown, or set dataset.tokenizer=bpe"
    return invalid("dataset.tokenizer", config.tokenizer, problem=allowed, fix=fix)


def _packed(corpus: Corpus, split: str, stored: Stored, length: int, *, apart: bool) -> DataSource:
    made = Packed(stored.stream, stored.starts, length, apart)
    least = 2 if apart else length + 1
    count = len(stored.stream)
    has = f"split {split} of {corpus.name} has {count:,} token{'s' if count != 1 else ''}, and {least:,} are needed"
    if count < 2:
        raise DataError(f"{has}; take more text")
    if count < least:
        raise invalid("dataset.sequence_length", length, problem=has, fix="set it lower, or take more text")
    if apart and stored.size.tokens == stored.size.documents:
        raise no_label_counts(split)
    return made.in_memory()

"""Checks between the keys of `dataset` that concern text; see `runner.data.checks`."""

from __future__ import annotations

import glob
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from runner.config.fields import path_problem
from runner.config.schema_data import (
    APART,
    ARRAYS,
    CUSTOM,
    DIGITS,
    IMAGE_FOLDER,
    JOINED,
    MOST_TOKENS,
    SINGLE_BYTES,
    TEXT,
    TEXTS,
    DatasetConfig,
)
from runner.config.values import changed
from runner.errors import ConfigError, did_you_mean, invalid

__all__ = ["APART", "JOINED", "MOST_TOKENS"]

BYTES = "bytes"
BPE = "bpe"
SUFFIXES = (".txt", ".jsonl", ".parquet")

# As it is typed: the double quotes are for the shell, the single quotes for Hydra.
END_TOKEN = "\"dataset.end_token='<|endoftext|>'\""

# The values that null stands for.
LENGTH = 256
VOCABULARY_SIZE = 8192

_KEYS_OF_TEXT = ("column", "tokenizer", "vocabulary_size", "end_token", "sequence_length", "documents")
_KEYS_OF_IMAGES = ("image_size", "standardize", "features")

# Sources that have no text, whatever the other keys.
_WITHOUT_TEXT = (ARRAYS, CUSTOM, DIGITS, IMAGE_FOLDER)

_CONTENT = f"a file, a folder of {', '.join(SUFFIXES)} files, or a glob"


def is_text(config: DatasetConfig) -> bool:
    """Returns whether the examples of a dataset are sequences of tokens."""
    if config.builder is None and config.name in TEXTS:
        return True
    is_tfds = config.builder is not None or config.name not in _WITHOUT_TEXT
    return is_tfds and config.tokenizer is not None


def bytes_vocabulary(config: DatasetConfig) -> int | None:
    """Returns the vocabulary size of a byte tokenizer; None: only the tokenizer knows its size."""
    has_end_token = config.end_token is not None
    return SINGLE_BYTES + has_end_token if config.tokenizer in (None, BYTES) else None


def check(config: DatasetConfig, *, recorded: bool = False) -> None:
    """Checks the keys of text, and that other data has none of them.

    Args:
      config: whose single values are checked.
      recorded: a recorded run has the tokenizer, so its file may be gone.

    Raises:
      ConfigError: the first problem.
    """
    if not is_text(config):
        for key in changed(config, _KEYS_OF_TEXT):
            raise _not_of_text(config, key)
        return
    is_own_source = config.builder is None and config.name in TEXTS
    if is_own_source:
        for key in changed(config, _KEYS_OF_IMAGES):
            raise invalid(
                f"dataset.{key}",
                getattr(config, key),
                problem=f"dataset={config.name} has no such key",
                fix=f"remove dataset.{key}",
            )
    if config.column is not None and config.name != TEXT:
        raise invalid(
            "dataset.column",
            config.column,
            problem="only dataset=text has such a key, for its .jsonl and .parquet files",
            fix="remove it" if is_own_source else "remove it, or set dataset.features to the text feature",
        )
    _check_tokenizer(config, recorded=recorded)
    _check_vocabulary_size(config)
    if config.tokenizer != BYTES and importlib.util.find_spec("tokenizers") is None:
        raise invalid(
            "dataset.tokenizer",
            config.tokenizer,
            problem="needs the library tokenizers, which is not installed",
            fix="pip install tokenizers, or set dataset.tokenizer=bytes",
        )
    if config.name == TEXT and config.builder is None:
        try:
            _check_path(config)
        except OSError as error:
            problem = f"can't be read ({error.strerror})"
            raise invalid("dataset.path", config.path, problem=problem, fix="check its permissions") from error


def _not_of_text(config: DatasetConfig, key: str) -> ConfigError:
    """Returns the error for a key of text with data that is none."""
    value = getattr(config, key)
    if config.builder is None and config.name in _WITHOUT_TEXT:
        fix = f"remove dataset.{key}, or set dataset=text"
        return invalid(f"dataset.{key}", value, problem=f"dataset={config.name} has no such key", fix=fix)
    fix = f"set dataset.tokenizer=bytes too, or remove dataset.{key}"
    return invalid(f"dataset.{key}", value, problem="needs text, which dataset.tokenizer selects", fix=fix)


def _check_tokenizer(config: DatasetConfig, *, recorded: bool) -> None:
    key = "dataset.tokenizer"
    tokenizer = config.tokenizer or ""
    if tokenizer in (BYTES, BPE):
        return
    problem = path_problem(tokenizer) if tokenizer else None
    if problem is not None:
        raise invalid(key, config.tokenizer, problem=problem, fix=f"set {key}=tokenizer.json")
    is_file_name = tokenizer.endswith(".json")
    if is_file_name and (recorded or Path(tokenizer).expanduser().is_file()):
        return
    problem = "the file does not exist" if is_file_name else f"must be {BYTES}, {BPE} or the path of a tokenizer.json"
    fix = did_you_mean(tokenizer, (BYTES, BPE), f"set {key}=bytes")
    raise invalid(key, config.tokenizer, problem=problem, fix=fix)


def _check_vocabulary_size(config: DatasetConfig) -> None:
    key = "dataset.vocabulary_size"
    size = config.vocabulary_size
    if size is None:
        return
    smallest = SINGLE_BYTES + (config.end_token is not None)
    if config.tokenizer != BPE:
        fixed = f"has {smallest} tokens" if config.tokenizer == BYTES else "has its own vocabulary"
        problem = f"works with dataset.tokenizer=bpe only: dataset.tokenizer={config.tokenizer} {fixed}"
        raise invalid(key, size, problem=problem, fix=f"remove {key}, or set dataset.tokenizer=bpe")
    if size < smallest:
        problem = f"must be at least {smallest}, the single bytes and the end token"
        raise invalid(key, size, problem=problem, fix=f"set {key}={VOCABULARY_SIZE}")


def matches(path: str) -> Sequence[Path]:
    """Returns the file, the folder or the files of a glob that a path names; empty: nothing exists there."""
    expanded = Path(path).expanduser()
    if expanded.exists():
        return [expanded]
    names = sorted(set(glob.glob(str(expanded), recursive=True)))  # noqa: PTH207 - Path's takes no absolute pattern
    return [Path(name) for name in names if Path(name).is_file()]


def _check_path(config: DatasetConfig) -> None:
    """Checks that the files of `dataset=text` exist.

    Raises:
      ConfigError: they do not.
      OSError: they can't be read.
    """
    if config.path is None:
        raise invalid("dataset.path", None, problem=f"needs {_CONTENT}", fix="set dataset.path=notes.txt")
    if not matches(config.path):
        raise missing_path(config.path, _CONTENT, "notes.txt")


def missing_path(path: str, content: str, example: str) -> ConfigError:
    """Returns the error for data that does not exist.

    Args:
      path: as it was typed.
      content: what it must be, in words.
      example: of such a path.
    """
    absolute = Path(path).expanduser().absolute()
    folder = absolute.parent
    neighbors = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
    fix = did_you_mean(absolute.name, neighbors, f"set dataset.path={example}, relative to the current directory")
    return invalid("dataset.path", path, problem=f"{absolute} does not exist, but must be {content}", fix=fix)

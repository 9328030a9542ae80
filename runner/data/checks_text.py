"""Checks of the dataset's keys that are of text; each raises `ConfigError` with its fix."""

from __future__ import annotations

import glob
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from runner.config.checks_values import changed, folder, one_of, positive
from runner.config.schema_data import ARRAYS, CUSTOM, DIGITS, IMAGE_FOLDER, TEXT, TEXTS, DatasetConfig
from runner.errors import did_you_mean, invalid

BYTES = "bytes"
BPE = "bpe"
DOCUMENTS = APART, JOINED = ("apart", "joined")
SUFFIXES = (".txt", ".jsonl", ".parquet")
END_TOKEN = "\"dataset.end_token='<|endoftext|>'\""  # as it is typed: for the shell, and for Hydra
# what null stands for
LENGTH = 256
VOCABULARY_SIZE = 8192
# of a vocabulary, and of a sequence
MOST_TOKENS = 1 << 24
_LONGEST = 1 << 20
_KEYS = ("column", "tokenizer", "vocabulary_size", "end_token", "sequence_length", "documents")
_OF_IMAGES = ("image_size", "standardize", "features")
_OTHERS = (ARRAYS, CUSTOM, DIGITS, IMAGE_FOLDER)
_WHAT = f"a file, a folder of {', '.join(SUFFIXES)} files, or a glob"


def is_text(config: DatasetConfig) -> bool:
    """Tells whether the config's examples are sequences of tokens."""
    own = config.builder is None and config.name in TEXTS
    return own or (config.tokenizer is not None and (config.builder is not None or config.name not in _OTHERS))


def bytes_vocabulary(config: DatasetConfig) -> int | None:
    """Returns how many tokens a text has; None where only its tokenizer tells."""
    return 256 + (config.end_token is not None) if config.tokenizer in (None, BYTES) else None


def check(config: DatasetConfig, *, recorded: bool = False) -> None:
    """Checks the keys of text, and that other data has none of them.

    Args:
      config: the dataset's.
      recorded: whether there is a run that has recorded its tokenizer, whose file need not be there any more.

    Raises:
      ConfigError: the first thing found that cannot work.
    """
    own = config.builder is None and config.name in TEXTS
    if not is_text(config):
        if keys := changed(config, _KEYS):
            raise _refuse_key(config, keys[0])
        return
    if own and (keys := changed(config, _OF_IMAGES)):
        raise invalid(
            f"dataset.{keys[0]}",
            getattr(config, keys[0]),
            problem=f"dataset.name={config.name} has no such key",
            fix=f"leave {keys[0]} out",
        )
    if config.column is not None and config.name != TEXT:
        raise invalid(
            "dataset.column",
            config.column,
            problem="a field or column of the files of dataset=text",
            fix="leave column out" + ("" if own else ", or name a feature by dataset.features"),
        )
    _check_tokenizer(config, recorded=recorded)
    positive("dataset.sequence_length", config.sequence_length)
    if (config.sequence_length or 0) > _LONGEST:
        raise invalid(
            "dataset.sequence_length",
            config.sequence_length,
            problem=f"at most {_LONGEST:,} tokens",
            fix=f"set dataset.sequence_length={LENGTH}",
        )
    if config.documents is not None:
        one_of("dataset.documents", config.documents, DOCUMENTS)
    if config.name == TEXT and config.builder is None:
        try:
            _check_path(config)
        except OSError as error:
            allowed = f"a path that can be read ({error.strerror})"
            raise invalid("dataset.path", config.path, problem=allowed, fix="fix its rights") from error


def _refuse_key(config: DatasetConfig, key: str) -> Exception:
    value = getattr(config, key)
    if config.builder is None and config.name in _OTHERS:
        fix = f"leave {key} out, or set dataset=text"
        return invalid(f"dataset.{key}", value, problem=f"dataset.name={config.name} has no such key", fix=fix)
    allowed = "a key of text, which dataset.tokenizer asks for"
    return invalid(f"dataset.{key}", value, problem=allowed, fix="add dataset.tokenizer=bytes, or leave it out")


def _check_tokenizer(config: DatasetConfig, *, recorded: bool) -> None:
    wanted = config.tokenizer or ""
    if wanted not in (BYTES, BPE):
        folder("dataset.tokenizer", wanted)
        if not wanted.endswith(".json") or not (recorded or Path(wanted).expanduser().is_file()):
            what = "there is no such file, and " if wanted.endswith(".json") else ""
            raise invalid(
                "dataset.tokenizer",
                config.tokenizer,
                problem=f"{what}{BYTES}, {BPE} or the path of a tokenizer.json is needed",
                fix=did_you_mean(wanted, (BYTES, BPE), "set dataset.tokenizer=bytes"),
            )
    if config.end_token is not None and not config.end_token.strip():
        raise invalid("dataset.end_token", "''", problem="a text, or null", fix=f"write {END_TOKEN}")
    least = 256 + (config.end_token is not None)
    size = config.vocabulary_size
    if size is not None and wanted != BPE:
        has = f"bytes have {least} tokens" if wanted == BYTES else "a given tokenizer has its own"
        fix = "leave it out, or set dataset.tokenizer=bpe"
        raise invalid("dataset.vocabulary_size", size, problem=f"a key of dataset.tokenizer=bpe: {has}", fix=fix)
    if size is not None and not least <= size <= MOST_TOKENS:
        raise invalid(
            "dataset.vocabulary_size",
            size,
            problem=f"at least {least}, the single bytes, and at most {MOST_TOKENS:,}",
            fix=f"set dataset.vocabulary_size={VOCABULARY_SIZE}",
        )
    if wanted != BYTES and importlib.util.find_spec("tokenizers") is None:
        raise invalid(
            "dataset.tokenizer",
            wanted,
            problem="the library tokenizers is not installed, and bytes alone do without it",
            fix="pip install tokenizers, or set dataset.tokenizer=bytes",
        )


def matches(path: str) -> Sequence[Path]:
    """Returns what a path names, a file, a folder or the files of a glob; nothing where nothing is there."""
    there = Path(path).expanduser()
    if there.exists():
        return [there]
    found = sorted(set(glob.glob(str(there), recursive=True)))  # noqa: PTH207 - Path's takes no absolute pattern
    return [Path(one) for one in found if Path(one).is_file()]


def _check_path(config: DatasetConfig) -> None:
    if config.path is None or not config.path.strip():
        raise invalid("dataset.path", config.path, problem=_WHAT, fix="write dataset.path=notes.txt")
    folder("dataset.path", config.path)
    if not matches(config.path):
        path = Path(config.path).expanduser()
        where = path.absolute().parent
        there = sorted(one.name for one in where.iterdir()) if where.is_dir() else []
        raise invalid(
            "dataset.path",
            config.path,
            problem=f"there is no {path.absolute()}, and {_WHAT} is needed",
            fix=did_you_mean(path.name, there, "write dataset.path=notes.txt, from where you type the command"),
        )

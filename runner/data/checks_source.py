"""Checks of single data sources, for their entries in `runner.data.registry`.

Imports no data library.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.config.schema_data import DatasetConfig
from runner.config.values import check_finite
from runner.data import places
from runner.errors import ConfigError, did_you_mean, invalid
from runner.host import import_path

TABLE_SUFFIXES = (".npz", ".npy", ".csv", ".parquet")
PARQUET_SUFFIXES = (".parquet",)
ARROW_SUFFIXES = (".arrow",)
ARRAY_RECORD_SUFFIXES = (".array_record", ".arrayrecord")
# A file of one of these suffixes, or a shard as TFDS names them: pictures-train.array_record-00000-of-00002.
ARRAY_RECORD_FILE = re.compile(r"(?P<name>.+)\.array_?record(?P<shard>-\d{5}-of-\d{5})?", re.IGNORECASE)
TEXT_SUFFIXES = (".txt", ".jsonl", ".parquet", ".arrow")

_TABLES = f"a {', '.join(TABLE_SUFFIXES[:-1])} or {TABLE_SUFFIXES[-1]} file, or a folder of them"
_TEXTS = f"a file, a folder of {', '.join(TEXT_SUFFIXES[:-1])} or {TEXT_SUFFIXES[-1]} files, or a glob"
_IMAGES = "a folder of images"
_HUGGINGFACE = "a folder that save_to_disk wrote, or one with .arrow or .parquet files"
# Name of a dataset on Hugging Face's Hub.
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_ARRAY_RECORDS = "an .array_record file, a folder of them, or a glob"
_PARQUET = "a .parquet file, a folder of them, or a glob"


def check_tables(config: DatasetConfig) -> None:
    """Checks that `dataset.path` is a table file or a folder.

    Raises:
      ConfigError: it is missing or something else, or can't be read.
    """
    with _readable(config):
        path = _existing(config, _TABLES, example="houses.csv")
        if path.is_file() and path.suffix.lower() not in TABLE_SUFFIXES:
            fix = "convert it, for example with pandas.DataFrame.to_parquet"
            raise invalid("dataset.path", config.path, problem=f"must be {_TABLES}", fix=fix)


def check_images(config: DatasetConfig) -> None:
    """Checks that `dataset.path` is a folder.

    Raises:
      ConfigError: it is missing or something else, or can't be read.
    """
    with _readable(config):
        path = _existing(config, _IMAGES, example="photos")
        if not path.is_dir():
            fix = "set dataset.path to the folder that has one folder per class"
            raise invalid("dataset.path", config.path, problem=f"must be {_IMAGES}", fix=fix)


def check_texts(config: DatasetConfig) -> None:
    """Checks that `dataset.path` is a file or a folder, or a glob that matches one.

    Raises:
      ConfigError: it is none, or can't be read.
    """
    with _readable(config):
        path = _set_path(config, _TEXTS, example="notes.txt")
        if not matches(path):
            raise _missing(path, _TEXTS)


def check_parquet(config: DatasetConfig) -> None:
    """Checks that `dataset.path` is a Parquet file or a folder, or a glob that matches one.

    Raises:
      ConfigError: it is none, or can't be read.
    """
    with _readable(config):
        path = _set_path(config, _PARQUET, example="houses.parquet")
        matched = matches(path)
        if not matched:
            raise _missing(path, _PARQUET)
        for file in matched:
            if file.is_file() and file.suffix.lower() not in PARQUET_SUFFIXES:
                fix = "convert it, for example with pandas.DataFrame.to_parquet, or set dataset=arrays"
                raise invalid("dataset.path", config.path, problem=f"must be {_PARQUET}", fix=fix)


def check_huggingface(config: DatasetConfig) -> None:
    """Checks that `dataset.path` is a folder, or an Arrow or Parquet file.

    Raises:
      ConfigError: it is none, or can't be read.
    """
    with _readable(config):
        typed_path = _set_path(config, _HUGGINGFACE, example="pictures")
        path = Path(typed_path).expanduser()
        if not path.exists() and _HUB_NAME.fullmatch(typed_path):
            folder = typed_path.rpartition("/")[2]
            raise invalid(
                "dataset.path",
                typed_path,
                problem=f"must be {_HUGGINGFACE} on this machine; nothing is downloaded",
                fix=f"run `hf download --repo-type dataset {typed_path} --local-dir {folder}`, then set "
                f"dataset.path={folder}",
            )
        path = _existing(config, _HUGGINGFACE, example="pictures")
        if path.is_file() and path.suffix.lower() not in (*ARROW_SUFFIXES, *PARQUET_SUFFIXES):
            fix = "save the dataset with save_to_disk and name its folder"
            raise invalid("dataset.path", config.path, problem=f"must be {_HUGGINGFACE}", fix=fix)


def check_array_record(config: DatasetConfig) -> None:
    """Checks that `dataset.path` is an ArrayRecord file or a folder, or a glob that matches one.

    Raises:
      ConfigError: it is none, or can't be read.
    """
    with _readable(config):
        path = _set_path(config, _ARRAY_RECORDS, example="pictures.array_record")
        matched = matches(path)
        if not matched:
            raise _missing(path, _ARRAY_RECORDS)
        for file in matched:
            if file.is_file() and not ARRAY_RECORD_FILE.fullmatch(file.name):
                fix = "write it with array_record.python.array_record_module.ArrayRecordWriter"
                raise invalid("dataset.path", config.path, problem=f"must be {_ARRAY_RECORDS}", fix=fix)


def check_custom(config: DatasetConfig) -> None:
    """Checks the path and the values of `dataset=custom`.

    Raises:
      ConfigError: it does not.
    """
    check_finite(config.options, "dataset")
    import_path.check("dataset._target_", config.target)


def check_builder(config: DatasetConfig) -> None:
    """Checks the path of the user's own TFDS builder, where the config names one.

    Raises:
      ConfigError: it does not exist.
    """
    if config.builder is not None:
        import_path.check("dataset.builder", config.builder)


def matches(path: str) -> Sequence[Path]:
    """Returns the file, the folder or the files of a glob that a path names; empty if nothing exists there."""
    expanded = places.local(path)
    if expanded.exists():
        _check_regular(path, expanded)
        return [expanded]
    # A set, because a pattern with several `**` matches some files more than once.
    names = sorted(set(glob.glob(str(expanded), recursive=True)))  # noqa: PTH207 - Path's takes no absolute pattern
    return list(filter(Path.is_file, map(Path, names)))


@contextmanager
def _readable(config: DatasetConfig) -> Iterator[None]:
    """Reports a path that can't be read as a problem of the config."""
    try:
        yield
    except OSError as error:
        problem = f"can't be read ({error.strerror})"
        raise invalid("dataset.path", config.path, problem=problem, fix="check its permissions") from error


def _set_path(config: DatasetConfig, content: str, example: str) -> str:
    """Returns `dataset.path`, which must not be null."""
    if config.path is None:
        raise invalid("dataset.path", None, problem=f"needs {content}", fix=f"set dataset.path={example}")
    return config.path


def _existing(config: DatasetConfig, content: str, example: str) -> Path:
    """Returns the file or folder that `dataset.path` names, which must exist."""
    typed_path = _set_path(config, content, example)
    path = Path(typed_path).expanduser()
    if not path.exists():
        raise _missing(typed_path, content)
    _check_regular(typed_path, path)
    return path


def _check_regular(typed_path: str, path: Path) -> None:
    """Rejects a pipe or a device, which has no end or can be read once only."""
    if not path.is_file() and not path.is_dir():
        raise invalid(
            "dataset.path", typed_path, problem="is a pipe or a device", fix="set dataset.path to a file or folder"
        )


def _missing(path: str, content: str) -> ConfigError:
    """Returns the error for data that does not exist.

    Args:
      path: as it was typed.
      content: what it must be, in words.
    """
    absolute = Path(path).expanduser().absolute()
    # The files next to it are candidates for "did you mean".
    neighbors: list[str] = []
    if absolute.parent.is_dir():
        neighbors = sorted(file.name for file in absolute.parent.iterdir())
    fix = did_you_mean(absolute.name, neighbors, "set dataset.path to an existing file or folder")
    return invalid("dataset.path", path, problem=f"{absolute} does not exist, but must be {content}", fix=fix)

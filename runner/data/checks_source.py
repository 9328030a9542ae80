"""Checks of single data sources, for their entries in `runner.data.registry`. Imports no data library."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.config import import_path
from runner.config.schema_data import DatasetConfig
from runner.config.values import check_finite
from runner.errors import ConfigError, did_you_mean, invalid

TABLE_SUFFIXES = (".npz", ".npy", ".csv", ".parquet")
PARQUET_SUFFIXES = (".parquet",)
ARROW_SUFFIXES = (".arrow",)
TEXT_SUFFIXES = (".txt", ".jsonl", ".parquet", ".arrow")
# Name of a dataset on Hugging Face's Hub.
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class PathRule:
    """What `dataset.path` of a source names: a file, a folder or a glob."""

    content: str
    example: str
    suffixes: tuple[str, ...] | None = None  # of a file, in lower case; empty: only a folder; None: any
    fix: str = ""  # for a file with another suffix
    is_on_hub: bool = False  # whether a name that does not exist may be that of a dataset on Hugging Face's Hub

    def check(self, config: DatasetConfig) -> None:
        """Checks that `dataset.path` names what the source reads."""
        path = config.path
        if path is None:
            fix = f"set dataset.path={self.example}"
            raise invalid("dataset.path", None, problem=f"needs {self.content}", fix=fix)
        try:
            found = matches(path)
            if not found:
                raise _missing(path, self)
        except OSError as error:
            problem = f"can't be read ({error.strerror})"
            raise invalid("dataset.path", path, problem=problem, fix="check its permissions") from error
        for file in found:
            if file.is_file() and self.suffixes is not None and file.suffix.lower() not in self.suffixes:
                raise invalid("dataset.path", path, problem=f"must be {self.content}", fix=self.fix)


TABLES = PathRule(
    f"a {', '.join(TABLE_SUFFIXES[:-1])} or {TABLE_SUFFIXES[-1]} file, or a folder of them",
    "houses.csv",
    TABLE_SUFFIXES,
    "convert it, for example with pandas.DataFrame.to_parquet",
)
TEXTS = PathRule(
    f"a file, a folder of {', '.join(TEXT_SUFFIXES[:-1])} or {TEXT_SUFFIXES[-1]} files, or a glob", "notes.txt"
)
IMAGES = PathRule("a folder of images", "photos", (), "set dataset.path to the folder that has one folder per class")
HUGGINGFACE = PathRule(
    "a folder that save_to_disk wrote, or one with .arrow or .parquet files",
    "pictures",
    (*ARROW_SUFFIXES, *PARQUET_SUFFIXES),
    "save the dataset with save_to_disk and name its folder",
    is_on_hub=True,
)
PARQUET = PathRule(
    "a .parquet file, a folder of them, or a glob",
    "houses.parquet",
    PARQUET_SUFFIXES,
    "convert it, for example with pandas.DataFrame.to_parquet, or set dataset=arrays",
)


def check_custom(config: DatasetConfig) -> None:
    """Checks the path and the values of `dataset=custom`."""
    check_finite(config.options, "dataset")
    import_path.check("dataset._target_", config.target)


def matches(path: str) -> Sequence[Path]:
    """Returns the file, the folder or the files of a glob that a path names; empty if nothing exists there."""
    expanded = Path(path).expanduser()
    if expanded.is_file() or expanded.is_dir():
        return [expanded]
    if expanded.exists():
        # It has no end or can be read once only.
        fix = "set dataset.path to a file or folder"
        raise invalid("dataset.path", path, problem="is a pipe or a device", fix=fix)
    # A set, because a pattern with several `**` matches some files more than once.
    names = sorted(set(glob.glob(str(expanded), recursive=True)))  # noqa: PTH207 - Path's takes no absolute pattern
    return list(filter(Path.is_file, map(Path, names)))


def _missing(path: str, rule: PathRule) -> ConfigError:
    if rule.is_on_hub and _HUB_NAME.fullmatch(path):
        folder = path.rpartition("/")[2]
        problem = f"must be {rule.content} on this machine; nothing is downloaded"
        fix = f"run `hf download --repo-type dataset {path} --local-dir {folder}`, then set dataset.path={folder}"
        return invalid("dataset.path", path, problem=problem, fix=fix)
    absolute = Path(path).expanduser().absolute()
    # The files next to it are candidates for "did you mean".
    neighbors: list[str] = []
    if absolute.parent.is_dir():
        neighbors = sorted(file.name for file in absolute.parent.iterdir())
    fix = did_you_mean(absolute.name, neighbors, "set dataset.path to an existing file or folder")
    return invalid("dataset.path", path, problem=f"{absolute} does not exist, but must be {rule.content}", fix=fix)

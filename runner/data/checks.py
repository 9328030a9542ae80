"""Checks of the dataset's keys; each raises `ConfigError` with its fix, before a library of data is imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.checks_values import changed, finite, folder, one_of, positive
from runner.config.schema_data import ARRAYS, CUSTOM, IMAGE_FOLDER, TEXT, DatasetConfig
from runner.data import checks_augment, checks_text
from runner.errors import did_you_mean, invalid
from runner.host import import_path
from runner.host.late import late

if TYPE_CHECKING:
    from runner.data import splits
else:
    splits = late("runner.data.splits")  # with NumPy, which `--help` does without

TABLES = (".npz", ".npy", ".csv", ".parquet")
_CHANNELS = (None, 1, 3, 4)
# Keys that would change nothing elsewhere, and the sources that they are of.
_SOURCES_OF = {
    "target": (CUSTOM,),
    "path": (ARRAYS, IMAGE_FOLDER, TEXT),
    "channels": (IMAGE_FOLDER,),
    "skip_broken": (IMAGE_FOLDER,),
}


def check(config: DatasetConfig, *, recorded: bool = False) -> None:
    """Checks what the config alone tells.

    Args:
      config: the dataset's.
      recorded: whether a recorded run is looked at, or goes on, by whose tokenizer a text is read.

    Raises:
      ConfigError: the first thing found that cannot work.
    """
    if not config.name.strip() and config.builder is None:
        raise invalid(
            "dataset.name",
            "''",
            problem="the name of a TFDS builder, or dataset.builder",
            fix="write dataset.name=emnist/letters",
        )
    positive("dataset.batch_size", config.batch_size)
    positive("dataset.eval_batch_size", config.eval_batch_size)
    one_of("dataset.remainder", config.remainder, ("drop", "pad"))
    positive("dataset.prefetch", config.prefetch)
    _check_splits(config)
    _check_standardize(config)
    if config.image_size is not None and (len(config.image_size) != 2 or min(config.image_size) < 1):
        raise invalid(
            "dataset.image_size",
            config.image_size,
            problem="[height, width], each at least 1",
            fix="set dataset.image_size=[64,64]",
        )
    if config.channels not in _CHANNELS:
        raise invalid(
            "dataset.channels", config.channels, problem="1, 3 or 4, or null", fix="leave it out: by the files"
        )
    folder("dataset.data_dir", config.data_dir)
    _check_source(config)
    checks_text.check(config, recorded=recorded)
    checks_augment.check(config)


def _check_splits(config: DatasetConfig) -> None:
    for key in ("train", "validation", "test"):
        text = getattr(config, key)
        try:
            if text is not None:
                splits.parse_split(text)
        except ValueError as error:
            raise invalid(
                f"dataset.{key}", text, problem=str(error), fix=f"write dataset.{key}='train[:5000]'"
            ) from error
    if not 0 <= config.holdout < 1:
        allowed = "a share of train, at least 0 and below 1"
        raise invalid("dataset.holdout", config.holdout, problem=allowed, fix="set dataset.holdout=0.1")
    if config.holdout and config.validation is not None:
        raise invalid(
            "dataset.holdout",
            config.holdout,
            problem=f"dataset.validation={config.validation} names a validation split, so nothing is held out",
            fix="leave out one of the two",
        )


def _check_standardize(config: DatasetConfig) -> None:
    value = config.standardize
    names = isinstance(value, list) and all(isinstance(one, str) and one for one in value)
    if not (isinstance(value, bool) or names):
        raise invalid(
            "dataset.standardize",
            value,
            problem="true, false, or names of float arrays",
            fix="set dataset.standardize=true",
        )


def _check_source(config: DatasetConfig) -> None:
    for key in changed(config, [key for key, names in _SOURCES_OF.items() if config.name not in names]):
        typed = "_target_" if key == "target" else key
        raise invalid(
            f"dataset.{typed}",
            getattr(config, key),
            problem=f"dataset.name={config.name} has no such key",
            fix=f"leave {typed} out, or set dataset={_SOURCES_OF[key][0]}",
        )
    if config.name in (ARRAYS, IMAGE_FOLDER) and config.builder is None:
        try:
            _check_path(config)
        except OSError as error:
            allowed = f"a path that can be read ({error.strerror})"
            raise invalid("dataset.path", config.path, problem=allowed, fix="fix its rights") from error
    elif config.name == CUSTOM:
        finite(config.options, "dataset.")
        found = import_path.look_up("dataset._target_", config.target, compiled=True)
        if found.arguments is not None:
            import_path.check_options("dataset", config.target, found.arguments, config.options)
    elif config.builder is not None:
        import_path.look_up("dataset.builder", config.builder, compiled=True)
    if config.features is not None and (not config.features or config.name in (CUSTOM, IMAGE_FOLDER)):
        raise invalid(
            "dataset.features",
            config.features,
            problem="names of a TFDS builder's features, or of the columns of dataset=arrays",
            fix="write dataset.features=[image,label], or leave it out",
        )


def _check_path(config: DatasetConfig) -> None:
    what = "a folder of images" if config.name == IMAGE_FOLDER else f"a {', '.join(TABLES)} file, or a folder of them"
    example = "photos" if config.name == IMAGE_FOLDER else "houses.csv"
    if config.path is None or not config.path.strip():
        raise invalid("dataset.path", config.path, problem=what, fix=f"write dataset.path={example}")
    folder("dataset.path", config.path)
    path = Path(config.path).expanduser()
    if not path.exists():
        where = path.absolute().parent
        there = sorted(one.name for one in where.iterdir()) if where.is_dir() else []
        raise invalid(
            "dataset.path",
            config.path,
            problem=f"there is no {path.absolute()}, and {what} is needed",
            fix=did_you_mean(path.name, there, f"write dataset.path={example}, from where you type the command"),
        )
    if config.name == IMAGE_FOLDER and not path.is_dir():
        raise invalid("dataset.path", config.path, problem=what, fix="name the folder that holds a folder a class")
    if config.name == ARRAYS and path.is_file() and path.suffix.lower() not in TABLES:
        raise invalid("dataset.path", config.path, problem=what, fix="convert it, as by pandas.DataFrame.to_parquet")

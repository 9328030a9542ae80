"""Checks between keys of `dataset`, before a data library is imported; see `runner.checks.run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.schema_data import ARRAYS, CUSTOM, IMAGE_FOLDER, TEXT, DatasetConfig
from runner.config.values import changed, check_finite
from runner.data import checks_augment, checks_text
from runner.errors import invalid
from runner.host import import_path
from runner.host.late import late

if TYPE_CHECKING:
    from runner.data import splits
else:
    # It imports NumPy, which `--help` and most config errors do without.
    splits = late("runner.data.splits")

TABLES = (".npz", ".npy", ".csv", ".parquet")

# Keys that have no effect with other sources -> the sources that use them.
_SOURCES_OF = {
    "target": (CUSTOM,),
    "path": (ARRAYS, IMAGE_FOLDER, TEXT),
    "channels": (IMAGE_FOLDER,),
    "skip_broken": (IMAGE_FOLDER,),
}


def check(config: DatasetConfig, *, recorded: bool = False) -> None:
    """Checks the keys of the group against each other, and that its files exist.

    Args:
      config: whose single values are checked.
      recorded: a recorded run is resumed or read, whose tokenizer is used.

    Raises:
      ConfigError: the first problem.
    """
    if not config.name.strip() and config.builder is None:
        raise invalid(
            "dataset.name",
            config.name,
            problem="needs the name of a TFDS builder",
            fix="set dataset.name=emnist/letters, or dataset.builder",
        )
    _check_splits(config)
    _check_source(config)
    checks_text.check(config, recorded=recorded)
    checks_augment.check(config)


def _check_splits(config: DatasetConfig) -> None:
    for key in ("train", "validation", "test"):
        expression = getattr(config, key)
        try:
            if expression is not None:
                splits.parse_split(expression)
        except ValueError as error:
            fix = f"set dataset.{key}='train[:5000]'"
            raise invalid(f"dataset.{key}", expression, problem=str(error), fix=fix) from error
    if config.holdout and config.validation is not None:
        raise invalid(
            "dataset.holdout",
            config.holdout,
            problem=f"must be 0 with a validation split, but dataset.validation={config.validation}",
            fix="remove dataset.holdout or dataset.validation",
        )


def _check_source(config: DatasetConfig) -> None:
    """Checks the keys of single sources, and that what they name exists."""
    keys_of_others = [key for key, sources in _SOURCES_OF.items() if config.name not in sources]
    for key in changed(config, keys_of_others):
        yaml_key = "_target_" if key == "target" else key
        raise invalid(
            f"dataset.{yaml_key}",
            getattr(config, key),
            problem=f"dataset={config.name} has no such key",
            fix=f"remove dataset.{yaml_key}, or set dataset={_SOURCES_OF[key][0]}",
        )
    if config.name in (ARRAYS, IMAGE_FOLDER) and config.builder is None:
        try:
            _check_path(config)
        except OSError as error:
            problem = f"can't be read ({error.strerror})"
            raise invalid("dataset.path", config.path, problem=problem, fix="check its permissions") from error
    elif config.name == CUSTOM:
        check_finite(config.options, "dataset")
        definition = import_path.look_up("dataset._target_", config.target, compiled=True)
        if definition.arguments is not None:
            import_path.check_options("dataset", config.target, definition.arguments, config.options)
    elif config.builder is not None:
        import_path.look_up("dataset.builder", config.builder, compiled=True)
    if config.features is not None and config.name in (CUSTOM, IMAGE_FOLDER):
        raise invalid(
            "dataset.features",
            config.features,
            problem=f"dataset={config.name} has no such key: features are of TFDS builders and dataset=arrays",
            fix="remove dataset.features",
        )


def _check_path(config: DatasetConfig) -> None:
    """Checks that the data of `arrays` and `image_folder` exists and has the right form.

    Raises:
      ConfigError: it does not.
      OSError: it can't be read.
    """
    is_images = config.name == IMAGE_FOLDER
    content = "a folder of images" if is_images else f"a {', '.join(TABLES)} file, or a folder of them"
    example = "photos" if is_images else "houses.csv"
    if config.path is None:
        raise invalid("dataset.path", None, problem=f"needs {content}", fix=f"set dataset.path={example}")
    path = Path(config.path).expanduser()
    if not path.exists():
        raise checks_text.missing_path(config.path, content, example)
    if is_images and not path.is_dir():
        fix = "set dataset.path to the folder that has one folder per class"
        raise invalid("dataset.path", config.path, problem=f"must be {content}", fix=fix)
    if not is_images and path.is_file() and path.suffix.lower() not in TABLES:
        fix = "convert it, for example with pandas.DataFrame.to_parquet"
        raise invalid("dataset.path", config.path, problem=f"must be {content}", fix=fix)

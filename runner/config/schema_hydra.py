"""The keys of Hydra's own config that the command line may set, and those of our launchers and sweepers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from runner.config.fields import Constraint, Problem, checked, integer, is_root, number


def _is_text(value: object) -> bool:
    # YAML reads a folder named 2025 as a number, and a flag is not a name.
    return isinstance(value, str | int | float) and not isinstance(value, bool) and bool(str(value).strip())


def _folder_problem(value: object) -> str | None:
    if not _is_text(value):
        return "must be the path of a folder"
    if is_root(str(value)):
        return "must not be the root of the file system"
    return None


def subfolder_problem(value: object) -> str | None:
    """Returns why a value is not the name of a folder inside the run's folder, nor null; None: it is one."""
    path = PurePath(str(value))
    is_inside = _is_text(value) and not path.is_absolute() and ".." not in path.parts
    if value is None or is_inside:
        return None
    return "must be a folder's name inside the run's folder, or null"


def _mode_problem(value: object) -> str | None:
    if value in ("RUN", "MULTIRUN"):
        return None
    return "must be RUN or MULTIRUN"


def _verbose_problem(value: object) -> str | None:
    if isinstance(value, list):
        is_valid = all(isinstance(name, str) and name for name in value)
    else:
        is_valid = isinstance(value, bool) or _is_text(value)
    if is_valid:
        return None
    return "must be true, false, or names of loggers"


def _name_problem(value: object) -> str | None:
    if _is_text(value):
        return None
    return "must be a name"


def _flag_problem(value: object) -> str | None:
    # Hydra resolves an interpolation only after this check.
    is_interpolation = isinstance(value, str) and "${" in value
    if isinstance(value, bool) or is_interpolation:
        return None
    return "must be true or false"


def _searchpath_problem(value: object) -> str | None:
    if isinstance(value, list) and all(map(_is_config_source, value)):
        return None
    # No folder is known to exist, and an example would be rejected as the value was.
    return Problem(
        "must be a list of file://<existing folder> and pkg://<package>",
        fix="name a folder of options that exists by its whole path",
    )


def _is_config_source(value: object) -> bool:
    if not isinstance(value, str):
        return False
    # Hydra only warns of a folder that does not exist, so it is checked here.
    scheme, separator, path = value.partition("://")
    return bool(separator) and (scheme == "pkg" or (scheme == "file" and Path(path).is_dir()))


HYDRA_KEYS: Mapping[str, Constraint] = {
    "hydra.run.dir": Constraint(whole=_folder_problem, example="outputs/mine"),
    "hydra.sweep.dir": Constraint(whole=_folder_problem, example="outputs/mine"),
    "hydra.sweep.subdir": Constraint(whole=_folder_problem, example="'${hydra.job.num}'"),
    "hydra.output_subdir": Constraint(whole=subfolder_problem, example=".hydra"),
    "hydra.mode": Constraint(whole=_mode_problem, example="MULTIRUN"),
    "hydra.verbose": Constraint(whole=_verbose_problem, example=True),
    "hydra.job.name": Constraint(whole=_name_problem, example="mine"),
    "hydra.job.chdir": Constraint(whole=_flag_problem, example=False),
    "hydra.searchpath": Constraint(whole=_searchpath_problem),
}


def _database_problem(value: str) -> str | None:
    if "://" in value:
        return None
    return "must be the URI of a database"


@dataclass(frozen=True)
class ProcessLauncher:
    """Keys of `hydra/launcher=processes`.

    Attributes:
      max_parallel: maximum number of concurrent jobs.
      timeout: time limit per job in seconds; null: none.
    """

    max_parallel: int = integer(1, at_least=1)
    timeout: float | None = number(None, above=0.0, unit="seconds", example=3600.0)


@dataclass(frozen=True)
class GridSweeper:
    """Keys of `hydra/sweeper=grid`.

    Attributes:
      params: swept key to its values.
    """

    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchSweeper:
    """Keys of `hydra/sweeper=optuna`.

    Attributes:
      params: swept key to its values or range.
      n_trials: number of trials, including those of a resumed search.
      storage: URI of the database with the studies.
      seed: of the sampler.
      startup_trials: random trials before the sampler uses results.
    """

    params: dict[str, Any] = field(default_factory=dict)
    n_trials: int = integer(20, at_least=1)
    storage: str = checked("", test=_database_problem, rule="URI", example="sqlite:///search.db")
    seed: int = integer(1337, at_least=0)
    startup_trials: int = integer(5, at_least=0)

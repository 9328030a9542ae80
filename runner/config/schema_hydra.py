"""The keys of Hydra's own config that the command line may set, and those of our launchers and sweepers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from runner.config.fields import Constraint, Problem, checked, integer, is_root, number, valid_if


def _is_text(value: object) -> bool:
    # YAML reads a folder named 2025 as a number, and a flag is not a name.
    return isinstance(value, str | int | float) and not isinstance(value, bool) and bool(str(value).strip())


_NOT_ROOT = valid_if(lambda path: not is_root(str(path)), "must not be the root of the file system")


def _folder_problem(value: object) -> str | None:
    if not _is_text(value):
        return "must be the path of a folder"
    return _NOT_ROOT(value)


def subfolder_problem(value: object) -> str | None:
    """Returns why a value is not the name of a folder inside the run's folder, nor null; None: it is one."""
    path = PurePath(str(value))
    is_inside = _is_text(value) and not path.is_absolute() and ".." not in path.parts
    if value is None or is_inside:
        return None
    return "must be a folder's name inside the run's folder, or null"


def _are_loggers(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return isinstance(value, bool) or all(map(_is_text, names))


def _is_flag(value: object) -> bool:
    # Hydra resolves an interpolation only after this check.
    is_interpolation = isinstance(value, str) and "${" in value
    return isinstance(value, bool) or is_interpolation


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
    scheme, _, path = value.partition("://")
    return scheme == "pkg" or (scheme == "file" and Path(path).is_dir())


HYDRA_KEYS: Mapping[str, Constraint] = {
    "hydra.run.dir": Constraint(whole=_folder_problem, example="outputs/mine"),
    "hydra.sweep.dir": Constraint(whole=_folder_problem, example="outputs/mine"),
    "hydra.sweep.subdir": Constraint(whole=_folder_problem, example="'${hydra.job.num}'"),
    "hydra.output_subdir": Constraint(whole=subfolder_problem, example=".hydra"),
    "hydra.mode": Constraint(
        whole=valid_if(("RUN", "MULTIRUN").__contains__, "must be RUN or MULTIRUN"), example="MULTIRUN"
    ),
    "hydra.verbose": Constraint(
        whole=valid_if(_are_loggers, "must be true, false, or names of loggers"), example=True
    ),
    "hydra.job.name": Constraint(whole=valid_if(_is_text, "must be a name"), example="mine"),
    "hydra.job.chdir": Constraint(whole=valid_if(_is_flag, "must be true or false"), example=False),
    "hydra.searchpath": Constraint(whole=_searchpath_problem),
}


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
    storage: str = checked(
        "",
        test=valid_if(lambda uri: "://" in uri, "must be the URI of a database"),
        rule="URI",
        example="sqlite:///search.db",
    )
    seed: int = integer(1337, at_least=0)
    startup_trials: int = integer(5, at_least=0)

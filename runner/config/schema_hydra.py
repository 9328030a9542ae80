"""Keys of our launchers and sweepers, in Hydra's own config."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runner.config.fields import checked, integer, valid_if


@dataclass(frozen=True)
class ProcessLauncher:
    """Keys of `hydra/launcher=processes`.

    Attributes:
      max_parallel: maximum number of concurrent jobs; above 1, each has GPUs of its own.
    """

    max_parallel: int = integer(1, at_least=1)


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

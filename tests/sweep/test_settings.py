"""What launches and sweeps is checked before anything is opened for a sweep."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from runner.cli.sweep.settings import check
from runner.errors import ConfigError

PROCESSES = {"_target_": "hydra_plugins.runner_sweep.ProcessLauncher", "max_parallel": 1, "timeout": None}
GRID: dict[str, Any] = {"_target_": "hydra_plugins.runner_sweep.GridSweeper", "params": {}}
SEARCH = {
    "_target_": "hydra_plugins.runner_sweep.SearchSweeper",
    "params": {},
    "n_trials": 3,
    "storage": "sqlite:///x.db",
    "study": None,
    "seed": 1,
    "startup_trials": 5,
    "warmup_values": 1,
    "prune": True,
    "from_default": True,
}
VARIED = ["trainer.seed=1,2"]


def looked_at(launcher: Any, sweeper: Any, arguments: list[str]) -> None:
    check(OmegaConf.create({"hydra": {"launcher": launcher, "sweeper": sweeper}}), arguments)


def test_what_works_is_let_through() -> None:
    looked_at(PROCESSES, GRID, VARIED)
    looked_at(PROCESSES | {"timeout": 0.5}, SEARCH, ["optimizer.learning_rate=interval(0.1,1.0)"])
    looked_at({"_target_": "someone.elses.Launcher", "n_jobs": 2}, GRID, VARIED)


@pytest.mark.parametrize(
    ("launcher", "sweeper", "arguments", "shown"),
    [
        (PROCESSES | {"max_parallel": 0}, GRID, VARIED, "hydra.launcher.max_parallel=0: must be at least 1"),
        (
            PROCESSES,
            GRID | {"n_trials": 3},
            VARIED,
            "hydra.sweeper.n_trials=3: unknown key (hydra/sweeper=grid has params",
        ),
        (
            PROCESSES,
            SEARCH | {"n_trials": 0},
            VARIED,
            "hydra.sweeper.n_trials=0: must be at least 1",
        ),
        (PROCESSES, SEARCH | {"prune": "often"}, VARIED, "hydra.sweeper.prune=often: must be true or false"),
        (PROCESSES, SEARCH | {"storage": "x.db"}, VARIED, "hydra.sweeper.storage=x.db: must be the URI of a database"),
        (PROCESSES, SEARCH, ["a=interval(2.0,1.0)"], "a=interval(2.0,1.0):"),
        ({"_target_": "someone.elses.Launcher"}, SEARCH, VARIED, "hydra/sweeper=optuna: needs one process per trial"),
        (None, GRID, VARIED, "hydra.launcher=null:"),
    ],
)
def test_what_can_not_work_is_refused(launcher: Any, sweeper: Any, arguments: list[str], shown: str) -> None:
    with pytest.raises(ConfigError) as found:
        looked_at(launcher, sweeper, arguments)
    assert str(found.value).startswith(shown)

"""Hydra's callback: makes the sweep's run before any job, and tells a job on another machine of it."""

from __future__ import annotations

from importlib import import_module

from hydra.experimental.callback import Callback
from hydra.types import TaskFunction
from omegaconf import DictConfig

from runner.cli.refusals import one_line
from runner.config.hydra_node import say_replaced
from runner.host.secrets import hide_config
from runner.sweep import state


class SweepCallback(Callback):
    """Takes secrets out of the config of a multirun, and starts its sweep.

    Launchers send it along to where they run a job, with what it knows by then.

    The sweep's end is not here: Hydra leaves out `on_multirun_end` when a job failed.
    """

    def __init__(self) -> None:
        self._shared: state.Shared | None = None

    def on_multirun_start(self, config: DictConfig, **kwargs: object) -> None:
        """Makes the parent run."""
        del kwargs
        hide_config(config)
        say_replaced(config)
        state.begin(
            config, one_line, lambda: import_module("runner.sweep.report")
        )  # matplotlib with it, while jobs run

    def __getstate__(self) -> dict[str, object]:
        """Takes along what the sweep knows by the time that a launcher sends its jobs away."""
        sweep = state.started()
        return {"_shared": sweep.shared() if sweep is not None else self._shared}

    def on_job_start(self, config: DictConfig, *, task_function: TaskFunction, **kwargs: object) -> None:
        """Tells the process of a foreign launcher's job which sweep it is of."""
        del config, task_function, kwargs
        if self._shared is not None and state.started() is None:
            state.adopt(self._shared)

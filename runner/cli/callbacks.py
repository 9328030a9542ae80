"""Hydra's callbacks, which conf/config.yaml names: before a run and before a multirun."""

from __future__ import annotations

from importlib import import_module

from hydra.experimental.callback import Callback
from hydra.types import TaskFunction
from omegaconf import DictConfig

from runner.cli.messages import one_line
from runner.cli.sweep import state
from runner.cluster import place
from runner.config.hydra_node import say_replaced
from runner.errors import ConfigError, Refused
from runner.host import session
from runner.host.secrets import hide_config
from runner.host.terminal import spare_output


class RunCallback(Callback):
    """Prepares a run that is not a multirun, before Hydra writes anything."""

    def on_run_start(self, config: DictConfig, **kwargs: object) -> None:
        """Takes secrets out of the config, checks it and claims the run's folder.

        Raises:
          Refused: the config or the folder is invalid; nothing has been written.
          SystemExit: this process has started those that run the command, and they have ended.
        """
        del kwargs
        spare_output()
        command = session.current()
        try:
            hide_config(config)
            starts_on_its_own = command.membership is None and place.from_launcher() is None
            if starts_on_its_own:  # a job's sweep, or the process that launched this one, has said it
                say_replaced(config)
            if command.prepare_run is None:
                raise ConfigError("hydra.callbacks.run: needs a command of the runner around it; drop it")
            command.prepare_run(config)
        except Exception as error:
            raise Refused(error) from error


class SweepCallback(Callback):
    """Starts the sweep of a multirun: takes secrets out of its config, and makes its own run in MLflow.

    Launchers send the callback to where they run a job, with what it knows by then.

    The sweep's end is not here: Hydra leaves out `on_multirun_end` when a job failed.
    """

    def __init__(self) -> None:
        self._shared: state.Shared | None = None

    def on_multirun_start(self, config: DictConfig, **kwargs: object) -> None:
        """Makes the parent run.

        Raises:
          Refused: the sweep can't start.
        """
        del kwargs
        spare_output()
        hide_config(config)
        say_replaced(config)
        # The report imports matplotlib, which takes half a second that the first job has to itself otherwise.
        state.begin(config, describe_error=one_line, meanwhile=lambda: import_module("runner.cli.sweep.report"))

    def __getstate__(self) -> dict[str, object]:
        """Returns what the sweep knows by the time that a launcher sends its jobs away."""
        sweep = state.started()
        if sweep is None:
            return {"_shared": self._shared}
        return {"_shared": sweep.shared()}

    def on_job_start(self, config: DictConfig, *, task_function: TaskFunction, **kwargs: object) -> None:
        """Stores which sweep a job belongs to, in a process that a foreign launcher started."""
        del config, task_function, kwargs
        if self._shared is not None and state.started() is None:
            state.adopt(self._shared)

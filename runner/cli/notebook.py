"""The runner from Python, as in a notebook: `runner.compose`, `make_plan`, `train` and `open_run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from runner.checkpoint import arguments as checkpoint_arguments
from runner.cli import command_line
from runner.cli.messages import one_line
from runner.cli.resolvers import register_resolvers
from runner.cluster.launch import LAUNCHER_VARIABLE
from runner.config import masking
from runner.config.compose import compose as compose_config
from runner.config.quoting import quoted
from runner.config.schema import RunConfig
from runner.errors import EXIT_REFUSED, ConfigError, DataError, EngineError, TrackingError, invalid
from runner.host import session
from runner.host.late import late
from runner.host.paths import outputs_dir, random_part
from runner.plan.checks.run import convert
from runner.tracking import run_file

if TYPE_CHECKING:
    import pandas as pd

    from runner.cli.runs import act, records
    from runner.tracking.store import Store
else:
    # They import MLflow, which an error of the config should not wait for.
    pd = late("pandas")
    act = late("runner.cli.runs.act")
    records = late("runner.cli.runs.records")

_RUN_DIR = "hydra.run.dir"
_ERROR = "error: "
_WARNING = "warning: "


def compose(*overrides: str) -> RunConfig:
    """Composes and checks the config of a command line, without running anything.

    Args:
      *overrides: as on the command line, `mesh=batch8`, `trainer.epochs=2`, `resume=latest`.

    Raises:
      ConfigError: the config is invalid; the message is the line that the command prints.

    Example:
      >>> compose("mesh=batch8", "dataset=digits").mesh.axes
      {'batch': 8}
    """
    _check(overrides)
    typed: Sequence[str] = overrides
    with session.opened(session.current().program, typed):
        try:
            typed = command_line.arranged(checkpoint_arguments.expand(masking.hide_arguments(typed)))
            register_resolvers()
            return convert(compose_config(typed))
        except (ConfigError, DataError, EngineError, TrackingError):
            raise
        except Exception as error:  # those of Hydra and OmegaConf share no base class
            raise ConfigError(one_line(error, typed)) from None


def _check(overrides: Sequence[str]) -> None:
    for override in overrides:
        if override.startswith("-"):
            fix = f"write key=value, or type python -m runner {override}"
            raise ConfigError(f"{override}: must be an override of one run, not a flag; {fix}")


@dataclass(frozen=True)
class ShownPlan:
    """A plan that shows its tables.

    Attributes:
      content: of plan.json, such as `plan.content["totals"]["parameters"]["bytes_per_device"]`.
      text: of plan.md.
    """

    content: Mapping[str, Any]
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return self.text


def make_plan(*overrides: str) -> ShownPlan:
    """Plans a run without training, in a process of its own.

    Raises:
      ConfigError: the config is invalid; the message is the line that the command prints.
      EngineError: the plan can't be made.
    """
    compose(*overrides)
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan"
        run_command("runner.plan", [*overrides, f"{_RUN_DIR}={quoted(plan.as_posix())}"], quiet=True)
        return ShownPlan(json.loads((plan / "plan.json").read_text()), (plan / "plan.md").read_text())


def train(*overrides: str) -> OpenedRun:
    """Trains in a process of its own, and shows its output.

    So this process can train with another engine or mesh afterwards. If it is interrupted, the run is saved as on a
    terminal, and `train("resume=latest")` continues it.

    Raises:
      ConfigError: the config is invalid; the message is the line that the command prints. Nothing was started.
      EngineError: the run failed.
      KeyboardInterrupt: it was interrupted; the run is recorded as KILLED.
    """
    config = compose(*overrides)
    # Chosen here, so that the run is found in it.
    folder = outputs_dir() / "runs" / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{random_part()}"
    typed_folder = checkpoint_arguments.value_of(overrides, _RUN_DIR)
    if typed_folder:
        folder = Path(typed_folder).absolute()
    run_command("runner", [*overrides, f"{_RUN_DIR}={quoted(folder.as_posix())}"])
    if config.tracking.name == "none":
        return _of_folder(folder)
    files = sorted(folder.glob(run_file.PATTERN), key=lambda file: file.stat().st_mtime)
    if not files:
        raise EngineError(f"the run left no record in {folder}")
    return open_run(run_file.run_id_of(files[-1]), config.tracking.uri)


def run_command(module: str, arguments: Sequence[str], *, quiet: bool = False) -> None:
    """Runs a command to its end; its output, if quiet its warnings, appears where this process's does, as in a cell.

    Raises:
      ConfigError: its config is invalid.
      EngineError: it failed, or a signal ended it.
      KeyboardInterrupt: this process was interrupted; the command has ended before that.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONUNBUFFERED": "1", LAUNCHER_VARIABLE: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    line = f"python -m {module} failed"
    try:
        for output in process.stdout:
            if output.startswith(_ERROR):
                line = output.removeprefix(_ERROR).strip()
            elif not quiet or output.startswith(_WARNING):
                print(output, end="", flush=True)
    except KeyboardInterrupt:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)  # a second one within a second counts as the same
        process.communicate()  # it saves the run first
        raise
    code = process.wait()
    if code == EXIT_REFUSED:
        raise ConfigError(line)
    if code:
        raise EngineError(line)


@dataclass(frozen=True)
class OpenedRun:
    """A recorded run.

    Attributes:
      run_id: its id; of an untracked run, the name of its folder.
      status: MLflow's, as `FINISHED`.
      config: the resolved config.
      results: the last value of each metric.
    """

    run_id: str
    name: str
    status: str
    config: DictConfig
    results: Mapping[str, float]
    _store: Store | None = None

    def __repr__(self) -> str:
        results = [f"{name} {value:.6g}" for name, value in self.results.items() if name.startswith("eval/")]
        return f"run {self.run_id} ({self.name}) {self.status}  {'  '.join(results)}".rstrip()

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Every recorded point: one row per step, one column per metric, NaN where a metric has no point.

        Of an untracked run, only the results are known.
        """
        if self._store is None:
            return pd.DataFrame({name: [value] for name, value in self.results.items()})
        columns = {name: dict(records.history(self._store, self.run_id, name)) for name in self.results}
        # A figure of the run as a whole has no points.
        columns = {name: points for name, points in columns.items() if points}
        frame = pd.DataFrame(columns).sort_index()
        frame.index.name = "step"
        return frame


def open_run(run: str = "latest", uri: str | None = None) -> OpenedRun:
    """Opens a recorded run: by an id or its beginning, a name, or `latest`.

    `uri` is that of the tracking store; by default $MLFLOW_TRACKING_URI, else outputs/mlflow.db.

    Raises:
      ConfigError: there is no such run.
      TrackingError: the store can't be used.
    """
    store = act.open_existing(uri)
    if store is None:
        raise invalid("run", run, problem="this project has no recorded runs", fix="start one: runner.train(...)")
    record = records.pick(run, records.tracked(store))
    config = DictConfig({})
    with tempfile.TemporaryDirectory() as folder:
        # A run that another program recorded, or that failed early, has none.
        if "config.yaml" in {artifact.path for artifact in store.client.list_artifacts(record.run_id)}:
            loaded = OmegaConf.load(store.client.download_artifacts(record.run_id, "config.yaml", folder))
            assert isinstance(loaded, DictConfig)
            config = loaded
    return OpenedRun(record.run_id, record.name, record.status, config, record.metrics, store)


def _of_folder(folder: Path) -> OpenedRun:
    """Returns the run of a folder, which nothing tracked."""
    status = "FINISHED" if (folder / "summary.json").is_file() else "UNFINISHED"
    config = OmegaConf.load(folder / "config.yaml")
    assert isinstance(config, DictConfig)
    return OpenedRun(folder.name, folder.name, status, config, records.results_of(folder))

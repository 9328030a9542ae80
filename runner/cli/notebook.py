"""The runner from Python, as in a notebook: each command is a function, which runs it in a process of its own."""

from __future__ import annotations

import html
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from runner.checkpoint import arguments as checkpoint_arguments
from runner.cli import command_line, tables
from runner.cli.messages import one_line
from runner.cli.resolvers import register_resolvers
from runner.config import masking, short_keys
from runner.config.compose import compose as compose_config
from runner.config.quoting import quoted
from runner.config.schema import MeshConfig, RunConfig
from runner.errors import ConfigError, EngineError, TrackingError, invalid
from runner.host import session
from runner.host.late import late
from runner.host.paths import outputs_dir, random_part
from runner.plan.checks.run import convert
from runner.plan.result import Picture, Result, picture_of, run_command, typed_overrides
from runner.task.metrics import EVAL, TEST, TRAIN
from runner.tracking import run_file
from runner.tracking.location import MLFLOW

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
_SWEEP_DIR = "hydra.sweep.dir"

# Overrides of a call: as on the command line, or keys to values.
Overrides = str | Mapping[str, object]


def compose(*overrides: Overrides, **keywords: object) -> RunConfig:
    """Composes and checks the config of a command line, without running anything.

    Args:
      *overrides: as on the command line, `"mesh=batch8"`, or dicts, `{"trainer.epochs": 2}`.
      **keywords: keys with two underscores for each dot, `trainer__epochs=2`.

    Raises:
      ConfigError: the config is invalid; the message is the line that the command prints.

    Example:
      >>> compose("mesh=batch8", dataset="digits").mesh.axes
      {'batch': 8}
    """
    typed: Sequence[str] = _typed(overrides, keywords)
    with session.opened(session.current().program, typed):
        try:
            typed = command_line.arranged(checkpoint_arguments.expand(masking.hide_arguments(typed)))
            register_resolvers()
            return convert(compose_config(typed))
        except (ConfigError, EngineError, TrackingError):
            raise
        except Exception as error:  # those of Hydra and OmegaConf share no base class
            raise ConfigError(one_line(error, typed)) from None


def _typed(overrides: Sequence[Overrides], keywords: Mapping[str, object], *, sweeps: bool = False) -> list[str]:
    typed = typed_overrides(overrides, keywords, sweeps=sweeps)
    for override in typed:
        if override.startswith("-"):
            fix = f"write key=value, or type python -m runner {override}"
            raise ConfigError(f"{override}: must be an override of one run, not a flag; {fix}")
    return typed


def plan(*overrides: Overrides, **keywords: object) -> Result:
    """Plans a run without training; raises what `evaluate` does."""
    return _result("plan", overrides, keywords)


def advise(*overrides: Overrides, **keywords: object) -> Result:
    """Ranks meshes and layouts, `advise(devices=64, hardware="h100")`; raises what `evaluate` does."""
    return _result("advise", overrides, keywords)


def verify(*overrides: Overrides, **keywords: object) -> Result:
    """Compares a mesh with one device, or computes a recorded step again, `verify(run="latest", step=3)`.

    Raises what `evaluate` does; EngineError is also a mismatch, or an inconclusive verdict that is not allowed.
    """
    return _result("verify", overrides, keywords)


def evaluate(*overrides: Overrides, **keywords: object) -> Result:
    """Evaluates a run's checkpoint in a process of its own, `evaluate(run="latest", evaluate__split="test")`.

    Raises:
      ConfigError: the config is invalid; the message is the line that the command prints.
      EngineError: the command failed; what it printed appears first.
      KeyboardInterrupt: this process was interrupted; the command has ended before that.
    """
    return _result("evaluate", overrides, keywords)


def export(*overrides: Overrides, **keywords: object) -> Result:
    """Exports a run's model, `export(run="latest")`, into `content["folder"]`; raises what `evaluate` does."""
    return _result("export", overrides, keywords)


def sweep(*overrides: Overrides, **keywords: object) -> Result:
    """Trains with each combination of the values in lists, `sweep(optimizer__learning_rate=[0.1, 0.01])`.

    Shows the command's output. A job that fails ends neither the sweep nor this function: see the column `status`.

    Raises:
      ConfigError, EngineError, KeyboardInterrupt: as `train`, of the sweep as a whole.
    """
    typed = _typed(overrides, keywords, sweeps=True)
    folder = _folder("sweeps", typed, _SWEEP_DIR)
    try:
        run_command("runner", ["-m", *typed, f"{_SWEEP_DIR}={quoted(folder.as_posix())}"])
    except EngineError:
        if not (folder / tables.FILE).is_file():
            raise
    return _table(folder)


def compare(*runs: str | OpenedRun, sweep: str | None = None, uri: str | None = None) -> Result:
    """Compares runs: ids, names, `latest` or objects; or a sweep's jobs; or the newest 30. `uri` is as of `open_run`.

    Raises:
      ConfigError: there is no such run or sweep.
      EngineError: no run matches, or the store can't be used.
    """
    folder = _folder("compare")
    words = ["compare", f"out={folder}"]
    for run in runs:
        if isinstance(run, OpenedRun):
            run = run.run_id
        words.append(f"run={run}")
    for key, value in (("sweep", sweep), ("uri", uri)):
        if value is not None:
            words.append(f"{key}={value}")
    run_command("runner.runs", words, quiet=True)
    return _table(folder)


def _table(folder: Path) -> Result:
    table = pd.read_csv(folder / tables.FILE, thousands=",")
    return Result(folder, table, table.to_string(index=False))


def train(*overrides: Overrides, **keywords: object) -> OpenedRun:
    """Trains in a process of its own, and shows its output.

    So this process can train with another engine or mesh afterwards. If it is interrupted, the run is saved as on a
    terminal, and `train(resume="latest")` continues it.

    Raises:
      ConfigError: the config is invalid; the message is the line that the command prints. Nothing was started.
      EngineError: the run failed.
      KeyboardInterrupt: it was interrupted; the run is recorded as KILLED.
    """
    return trained(_typed(overrides, keywords), lambda _, arguments: run_command("runner", arguments))


def trained(typed: Sequence[str], start: Callable[[MeshConfig, list[str]], object]) -> OpenedRun:
    """Returns the run of a training, which `start` runs, given its mesh and its command line."""
    config = compose(*typed)
    folder = _folder("runs", typed, _RUN_DIR)
    start(config.mesh, [*typed, f"{_RUN_DIR}={quoted(folder.as_posix())}"])
    if MLFLOW in config.tracking.writers:
        newest = max(folder.glob(run_file.PATTERN), key=lambda file: file.stat().st_mtime)
        return open_run(run_file.run_id_of(newest), config.tracking.uri)
    status = "FINISHED" if (folder / "summary.json").is_file() else "UNFINISHED"
    recorded = OmegaConf.load(folder / "config.yaml")
    assert isinstance(recorded, DictConfig)
    return OpenedRun(folder.name, folder.name, status, recorded, records.results_of(folder), None, folder)


def _result(command: str, overrides: Sequence[Overrides], keywords: Mapping[str, object]) -> Result:
    typed = [short_keys.typed_argument(text, f"runner.{command}") for text in _typed(overrides, keywords)]
    compose(*typed)
    folder = _folder("runs", typed, _RUN_DIR)
    text = run_command(f"runner.{command}", [*typed, f"{_RUN_DIR}={quoted(folder.as_posix())}"], quiet=True)
    content = {}
    for name in (f"{command}.json", "step.json"):
        if (folder / name).is_file():
            content = json.loads((folder / name).read_text())
    return Result(folder, content, text)


def _folder(kind: str, typed: Sequence[str] = (), key: str = "") -> Path:
    """Returns the folder of a command, chosen here so that it is found, unless it is typed."""
    chosen = outputs_dir() / kind / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{random_part()}"
    return Path(checkpoint_arguments.value_of(typed, key) or chosen).absolute()


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
    _folder: Path = Path()

    def __repr__(self) -> str:
        results = [f"{name} {value:.6g}" for name, value in self.results.items() if name.startswith("eval/")]
        return f"run {self.run_id} ({self.name}) {self.status}  {'  '.join(results)}".rstrip()

    def _repr_html_(self) -> str:
        table: dict[str, dict[str, float]] = {}
        for name, value in self.results.items():
            split, slash, metric = name.partition("/")
            if f"{split}{slash}" in (TRAIN, EVAL, TEST):
                table.setdefault(split, {})[metric] = value
        title = html.escape(f"run {self.run_id} ({self.name}) {self.status}")
        return f"<div>{title}</div>{pd.DataFrame(table).to_html(na_rep='')}"

    def plot(self, name: str = "") -> Picture:
        """Returns a picture that the run made, as `Result.plot` does; without a name its curves."""
        if self._store is None:
            return Result(self._folder, (), "").plot(name)
        client = self._store.client
        names = [file.path for file in client.list_artifacts(self.run_id) if file.path.endswith(".png")]
        with tempfile.TemporaryDirectory() as folder:
            picture = client.download_artifacts(self.run_id, picture_of(names, name), folder)
            return Picture(Path(picture).read_bytes())

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Every recorded point: one row per step, one column per metric, NaN where a metric has no point.

        Of an untracked run, only the results are known.
        """
        if self._store is None:
            return pd.DataFrame({name: [value] for name, value in self.results.items()})
        columns = {}
        for name in self.results:
            points = records.history(self._store, self.run_id, name)
            # A figure of the run as a whole has no points.
            if points:
                columns[name] = dict(points)
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

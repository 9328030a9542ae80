"""`runner.open_run(...)` and `runner.train(...)`: a recorded run as an object."""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from runner.checkpoint.arguments import value_of
from runner.cli.notebook import child
from runner.cli.notebook.composing import (
    arranged,
    compose,
)
from runner.engine.registry import keras_package
from runner.errors import ConfigError, EngineError, invalid
from runner.host import folders
from runner.host.late import late
from runner.host.paths import outputs_dir, random_part
from runner.host.quoting import quoted

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.entities import Run

    from runner.cli.runs import (
        act,
        records,
    )
    from runner.tracking.store import Store
else:
    pd = late("pandas")
    act = late("runner.cli.runs.act")
    records = late("runner.cli.runs.records")

_RUN_DIR = "hydra.run.dir"


@dataclass(frozen=True)
class OpenedRun:
    """A recorded run.

    Attributes:
      run_id: its id; of an untracked run, the name of its folder.
      name: its name.
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
    _run: Run | None = None

    def __repr__(self) -> str:
        parts: list[str] = []
        for name, value in self.results.items():
            if name.startswith("eval/"):
                parts.append(f"{name} {value:.6g}")
        metrics = "  ".join(parts)
        return f"run {self.run_id} ({self.name}) {self.status}  {metrics}".rstrip()

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Every recorded point: one row per step, one column per metric, NaN where a metric has no point."""
        if self._store is None:
            return pd.DataFrame({name: [value] for name, value in self.results.items()})
        client = self._store.client
        columns: dict[str, dict[int, float]] = {}
        for name in self.results:
            columns[name] = dict(records.history(client, self.run_id, name))
        frame = pd.DataFrame(columns).sort_index()
        frame.index.name = "step"
        return frame

    @cached_property
    def model(self) -> object:
        """The run's Keras model on one device: its export if there is one, else the logged model.

        Raises:
          ConfigError: the run has neither.
        """
        exported = outputs_dir() / "exports" / self.run_id / "model.keras"
        library = keras_package(OmegaConf.select(self.config, "engine.name"))
        if exported.is_file():
            return _load(exported, library)
        with tempfile.TemporaryDirectory() as folder:
            path = self._logged_model(Path(folder))
            if path is None:
                fix = f"export it from its checkpoint: python -m runner.export run={self.run_id}"
                raise invalid("run", self.run_id, problem="has neither an export nor a logged Keras model", fix=fix)
            return _load(path, library)

    def _logged_model(self, folder: Path) -> Path | None:
        """Downloads the files of the model that the run logged last; None where there is none that Keras saved."""
        outputs = None if self._run is None else self._run.outputs
        if self._store is None or outputs is None:
            return None
        artifacts = importlib.import_module("mlflow.artifacts")
        for output in reversed(outputs.model_outputs):
            location = self._store.client.get_logged_model(output.model_id).artifact_location
            destination = str(folder / output.model_id)
            with self._store.pointed_at():
                downloaded = Path(artifacts.download_artifacts(artifact_uri=location, dst_path=destination))
            path = downloaded / "artifacts" / "model.keras"
            if path.is_file():
                return path
        return None


def _load(path: Path, library: str) -> object:
    if library == "keras":
        # TensorFlow would be Keras's own default; the models of engine=jax are saved by Keras on JAX.
        os.environ.setdefault("KERAS_BACKEND", "jax")  # read as Keras is imported
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    models = importlib.import_module(library).models
    loaded: object = models.load_model(path, compile=False)
    return loaded


def open_run(run: str = "latest", uri: str | None = None) -> OpenedRun:
    """Opens a recorded run.

    Args:
      run: an id or its beginning, a name, or `latest`.
      uri: of the tracking store; None: $MLFLOW_TRACKING_URI, else outputs/mlflow.db.

    Raises:
      ConfigError: there is no such run.
      TrackingError: the store can't be used.
    """
    store = act.Place(uri).store()
    if store is None:
        raise invalid("run", run, problem="this project has no recorded runs", fix="start one: runner.train(...)")
    return _tracked(store, records.find_run(store.client, run))


def _tracked(store: Store, run: Run) -> OpenedRun:
    record = records.from_run(run)
    with tempfile.TemporaryDirectory() as folder:
        client = store.client
        artifacts = {artifact.path for artifact in client.list_artifacts(record.run_id)}
        text = "{}"
        if "config.yaml" in artifacts:
            text = Path(client.download_artifacts(record.run_id, "config.yaml", folder)).read_text()
    return OpenedRun(record.run_id, record.name, record.status, _config(text), record.metrics, store, run)


def _config(text: str) -> DictConfig:
    config = OmegaConf.create(text)
    assert isinstance(config, DictConfig)
    return config


def _of_folder(folder: Path) -> OpenedRun:
    """Returns the run of a folder, which nothing tracked."""
    status = "FINISHED" if (folder / "summary.json").is_file() else "UNFINISHED"
    record = records.from_folder(folder, folder.name, status)
    if record is None:
        raise ConfigError(f"{folder}: has no run; name another run")
    config = _config((folder / "config.yaml").read_text())
    return OpenedRun(folder.name, record.name, record.status, config, record.metrics)


def train(*overrides: str, config_dir: str | Path | None = None) -> OpenedRun:
    """Trains in a process of its own, and shows its output.

    So this process can train with another engine or mesh afterwards. If it is interrupted, the run is saved as on a
    terminal, and `train("resume=latest")` continues it.

    Args:
      *overrides: as on the command line.
      config_dir: folder of more options, as `--config-dir`.

    Returns:
      The run.

    Raises:
      ConfigError: the config is invalid; the message is the line that the command prints. Nothing was started.
      EngineError: the run failed.
      KeyboardInterrupt: it was interrupted; the run is recorded as KILLED.
    """
    config = compose(*overrides, config_dir=config_dir)
    arguments = arranged(overrides, config_dir)
    typed_folder = value_of(arguments, _RUN_DIR)
    if typed_folder:
        folder = Path(typed_folder).absolute()
    else:  # chosen here, so that the run is found in it
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        folder = outputs_dir() / "runs" / f"{stamp}-{random_part()}"
        arguments.append(f"{_RUN_DIR}={quoted(folder.as_posix())}")
    child.run("runner", arguments)
    run_id = folders.noted_run(folder)
    if run_id is None:
        raise EngineError(f"the run left no record in {folder}")
    if config.tracking.name == "none":
        return _of_folder(folder)
    return open_run(run_id, config.tracking.uri)

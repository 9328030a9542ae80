"""Interface of what records a run; it records nothing itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runner.tracking.mlflow_setup import warn
from runner.tracking.records import Artifact, Point, Record, Tag, clean_key

if TYPE_CHECKING:
    from runner.tracking.store import Store

# MLflow's names of how a run ends.
Status = Literal["FINISHED", "FAILED", "KILLED"]
# The tag of a run that says why it ended.
ENDED = "runner.ended"
# The tag with the folder of a run's latest process.
FOLDER = "mlflow.runner.folder"


@dataclass(frozen=True)
class RunSpec:
    """The record of a new or resumed run.

    Attributes:
      params: flat, dotted key to value, such as `dataset.batch_size: 128`: those that the run's page lists.
      tags: without those that every run gets.
      config: the whole config, flat; what a resumed run has recorded is compared with it.
      description: of a new run, in Markdown; it is written once, so what a person writes into it stays.
      identity: of the run, the same when it continues; empty: its folder's name.
      repeats: it logs its history again, in place of what an earlier process has logged.
      metrics: of its evaluations with their better directions, `loss` first: the experiment's charts show them.
    """

    name: str
    params: Mapping[str, object] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    parent_run_id: str | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    description: str = ""
    identity: str = ""
    repeats: bool = False
    experiment: str = ""
    metrics: Mapping[str, str] = field(default_factory=dict)


class Tracker:
    """Records one run; this one records nothing (`tracking=none`).

    Only `finish` and `flush` wait for a server, and no method but `logged` raises if a server fails.

    Attributes:
      run_id: the run's id; None if nothing is recorded.
      run_name: the name that this process has given to the run; empty: none.
      lost: why `finish` returned False, and what to do; empty: the run's file could not be written.
    """

    run_id: str | None = None
    run_name: str = ""
    lost: str = ""

    def watch_machine(self) -> None:
        """Records the use of processors, memory, disks, network and GPUs until `finish`, by MLflow's own monitor."""

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Queues a point of each metric, with the time of the call and the number of training steps done.

        An infinite value is stored as NaN, because the store replaces it by the largest float, which ruins a chart.
        """
        now = int(time.time() * 1000)
        points: list[Record] = []
        for name, value in values.items():
            stored = math.nan if math.isinf(value) else float(value)
            points.append(Point(clean_key(name), stored, now, int(step)))
        self._add(points)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Queues tags of the run."""
        self._add([Tag(key, str(value)) for key, value in tags.items()])

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Queues a file for upload into a folder; it must not change until `finish` or `flush` returns."""
        if path.is_file():
            self._add([Artifact(str(path.absolute()), folder or "")])
        else:
            warn(f"could not record {path}: there is no such file")

    def _add(self, records: Sequence[Record]) -> None:
        """Queues records of one kind."""

    def log_model(self, save: Callable[[Store, str], str]) -> str | None:  # noqa: ARG002 - subclasses store
        """Stores a model at once by `save(store, run id)`, and returns its URI; a failure prints a line to stderr."""
        return None

    def logged(self) -> dict[str, dict[int, float]]:
        """Returns the stored points: metric name to step to value; raises TrackingError if they can't be read."""
        return {}

    def finish(self, status: Status, *, in_haste: bool = False) -> bool:  # noqa: ARG002 - subclasses store
        """Stores the remaining records and the run's status; a second call does nothing.

        It waits as long as the store accepts records, or only seconds if this process is about to be ended from
        outside (`in_haste`). The rest stays in the run's file, see `runner.runs sync`.

        Returns:
          False if something is lost: neither the store nor the run's file accepted it, or the run itself has been
          deleted from the store.
        """
        return True

    def describe(self) -> list[str]:
        """Returns lines with links to the run, and with what could not be stored."""
        return []

"""Interface of what records a run; it records nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

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
      name: run name.
      params: flat, dotted key to value, such as `dataset.batch_size: 128`: those that the run's page lists.
      tags: the run's tags, without those that every run gets.
      parent_run_id: the run that it is nested in.
      config: the whole config, flat; what a resumed run has recorded is compared with it.
      description: of a new run, in Markdown; it is written once, so what a person writes into it stays.
      metrics: of its evaluations with their better directions, `loss` first: the experiment's charts show them.
    """

    name: str
    params: Mapping[str, object] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    parent_run_id: str | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    description: str = ""
    metrics: Mapping[str, str] = field(default_factory=dict)


class Tracker:
    """Records one run; this one records nothing (`tracking=none`).

    Only `finish` and `flush` wait for a server, and no method but `logged` raises if a server fails.

    Attributes:
      run_id: the run's id; None if nothing is recorded.
      lost: why `finish` returned False, and what to do; empty: the run's file could not be written.
    """

    run_id: str | None = None
    lost: str = ""

    def watch_machine(self) -> None:
        """Records the use of processors, memory, disks, network and GPUs until `finish`, by MLflow's own monitor."""

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Queues a point of each metric, with the time of the call and the number of training steps done.

        An infinite value is stored as NaN, because the store replaces it by the largest float, which ruins a chart.
        """

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Queues tags of the run."""

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Queues a file for upload into a folder; it must not change until `finish` or `flush` returns."""

    def log_model(self, save: Callable[[Store, str], str]) -> str | None:  # noqa: ARG002 - subclasses store
        """Stores a model at once by `save(store, run id)`, and returns its URI; a failure prints a line to stderr."""
        return None

    def logged(self) -> dict[str, dict[int, float]]:
        """Returns the stored points: metric name to step to value; raises TrackingError if they can't be read."""
        return {}

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002 - subclasses wait
        """Waits until everything queued is stored; False: the time was not enough, and the rest stays queued."""
        return True

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


class NewPoints:
    """Logs only the points that a run does not have yet.

    A resumed run computes the points after its last checkpoint again, and its history before that is logged once more,
    because some of it may have been on its way when the process died. A run that the user resumed from an earlier step
    has points of steps that it trains again: there, a point counts as logged only if its value is the same. So has a
    run that was lost before its first checkpoint.
    """

    def __init__(self, tracker: Tracker, *, continues: bool = False, repeats_steps: bool = False) -> None:
        """Reads the points that the run has, if it `continues`; `repeats_steps`: it trains steps of them again."""
        self._tracker = tracker
        self._stored = tracker.logged() if continues else {}
        # Up to this step, a logged point may be of a history that the run has left.
        self._last_repeated = 0
        if repeats_steps:
            for points in self._stored.values():
                self._last_repeated = max(self._last_repeated, max(points, default=0))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values that the run has no point of at this step."""
        new = {key: value for key, value in values.items() if not self._is_stored(step, key, value)}
        if new:
            self._tracker.log_metrics(step, new)

    def _is_stored(self, step: int, key: str, value: float) -> bool:
        stored = self._stored.get(key, {})
        return step in stored and (step > self._last_repeated or stored[step] == value)

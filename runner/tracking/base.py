"""What records a run, and what adds to a recorded one; by themselves they record nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from runner.tracking.page import Page

if TYPE_CHECKING:
    import numpy as np

    from runner.tracking.store import Store

Status = Literal["FINISHED", "FAILED", "KILLED"]
Example: TypeAlias = "np.ndarray | Mapping[str, np.ndarray]"  # of a model's inputs: one array, or arrays by name


class Predicts(Protocol):
    """What a tracker uses of a Keras model."""

    def predict(self, x: Example, *, verbose: int) -> np.ndarray:
        """Returns what it predicts for a batch."""


class Tracker:
    """Records one run. Nothing but `finish` waits for a server, and no server trouble raises.

    This one records nothing (`tracking=none`).

    Attributes:
      run_id: the run's id; None where nothing is recorded.
      lost: why `finish` returned False, and what to do; empty: no place could be written.
    """

    run_id: str | None = None
    lost: str = ""

    @cached_property
    def page(self) -> Page:
        """What the run's page says of it; stored by `show_page`, and after its first call at the end too."""
        return Page()

    def show_page(self) -> None:
        """Queues the run's description as it is by now."""

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Queues a point of each metric, stamped with the time of the call.

        A value that is infinite is stored as NaN (the store has no infinity, and the number that it would put there
        ruins a chart); the tag `runner.nonfinite.<metric>` then says which value came first, and when.

        Args:
          step: training steps done so far.
          values: metric name to value.
        """

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Queues tags of the run."""

    def log_dataset(self, name: str, digest: str, source: str, context: str) -> None:
        """Queues a dataset input.

        Args:
          name: dataset and split; an input of the same name and digest is stored once, so name the split.
          digest: of its content, at most 36 characters.
          source: a path, a URL, or any words.
          context: `training` or `evaluation`.
        """

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Queues a file for upload; it must stay as it is until `finish` or `flush` returns.

        Args:
          path: the file.
          folder: folder in the run's artifacts; null: their root.
        """

    def log_keras_model(self, model: Predicts, input_example: Example, name: str = "model") -> None:
        """Stores a model with pinned requirements, at once; a failure is a line on stderr.

        Args:
          model: a built, single-device Keras model (tf_keras or Keras 3).
          input_example: a batch that the model accepts, from which the signature is taken.
          name: the logged model's name.
        """

    def logged(self) -> dict[str, dict[int, float]]:
        """Returns the points that are stored: metric name to step to value.

        Raises:
          TrackingError: the store can't be read.
        """
        return {}

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002 - what others wait
        """Waits until everything queued is stored.

        Returns:
          False where the time was not enough; what is left is kept and written later.
        """
        return True

    def finish(self, status: Status, *, in_haste: bool = False) -> bool:  # noqa: ARG002 - what others store
        """Stores what is left and the run's status; a second call does nothing.

        It waits as long as the store takes records. What can't be stored is kept in a file, from where the next run
        stores it.

        Args:
          status: how the run ended.
          in_haste: this process is about to be ended from outside, so wait a few seconds only.

        Returns:
          False where something is lost: neither the store nor any place for such a file took it, or the run itself is
          not in the store any more.
        """
        return True

    def describe(self) -> list[str]:
        """Returns lines that say where the run can be looked at, and what could not be stored."""
        return []


class Attachment:
    """A recorded run that more is written to, at once; this one records nothing (`tracking=none`, or not tracked)."""

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Stores a point of each metric.

        Raises:
          TrackingError: the store failed.
        """

    def log_artifacts(self, paths: Sequence[Path], folder: str) -> None:
        """Uploads files into a folder of the run's artifacts.

        Raises:
          TrackingError: the store failed.
        """

    def log_model(self, save: Callable[[Store, str], str]) -> str | None:  # noqa: ARG002 - what others call
        """Stores a model.

        Args:
          save: (store, run id) -> the model's URI.

        Returns:
          The URI; None where nothing is recorded.

        Raises:
          TrackingError: the store failed.
        """
        return None

    def describe(self) -> list[str]:
        """Returns lines that say where the run can be looked at."""
        return []

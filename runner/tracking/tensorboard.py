# ruff: noqa: D102 - Writer documents it
"""TensorBoard's event files, by tensorboardX, which needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tensorboardX import SummaryWriter

from runner.tracking.base import RunSpec, Status
from runner.tracking.records import HIDDEN, Point, Record, Tag, as_text

# Characters of a run's identity that tell apart runs of one name.
_SUFFIX = 8


class FileWriter:
    """A run continues in its folder, `outputs/tensorboard/<name>-<end of its identity>`."""

    def __init__(self, spec: RunSpec, root: Path) -> None:
        """Opens a file of a process."""
        folder = root / "outputs" / "tensorboard"
        own = folder / f"{spec.name.replace('/', '_')}-{spec.identity[-_SUFFIX:]}"
        self.line = f"view with: tensorboard --logdir {folder}"
        self._events = SummaryWriter(str(own), purge_step=0 if spec.repeats else None)
        self._events.add_text("params", "\n".join(f"    {key}={as_text(value)}" for key, value in spec.params.items()))

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, Point):
                self._events.add_scalar(record.key, record.value, record.step, walltime=record.timestamp / 1000)
            elif isinstance(record, Tag) and not record.key.startswith(HIDDEN):
                self._events.add_text(record.key, record.value)
        self._events.flush()

    def close(self, status: Status) -> None:
        del status
        self._events.close()

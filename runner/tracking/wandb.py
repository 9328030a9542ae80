# ruff: noqa: D102 - Writer documents it
"""Weights & Biases, offline unless WANDB_MODE says otherwise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import wandb

from runner.tracking.base import RunSpec, Status
from runner.tracking.records import HIDDEN, Artifact, Point, Record, Tag, figures_of


class FileWriter:
    """A run continues under its identity, which `wandb sync` joins."""

    def __init__(self, spec: RunSpec, root: Path) -> None:
        """Starts W&B's process; history that the run repeats is stored again, at the same steps."""
        # Nothing leaves the machine unless it is asked to: neither runs nor reports of errors in W&B's own code.
        mode = os.environ.setdefault("WANDB_MODE", "offline")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        folder = root / "outputs"
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=spec.experiment,
            name=spec.name,
            id=spec.identity,
            resume="allow",
            dir=folder,
            config=dict(spec.config),
            # The terminal's output, the code and the diff of git stay here.
            settings=wandb.Settings(console="off", symlink=False, disable_git=True, disable_code=True),
        )
        # Points come in the order of metrics, not of steps, and W&B's own step can't decrease.
        self._run.define_metric("*", step_metric="step")
        self.line = f"upload with: wandb sync {Path(self._run.dir).parent}"
        if mode == "online":
            self.line = f"W&B: {self._run.url}"

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, Point):
                self._run.log({record.key: record.value, "step": record.step})
            elif isinstance(record, Artifact):
                self._run.save(record.path, base_path=Path(record.path).parent, policy="now")
            elif isinstance(record, Tag):
                tag = {record.key: record.value}
                self._run.summary.update(tag if not record.key.startswith(HIDDEN) else figures_of(tag))

    def close(self, status: Status) -> None:
        self._run.finish(exit_code=int(status != "FINISHED"))

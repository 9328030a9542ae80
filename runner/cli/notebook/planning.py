"""`runner.make_plan(...)`: a plan as an object that shows itself in a notebook."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.cli.notebook import child
from runner.cli.notebook.composing import arranged
from runner.host.quoting import quoted


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


def make_plan(*overrides: str, config_dir: str | Path | None = None) -> ShownPlan:
    """Plans a run without training: memory, communication and computation per device.

    A process of its own compiles the step, so that this one can plan one mesh after another.

    Args:
      *overrides: as on the command line.
      config_dir: folder of more options, as `--config-dir`.

    Raises:
      ConfigError: the config is invalid; the message is the line that the command prints.
      EngineError: the plan can't be made.
    """
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan"
        run_dir = f"hydra.run.dir={quoted(plan.as_posix())}"
        child.run("runner.plan", [*arranged(overrides, config_dir), run_dir], quiet=True)
        return ShownPlan(json.loads((plan / "plan.json").read_text()), (plan / "plan.md").read_text())

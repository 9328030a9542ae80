"""Writes plan.json, plan.md and plan.png into a run's folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runner.host.late import late
from runner.host.outputs import spared
from runner.plan.base import Plan
from runner.plan.table import as_markdown, show

if TYPE_CHECKING:
    from runner.plan import picture
else:
    # It imports Matplotlib, which only a finished plan needs.
    picture = late("runner.plan.picture")

NAMES = ("plan.json", "plan.md", "plan.png")


def write_files(plan: Plan, folder: Path) -> list[Path]:
    """Writes the plan and its picture, and returns the files; one that can't be written is left out with a warning."""
    writers: Mapping[str, Callable[[Path], object]] = {
        "plan.json": lambda path: path.write_text(json.dumps(plan.to_dict(), indent=2) + "\n", "utf-8"),
        "plan.md": lambda path: path.write_text(markdown(plan), "utf-8"),
        "plan.png": lambda path: picture.draw(plan, path),
    }
    files = []
    for name in NAMES:
        with spared(str(folder / name)):
            writers[name](folder / name)
            files.append(folder / name)
    return files


def markdown(plan: Plan) -> str:
    """Returns the plan's tables and notes, with every variable by itself."""
    return as_markdown("Plan", partial(show, plan, join=False))

"""plan.json, plan.md and plan.png in a run's folder, and layout.yaml of layout=auto."""

from __future__ import annotations

import json
from pathlib import Path

from runner.plan import rows
from runner.plan.base import Plan

NAMES = ("plan.json", "plan.md", "plan.png")
PROPOSED = "layout.yaml"  # what layout=auto proposed: a layout option to edit


def write_files(plan: Plan, folder: Path) -> list[Path]:
    """Writes the plan and the picture of it.

    Returns:
      The files.
    """
    from runner.plan.picture import draw

    files = [folder / name for name in NAMES]
    files[0].write_text(json.dumps(plan.to_dict(), indent=2) + "\n")
    files[1].write_text(markdown(plan))
    draw(plan, files[2])
    if plan.proposed:
        files.append(folder / PROPOSED)
        files[-1].write_text(plan.proposed)
    return files


def markdown(plan: Plan) -> str:
    """Returns the plan's tables and notes as Markdown."""
    parts = ["# Plan", rows.title(plan)]
    for table in (rows.variables(plan), rows.totals(plan), rows.program(plan), rows.traffic(plan)):
        if table.rows:
            parts += [f"## {table.title}", table_markdown(table)]
    parts += ["## Times", "\n".join(f"- {line}" for line in rows.notes(plan))]
    return "\n\n".join(parts) + "\n"


def table_markdown(content: rows.Rows) -> str:
    """Returns one table as Markdown."""
    left = len(content.columns) - content.numbers
    rule = ["---" if index < left else "---:" for index in range(len(content.columns))]
    lines = [content.columns, rule, *content.rows]
    return "\n".join("| " + " | ".join(cell.strip().replace("|", "\\|") for cell in line) + " |" for line in lines)

"""plan.json, plan.md and plan.png in a run's folder, and layout.yaml of layout=auto."""

from __future__ import annotations

import json
from pathlib import Path

from runner.host.outputs import spared
from runner.plan import rows
from runner.plan.base import Plan
from runner.plan.picture import draw

NAMES = ("plan.json", "plan.md", "plan.png")
_PROPOSED = "layout.yaml"  # what layout=auto proposed: a layout option to edit


def write_files(plan: Plan, folder: Path) -> list[Path]:
    """Writes the plan and the picture of it; one that the disk does not take is a line on stderr.

    Returns:
      The files that are there.
    """
    texts = {"plan.json": json.dumps(plan.to_dict(), indent=2) + "\n", "plan.md": markdown(plan)}
    texts[_PROPOSED] = plan.proposed
    files = []
    for name in (*NAMES, *([_PROPOSED] if plan.proposed else [])):
        with spared(str(folder / name)):
            if name == "plan.png":
                draw(plan, folder / name)
            else:
                (folder / name).write_text(texts[name])
            files.append(folder / name)
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

"""Writes plan.json, plan.md, plan.png and layout.yaml into a run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from runner.host.late import late
from runner.host.outputs import spared
from runner.plan import rows
from runner.plan.base import Plan

if TYPE_CHECKING:
    from runner.plan import picture
else:
    # It imports Matplotlib, which only a finished plan needs.
    picture = late("runner.plan.picture")

NAMES = ("plan.json", "plan.md", "plan.png")
# The layout that layout=auto proposed, as an option's file to edit.
_PROPOSED = "layout.yaml"


def write_files(plan: Plan, folder: Path) -> list[Path]:
    """Writes the plan and its picture, and returns the files; one that can't be written is left out with a warning."""
    texts = {"plan.json": lambda: json.dumps(plan.to_dict(), indent=2) + "\n", "plan.md": lambda: markdown(plan)}
    names = list(NAMES)
    if plan.proposed:
        texts[_PROPOSED] = lambda: plan.proposed
        names.append(_PROPOSED)
    files = []
    for name in names:
        with spared(str(folder / name)):
            if name == "plan.png":
                picture.draw(plan, folder / name)
            else:
                (folder / name).write_text(texts[name](), "utf-8")
            files.append(folder / name)
    return files


def markdown(plan: Plan) -> str:
    """Returns the plan's tables and notes as Markdown."""
    parts = ["# Plan", rows.title(plan)]
    verdict = rows.verdict(plan)
    if verdict:
        parts += ["## Verdict", "- " + "\n- ".join(line.strip() for line in verdict)]
    tables = (rows.memory(plan), rows.variables(plan), rows.totals(plan), rows.program(plan), rows.traffic(plan))
    for table in tables:
        if table.rows:
            parts += [f"## {table.title}", table_markdown(table)]
    notes = "- " + "\n- ".join(rows.notes(plan))
    parts += ["## Times", notes]
    return "\n\n".join(parts) + "\n"


def table_markdown(content: rows.Rows) -> str:
    """Returns one table as Markdown, its numbers aligned to the right."""
    text_columns = len(content.columns) - content.numbers
    rule = ["---"] * text_columns + ["---:"] * content.numbers
    lines = []
    for cells in (content.columns, rule, *content.rows):
        escaped = [cell.strip().replace("|", "\\|") for cell in cells]
        lines.append("| " + " | ".join(escaped) + " |")
    return "\n".join(lines)

"""`runner.make_plan(...)`: a plan as an object that shows itself in a notebook."""

from __future__ import annotations

import html
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from runner.engine.base import ProgramCost
from runner.errors import EngineError
from runner.host.console import Console
from runner.notebook import child
from runner.notebook.composing import arranged
from runner.plan import rows, table
from runner.plan.base import FORMAT, LayerPlan, Plan, Rates, Total, Traffic, VariablePlan


@dataclass(frozen=True, repr=False)
class ShownPlan(Plan):
    """A plan that shows its tables: as text in `print`, as HTML in a notebook."""

    def tables(self) -> dict[str, rows.Rows]:
        """Returns the tables by title, each with its columns and rows of text."""
        found = (rows.variables(self), rows.totals(self), rows.program(self), rows.traffic(self))
        return {one.title: one for one in found if one.rows}

    def __repr__(self) -> str:
        console = Console(width=table.WIDTH, no_color=True, force_terminal=False)
        with console.capture() as shown:
            table.show(self, console)
        return shown.get()

    def _repr_html_(self) -> str:
        parts = [f"<h4>{html.escape(rows.title(self))}</h4>"]
        parts += [_html(one) for one in self.tables().values()]
        return "\n".join([*parts, *(f"<div>{html.escape(line)}</div>" for line in rows.notes(self))])


def make_plan(*overrides: str, config_dir: str | Path | None = None) -> ShownPlan:
    """Plans a run without training: what it will hold, move and compute.

    A process of its own compiles the step, so that this one may plan any mesh after another.

    Args:
      *overrides: as on the command line.
      config_dir: folder of more options, as `--config-dir`.

    Returns:
      The plan, which shows its tables.

    Raises:
      ConfigError: what can't work, in the line that the command prints.
      EngineError: the plan can't be made.
    """
    with tempfile.TemporaryDirectory() as folder:
        where = f"hydra.run.dir='{Path(folder).as_posix()}/plan'"
        child.run("runner.plan", [*arranged(overrides, config_dir), where], quiet=True)
        return from_dict(json.loads((Path(folder) / "plan" / "plan.json").read_text()))


def from_dict(content: Mapping[str, Any]) -> ShownPlan:
    """Returns the plan that `Plan.to_dict`, or a plan.json, holds.

    Raises:
      EngineError: it is of another version.
    """
    if content.get("format") != FORMAT:
        raise EngineError(f"the plan has format {content.get('format')}, and this version reads {FORMAT}")
    known = {one.name for one in fields(Plan)}
    cost = content["program"]
    return ShownPlan(
        **{
            **{key: value for key, value in content.items() if key in known},
            "variables": tuple(VariablePlan(**_tuples(one)) for one in content["variables"]),
            "layers": tuple(LayerPlan(**_tuples(one)) for one in content["layers"]),
            "totals": {name: Total(**one) for name, one in content["totals"].items()},
            "traffic": tuple(Traffic(**one) for one in content["traffic"]),
            "rates": Rates(**content["rates"]),
            "warnings": tuple(content["warnings"]),
            "crossing": tuple(content["crossing"]),
            "program": None if cost is None else ProgramCost(**_tuples(cost)),
        }
    )


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}


def _html(content: rows.Rows) -> str:
    left = len(content.columns) - content.numbers

    def row(cells: tuple[str, ...], tag: str) -> str:
        sides = ["left" if index < left else "right" for index in range(len(cells))]
        made = (
            f'<{tag} style="text-align: {side}; white-space: pre">{html.escape(cell)}</{tag}>'
            for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(row(one, "td") for one in content.rows)
    head = row(content.columns, "th")
    return f"<table><caption>{html.escape(content.title)}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"

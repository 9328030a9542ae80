"""`runner.make_plan(...)`: a plan as an object that shows itself in a notebook."""

from __future__ import annotations

import html
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from runner.engine.base import ProgramCost
from runner.errors import EngineError
from runner.host.console import Console
from runner.host.quoting import quoted
from runner.notebook import child
from runner.notebook.composing import arranged
from runner.plan import rows, table
from runner.plan.base import (
    FORMAT,
    Change,
    Forecast,
    LayerPlan,
    MemoryPart,
    Plan,
    Rates,
    Total,
    Traffic,
    VariablePlan,
)

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class ShownPlan(Plan):
    """A plan that shows its tables: as text in `print`, as HTML in a notebook."""

    def tables(self) -> dict[str, rows.Rows]:
        """Returns the tables by title, each with its columns and rows of text."""
        tables = (
            rows.memory(self),
            rows.variables(self),
            rows.totals(self),
            rows.program(self),
            rows.traffic(self),
        )
        return {table.title: table for table in tables if table.rows}

    def __repr__(self) -> str:
        console = Console(width=table.WIDTH, no_color=True, force_terminal=False)
        with console.capture() as captured:
            table.show(self, console)
        return captured.get()

    def _repr_html_(self) -> str:
        parts = [f"<h4>{html.escape(rows.title(self))}</h4>"]
        for line in rows.verdict(self):
            parts.append(f"<div>{html.escape(line)}</div>")
        for content in self.tables().values():
            parts.append(_html(content))
        for line in rows.notes(self):
            parts.append(f"<div>{html.escape(line)}</div>")
        return "\n".join(parts)


def make_plan(*overrides: str, config_dir: str | Path | None = None) -> ShownPlan:
    """Plans a run without training: memory, communication and computation per device.

    A process of its own compiles the step, so that this one can plan one mesh after another.

    Args:
      *overrides: as on the command line.
      config_dir: folder of more options, as `--config-dir`.

    Returns:
      The plan, which shows its tables.

    Raises:
      ConfigError: the config is invalid; the message is the line that the command prints.
      EngineError: the plan can't be made.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir = f"hydra.run.dir={quoted(f'{Path(folder).as_posix()}/plan')}"
        child.run("runner.plan", [*arranged(overrides, config_dir), run_dir], quiet=True)
        return from_dict(json.loads((Path(folder) / "plan" / "plan.json").read_text()))


def from_dict(content: Mapping[str, Any]) -> ShownPlan:
    """Returns the plan of a plan.json, the content of which `Plan.to_dict` returns.

    Raises:
      EngineError: it is of another version.
    """
    if content.get("format") != FORMAT:
        raise EngineError(f"the plan has format {content.get('format')}, and this version reads {FORMAT}")
    values: dict[str, Any] = {}
    for field in fields(Plan):
        if field.name in content:
            values[field.name] = content[field.name]
    # JSON has lists where the dataclasses have tuples, and mappings where they have each other.
    values["variables"] = _all_of(VariablePlan, content["variables"])
    values["layers"] = _all_of(LayerPlan, content["layers"])
    values["totals"] = {name: Total(**total) for name, total in content["totals"].items()}
    values["traffic"] = tuple(Traffic(**transfer) for transfer in content["traffic"])
    values["rates"] = Rates(**content["rates"])
    values["warnings"] = tuple(content["warnings"])
    values["crossing"] = tuple(content["crossing"])
    if content["program"] is not None:
        values["program"] = ProgramCost(**_tuples(content["program"]))
    if content.get("forecast") is not None:
        forecast = _tuples(content["forecast"])
        forecast["memory"] = _all_of(MemoryPart, forecast["memory"])
        forecast["changes"] = _all_of(Change, forecast["changes"])
        values["forecast"] = Forecast(**forecast)
    return ShownPlan(**values)


def _all_of(kind: Callable[..., T], entries: Sequence[Mapping[str, Any]]) -> tuple[T, ...]:
    return tuple(kind(**_tuples(entry)) for entry in entries)


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(content)
    for key, value in content.items():
        if isinstance(value, list):
            values[key] = tuple(value)
    return values


def _html(content: rows.Rows) -> str:
    """Returns a table as HTML; its last columns, the numbers, are aligned to the right."""
    texts = len(content.columns) - content.numbers
    lines = [_html_row(content.columns, "th", texts)]
    lines += [_html_row(cells, "td", texts) for cells in content.rows]
    head, *body = lines
    caption = f"<caption>{html.escape(content.title)}</caption>"
    return f"<table>{caption}<thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"


def _html_row(cells: tuple[str, ...], tag: str, texts: int) -> str:
    parts = []
    for index, cell in enumerate(cells):
        side = "left" if index < texts else "right"
        parts.append(f'<{tag} style="text-align: {side}; white-space: pre">{html.escape(cell)}</{tag}>')
    return f"<tr>{''.join(parts)}</tr>"

"""Description on a run's page in MLflow, in Markdown. It says the same as the run's status at any time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.task.metrics import EVAL, TEST

# MLflow shows this tag as a run's description.
TAG = "mlflow.note.content"
# The tag of a run that says why it ended.
ENDED = "runner.ended"
_STATUS_WORDS = {"RUNNING": "Running", "FINISHED": "Finished", "FAILED": "Failed", "KILLED": "Killed"}
# Tags that the page shows too, and how it names them.
_FACTS_BY_TAG = {"runner.verdict": "verify says", "runner.checkpoints": "checkpoints"}
_SPEED = "throughput/examples_per_second"
# What a person writes below this line stays.
_END_OF_OURS = "\n\n---\n\n"


@dataclass
class Page:
    """The known facts of a run, from which its description is made.

    Attributes:
      command: the command that started it.
      facts: name of a fact (such as `mesh`) to its text in Markdown, in order.
      ended: why it ended; empty while it runs.
      results: the last value of each evaluation metric and of the throughput.
    """

    command: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    ended: str = ""
    results: dict[str, float] = field(default_factory=dict)

    def log(self, values: Mapping[str, float]) -> None:
        """Keeps the points that are results: those of evaluations and the throughput."""
        for key, value in values.items():
            if key.startswith((EVAL, TEST, _SPEED)):
                self.results[key] = value

    def tag(self, tags: Mapping[str, str]) -> None:
        """Keeps the tags that the page shows: why the run ended, and some facts."""
        self.ended = tags.get(ENDED, self.ended)
        for key, fact in _FACTS_BY_TAG.items():
            if key in tags:
                self.facts[fact] = f"`{tags[key]}`"

    def markdown(self, status: str) -> str:
        """Returns the description, of which MLflow shows the first three lines, and the rest on request."""
        headline = f"**{_STATUS_WORDS.get(status, status)}**"
        if self.ended and status != "RUNNING":
            headline += f": {_escaped(self.ended)}"
        paragraphs = [headline]
        if self.results:
            results = ", ".join(_result(name, value) for name, value in sorted(self.results.items()))
            title = "result" if status == "FINISHED" else "result so far"
            paragraphs.append(f"{title}: {results}")
        facts = dict(self.facts)
        if "mesh" in facts:
            paragraphs.append(f"mesh: {facts.pop('mesh')}")
        if self.command:
            facts = {"command": f"`{self.command}`", **facts}
        rows = [f"| {name} | {_cell(text)} |" for name, text in facts.items()]
        if rows:
            paragraphs.append("\n".join(["| | |", "|---|---|", *rows]))
        return "\n\n".join(paragraphs) + "\n"


def merged(own: str, current: str | None) -> str:
    """Returns a new description with what a person wrote into the stored one.

    Text below the line that ends ours is a person's. A description without that line was written in place of ours.
    """
    if not current:
        return own + _END_OF_OURS
    _, end_of_ours, added = current.partition(_END_OF_OURS.rstrip("\n"))
    if not end_of_ours:
        return current
    return own + _END_OF_OURS + added.lstrip("\n")


def killed(current: str | None, why: str) -> str | None:
    """Returns the description of a run whose process is gone; None if the current one does not say that it runs."""
    running = f"**{_STATUS_WORDS['RUNNING']}**"
    if current is None or not current.startswith(running):
        return None
    return f"**{_STATUS_WORDS['KILLED']}**: {_escaped(why)}" + current.removeprefix(running)


def _result(name: str, value: float) -> str:
    if name == _SPEED:
        return f"{value:,.0f} examples/s"
    return f"{name} **{value:.4g}**"


def _escaped(text: str) -> str:
    """Returns text in which Markdown finds no markup."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


def _cell(text: str) -> str:
    """Returns text for a cell of a Markdown table: one line, every `|` escaped."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))

"""What the page of a run says at a glance: its description, in Markdown, as true as its status at any time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runner.task.metrics import EVAL, TEST

TAG = "mlflow.note.content"  # which MLflow shows as a run's description
ENDED = "runner.ended"  # a run's tag: why it ended, in words
_WORDS = {"RUNNING": "Running", "FINISHED": "Finished", "FAILED": "Failed", "KILLED": "Killed"}
_FACTS = {"runner.verdict": "verify says", "runner.checkpoints": "checkpoints"}  # tags that a page says too
_SPEED = "throughput/examples_per_second"
_PICTURES = (".png", ".svg")
_MOST_FILES = 30
_MARK = "\n\n---\n\n"  # what a person writes below it stays


@dataclass
class Page:
    """What is known of a run so far.

    Attributes:
      command: that it was started with.
      task: its task's name.
      columns: metrics that runs of the task are compared by, the first one first.
      facts: what -> its words in Markdown, in order, as `mesh`.
      ended: why it ended, in words; empty while it runs.
      results: the last value of each metric of an evaluation, and of the speed.
      files: its artifacts, by path.
    """

    command: str = ""
    task: str = ""
    columns: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    ended: str = ""
    results: dict[str, float] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    def log(self, values: Mapping[str, float]) -> None:
        """Takes points, of which those of evaluations and of the speed are results."""
        self.results |= {key: value for key, value in values.items() if key.startswith((EVAL, TEST, _SPEED))}

    def tag(self, tags: Mapping[str, str]) -> None:
        """Takes the run's tags, of which some say why it ended, and what else a page says."""
        self.ended = tags.get(ENDED, self.ended)
        self.facts |= {fact: f"`{tags[key]}`" for key, fact in _FACTS.items() if key in tags}

    def add_file(self, path: str) -> None:
        """Takes an artifact."""
        if path not in self.files:
            self.files.append(path)

    def markdown(self, status: str, address: str) -> str:
        """Returns the description; MLflow shows its first three lines, and the rest when it is asked to.

        Args:
          status: RUNNING, FINISHED, FAILED or KILLED.
          address: of the run's page, relative to the server's.
        """
        why = f": {_safe(self.ended)}" if self.ended and status != "RUNNING" else ""
        told = [f"**{_WORDS.get(status, status)}**{why}"]
        facts = dict(self.facts)
        if self.results:
            so_far = "result" if status == "FINISHED" else "result so far"
            told.append(f"{so_far}: " + ", ".join(_result(*one) for one in sorted(self.results.items())))
        if "mesh" in facts:
            told.append(f"mesh: {facts.pop('mesh')}")
        rows = ([("command", f"`{self.command}`")] if self.command else []) + [*facts.items()]
        pictures = [path for path in self.files if path.endswith(_PICTURES)]
        for title, paths in (("pictures", pictures), ("files", [one for one in self.files if one not in pictures])):
            if paths:
                links = [f"[{path}]({address}/artifacts/{path})" for path in paths[:_MOST_FILES]]
                rows.append((title, ", ".join(links)))
        return "\n\n".join([*told, table(rows)]).strip() + "\n"


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Returns rows of a name and its words as a Markdown table without a header's words."""
    lines = [f"| {name} | {_cell(words)} |" for name, words in rows]
    return "\n".join(["| | |", "|---|---|", *lines]) if rows else ""


def address_of(experiment_id: str, run_id: str) -> str:
    """Returns the address of a run's page as links on that server write it."""
    return f"#/experiments/{experiment_id}/runs/{run_id}"


def merged(own: str, current: str | None) -> str:
    """Returns a description with what a person wrote into it.

    Args:
      own: the runner's words.
      current: the description that is there; what stands below the last line of ours is a person's, and one that has
        no such line was written in place of ours, and stays.
    """
    if not current:
        return own + _MARK
    before, mark, theirs = current.partition(_MARK.rstrip("\n"))
    del before
    return own + _MARK + theirs.lstrip("\n") if mark else current


def ended_without_a_word(current: str | None, why: str) -> str | None:
    """Returns the description of a run whose process is gone; None where it is not one of a run that goes on."""
    running = f"**{_WORDS['RUNNING']}**"
    if current is None or not current.startswith(running):
        return None
    return f"**{_WORDS['KILLED']}**: {_safe(why)}" + current.removeprefix(running)


def _result(name: str, value: float) -> str:
    return f"{value:,.0f} examples/s" if name == _SPEED else f"{name} **{value:.4g}**"


def _safe(words: str) -> str:
    """Returns words in which Markdown finds nothing of its own."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(words.split()))


def _cell(words: str) -> str:
    """Returns words as a table's cell takes them."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(words.split()))

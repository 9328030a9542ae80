"""What became of one backbone: its plan, and what `python -m runner.verify` says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import forks
from tests.backbones_of_hub.case import Counts, Planned, overrides
from tests.docs import verdicts

ROOT = Path(__file__).parents[2]
_SECONDS = 3600


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
      name: of the class.
      plan: what its plan tells.
      verdict: `verified`, `inconclusive`, `differs`, `refused`, `failed`, or `planned` where it was not verified.
      said: the verdict's line, or the refusal.
    """

    name: str
    plan: Planned
    verdict: str
    said: str

    @property
    def sound(self) -> bool:
        """Tells whether it is verified, or refused with a reason."""
        return self.verdict in ("verified", "planned", "refused")

    def cell(self) -> str:
        """Returns what the page says of it."""
        return verdicts.cell(self.verdict, self.said)

    def collectives(self) -> str:
        """Returns two cells of a table: the collectives with the layout, and with KerasHub's own map."""
        return f"{_words(self.plan.ours)} | {_words(self.plan.own)}"

    def line(self) -> str:
        """Returns a line that sums it up."""
        plan = self.plan
        share = f"{100 * plan.split / plan.parameters:.0f}%" if plan.parameters else "-"
        sharded = f"{share} of {plan.parameters:,} parameters, {plan.split_variables} of {plan.variables} variables"
        return f"{self.name}: {self.cell()}; sharded: {sharded}; {self.collectives()}"


def _words(counts: Counts | None) -> str:
    if counts is None:
        return "-"
    if "refused" in counts:
        return "does not fit"
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def plans(names: Sequence[str], words: Sequence[str], folder: Path) -> dict[str, Planned]:
    """Plans backbones in one process, and writes the arrays that they take into a folder.

    Args:
      names: public, of the classes.
      words: that choose mesh and layout.
      folder: for the arrays.
    """
    command = [sys.executable, "-m", "tests.backbones_of_hub.plans", str(folder), ",".join(names), *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forks.run(command, library="jax", cwd=folder, env=environment, timeout=_SECONDS)
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            content = json.loads(line)
            name = content.pop("name")
            found[name] = Planned(**content)
    ended = " ".join(done.stderr.split())[-200:]
    return {name: found.get(name, Planned(refused=f"the process ended: {ended}")) for name in names}


def prove(name: str, plan: Planned, words: Sequence[str], folder: Path, steps: int) -> Row:
    """Verifies a backbone.

    Args:
      name: public, of the class.
      plan: of `plans`.
      words: that choose mesh and layout.
      folder: where the arrays lie.
      steps: that are compared; 0: none.
    """
    if plan.refused:
        return Row(name, plan, "refused", plan.refused)
    if not steps:
        return Row(name, plan, "planned", "")
    command = [*overrides(name, plan.kind, words, folder), f"verify.steps={steps}"]
    return Row(name, plan, *_verified(command, folder / f"{name}-verify", folder))


def _verified(words: list[str], out: Path, folder: Path) -> tuple[str, str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    full = [sys.executable, "-m", "runner.verify", *words, "tracking=none", f"hydra.run.dir={out}"]
    try:
        done = forks.run(full, library="jax", cwd=folder, env=environment, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return "failed", f"it took more than {_SECONDS} s"
    errors = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("warning:")]
    said = errors[-1] if done.returncode and errors else (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode == 1 and (out / "verify.json").exists():
        return json.loads((out / "verify.json").read_text())["verdict"], said
    return {0: "verified", 2: "refused"}.get(done.returncode, "failed"), said

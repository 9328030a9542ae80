"""One backbone, planned by `python -m runner.plan` and held against one device by `python -m runner.verify`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import forks
from tests.backbones_of_hub import tiny

ROOT = Path(__file__).parents[2]
_SECONDS = 1200
_NONE = "-"


@dataclass(frozen=True)
class Row:
    """What became of a backbone.

    Attributes:
      parameters: of the tiny model.
      caught: those that the mesh splits, of all, as `38 of 40 thousand in 24 of 30 variables`.
      ours: collectives of a step under layout=auto, in words.
      own: likewise under KerasHub's own map; a dash: it has none.
      verdict: `proven`, `not proven`, `differs`, `refused` or `failed`.
      said: the verdict's line, or the refusal.
    """

    name: str
    parameters: str
    caught: str
    ours: str
    own: str
    verdict: str
    said: str

    @property
    def sound(self) -> bool:
        """Tells whether it is proven, or refused with a reason."""
        return self.verdict in ("proven", "refused")

    def line(self) -> str:
        """Returns a line of the table."""
        cells = (self.name, self.parameters, self.caught, self.ours, self.own, self.verdict, self.said)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def cases(names: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Writes the arrays of backbones, and returns name -> what `tests.backbones_of_hub.arrays` says of it."""
    command = [sys.executable, "-m", "tests.backbones_of_hub.arrays", str(folder), *names]
    done = forks.run(command, library="jax", cwd=ROOT, timeout=_SECONDS, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def overrides(name: str, kind: str, mesh: str) -> list[str]:
    """Returns the command line that all commands share."""
    keys = [f"++model.config.{key}={_written(value)}" for key, value in tiny.config(name).items()]
    task = (
        ["task=language_model", f"task.vocabulary={tiny.VOCABULARY}"]
        if kind == "language"
        else ["task=classification"]
    )
    data = ["dataset=arrays", f"dataset.path={name}.npz", "dataset.batch_size=16", "dataset.standardize=false"]
    return ["engine=jax", f"mesh={mesh}", "model=keras_hub", f"model.backbone={name}", *keys, *task, *data]


def _written(value: object) -> str:
    """Returns a value as Hydra's command line takes it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_written(each) for each in value) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def prove(name: str, case: dict[str, Any], mesh: str, folder: Path, steps: int) -> Row:
    """Plans a backbone under layout=auto, and under KerasHub's own map where it has one, and verifies it.

    Args:
      name: public, of the class.
      case: of `cases`.
      mesh: option of the group.
      folder: where the arrays lie.
      steps: that verify compares; 0: it is planned alone.
    """
    if "refused" in case:
        return Row(name, _NONE, _NONE, _NONE, _NONE, "refused", case["refused"])
    shared, told = overrides(name, case["kind"], mesh), [_NONE, _NONE, _NONE]
    own = _NONE
    plan, code, said = _run("runner.plan", [*shared, "layout=auto"], f"{name}-plan", folder)
    if code:
        return Row(name, *told, own, "refused" if code == 2 else "failed", said)
    told = _told(json.loads((plan / "plan.json").read_text()))
    if case["map"]:
        plan, code, _ = _run("runner.plan", [*shared, "layout=keras_hub"], f"{name}-own", folder)
        own = _told(json.loads((plan / "plan.json").read_text()))[2] if code == 0 else "refused"
    if not steps:
        return Row(name, *told, own, "planned", "")
    out, code, said = _run(
        "runner.verify", [*shared, "layout=auto", f"verify.steps={steps}"], f"{name}-verify", folder
    )
    verdict = {0: "proven", 2: "refused"}.get(code, "failed")
    if code == 1 and (out / "verify.json").exists():
        verdict = json.loads((out / "verify.json").read_text())["verdict"]
    return Row(name, *told, own, verdict, said)


def _told(plan: dict[str, Any]) -> list[str]:
    """Returns parameters, what the mesh splits of them, and the collectives of a step, in words."""
    variables = plan["variables"]
    sizes = [_size(each["shape"]) for each in variables]
    split = [size for size, each in zip(sizes, variables, strict=True) if any(each["spec"])]
    caught = f"{100 * sum(split) / max(sum(sizes), 1):.0f}% in {len(split)} of {len(variables)} variables"
    counts: dict[str, int] = {}
    for each in plan["traffic"]:
        counts[each["kind"]] = counts.get(each["kind"], 0) + each["count"]
    words = ", ".join(f"{count} {kind.replace('_', '-')}" for kind, count in sorted(counts.items()))
    return [f"{sum(sizes):,}", caught, words or "none"]


def _size(shape: list[int]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


def _run(command: str, words: list[str], name: str, folder: Path) -> tuple[Path, int, str]:
    """Returns the run's folder, the exit code and the last line that was said."""
    out = folder / name
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    full = [sys.executable, "-m", command, *words, "tracking=none", f"hydra.run.dir={out}"]
    try:
        done = forks.run(full, library="jax", cwd=folder, env=environment, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return out, 1, f"{command} took more than {_SECONDS} s"
    errors = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("warning:")]
    said = errors[-1] if done.returncode and errors else (done.stdout.strip().splitlines() or [""])[-1]
    return out, done.returncode, said

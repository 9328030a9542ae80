"""Holds two versions of the runner side by side: steps a second, and seconds from a start to the end of one step.

    python -m benchmarks.versions --before ../earlier --repeats 5

`--before` is another checkout, with its own `.venv`. `--option` holds a value of a key beside the default, in one
checkout: `--option optimizer.gradient_norm=global` runs each config with it, then without it. Whole runs of both
alternate, each in a process of its own, so that what the neighbors of a machine do hits both; printed is the median of
the ratios, the smallest and the largest. The CPU time of a step is the figure to trust on a machine that does other
work at the same time; that of the whole process includes the start.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
QUIET = ["tracking=none", "trainer.checkpoint.enabled=false", "trainer.progress=none"]
TEXT = [
    "dataset=pydoc",
    "task=language_model",
    "dataset.sequence_length=64",
    "dataset.batch_size=32",
    "trainer.epochs=1",
]
RUNS = {
    ("mlp", "single"): ["dataset=mnist", "trainer.epochs=3"],
    ("mlp", "batch8"): ["dataset=mnist", "trainer.epochs=1"],
    ("convnet", "single"): ["dataset=mnist", "trainer.epochs=1", "trainer.limit_train_batches=120"],
    ("convnet", "batch8"): ["dataset=mnist", "trainer.epochs=1", "trainer.limit_train_batches=60"],
    ("gpt", "single"): [*TEXT, "trainer.limit_train_batches=100"],
    ("gpt", "batch8"): [*TEXT, "trainer.limit_train_batches=60"],
}
# The engine on TensorFlow Core has this model only, under a name of its own.
MODELS_OF_CORE = {"mlp": "mlp_core"}
EVALUATION = ["trainer.limit_eval_batches=1"]
ONE_STEP = ["trainer.epochs=1", "trainer.limit_train_batches=1"]


@dataclass(frozen=True)
class Timing:
    """What one run took: steps per second and CPU ms per step of its loop, and both seconds of its whole process."""

    steps_per_second: float
    step_cpu_ms: float
    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Side:
    """One of the two that are compared: a checkout, and what its command lines have in addition."""

    tree: Path
    options: tuple[str, ...] = ()


def run(tree: Path, overrides: list[str]) -> Timing:
    """Runs one config in a checkout.

    Raises:
      RuntimeError: the run failed; the message has the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [
            str(tree / ".venv/bin/python"),
            "-m",
            "runner",
            *overrides,
            *QUIET,
            *EVALUATION,
            f"hydra.run.dir={out}",
        ]
        cpu_before = _cpu_of_children()
        begin = time.perf_counter()
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - begin
        cpu = _cpu_of_children() - cpu_before
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout[-500:]} {done.stderr[-500:]}")
        summary = json.loads((out / "summary.json").read_text())
        return Timing(summary["steps_per_second"], summary["cpu_ms_per_step"], wall, cpu)


def _cpu_of_children() -> float:
    """Returns the CPU seconds of all child processes that have ended, user and system."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def line_of(name: str, unit: str, pairs: list[tuple[float, float]]) -> str:
    """Returns a line of (before, after) pairs."""
    before = statistics.median(early for early, _ in pairs)
    after = statistics.median(late for _, late in pairs)
    ratios = sorted(late / early for early, late in pairs)
    return (
        f"{name:40s} {before:9.2f} {after:9.2f} {unit:8s} after/before {statistics.median(ratios):.3f} "
        f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
    )


def compare(sides: list[Side], name: str, overrides: list[str], repeats: int, is_start: bool) -> None:
    """Runs a config on both sides in turns, and prints lines of its speed and of its CPU time.

    Args:
      sides: the one before, then the one after.
      name: of the case.
      overrides: of its command line.
      repeats: pairs of runs.
      is_start: the first line is the wall time of the process, in place of the steps per second.
    """
    before, after = sides
    early: list[Timing] = []
    late: list[Timing] = []
    for _ in range(repeats):
        early.append(run(before.tree, [*overrides, *before.options]))
        late.append(run(after.tree, [*overrides, *after.options]))
    pairs = list(zip(early, late, strict=True))
    if is_start:
        print(line_of(name, "s", [(one.wall_s, other.wall_s) for one, other in pairs]))
    else:
        print(line_of(name, "steps/s", [(one.steps_per_second, other.steps_per_second) for one, other in pairs]))
        print(line_of(name, "CPU ms", [(one.step_cpu_ms, other.step_cpu_ms) for one, other in pairs]))
    print(line_of(name, "CPU s", [(one.cpu_s, other.cpu_s) for one, other in pairs]), flush=True)


def main() -> None:
    """Runs what was asked for and prints a line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--before", type=Path, default=HERE, help="a checkout of the earlier version; default: this one"
    )
    parser.add_argument("--after", type=Path, default=HERE, help="of the later one; default: this one")
    parser.add_argument("--option", action="append", default=[], help="an override of the runs before only")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engine", action="append", help="default: all three")
    parser.add_argument("--case", action="append", help="as mlp/batch8 or start/batch8; default: all")
    asked = parser.parse_args()
    if asked.before == asked.after and not asked.option:
        parser.error("both sides are equal: name another checkout by --before, or a value by --option")
    sides = [Side(asked.before.resolve(), tuple(asked.option)), Side(asked.after.resolve())]
    for engine in asked.engine or ["keras_dtensor", "core_dtensor", "jax"]:
        for (model, mesh), length in RUNS.items():
            if asked.case and f"{model}/{mesh}" not in asked.case:
                continue
            name = model
            if engine == "core_dtensor":
                if model not in MODELS_OF_CORE:
                    continue
                name = MODELS_OF_CORE[model]
            overrides = [f"engine={engine}", f"model={name}", f"mesh={mesh}", *length]
            compare(sides, f"{engine} {model} {mesh}", overrides, asked.repeats, is_start=False)
        for mesh in ("single", "batch8"):
            if asked.case and f"start/{mesh}" not in asked.case:
                continue
            overrides = [f"engine={engine}", f"mesh={mesh}", "dataset=mnist", *ONE_STEP]
            if engine == "core_dtensor":
                overrides.append(f"model={MODELS_OF_CORE['mlp']}")
            compare(sides, f"{engine} mlp {mesh}, one step", overrides, asked.repeats, is_start=True)


if __name__ == "__main__":
    main()

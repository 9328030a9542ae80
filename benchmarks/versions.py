"""Holds two versions of the runner side by side: steps a second, and seconds from a start to the end of one step.

    python -m benchmarks.versions --before ../earlier --repeats 5

`--before` is another checkout, with its own `.venv`. Whole runs of both alternate, each in a process of its own, so
that what the neighbors of a machine do hits both; printed is the median of the ratios, the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
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
EVALUATION = ["trainer.limit_eval_batches=1"]
ONE_STEP = ["trainer.epochs=1", "trainer.limit_train_batches=1"]


def run(tree: Path, overrides: list[str]) -> tuple[float, float]:
    """Returns steps a second, and seconds of the whole process, of one run in a checkout.

    Raises:
      RuntimeError: the run failed; says how.
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
        begun = time.perf_counter()
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begun
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout[-500:]} {done.stderr[-500:]}")
        return json.loads((out / "summary.json").read_text())["steps_per_second"], seconds


def told(name: str, unit: str, pairs: list[tuple[float, float]]) -> str:
    """Returns a line of (before, after) pairs."""
    before, after = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(late / early for early, late in pairs)
    return (
        f"{name:40s} {before:9.2f} {after:9.2f} {unit:8s} after/before {statistics.median(ratios):.3f} "
        f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
    )


def main() -> None:
    """Runs what was asked for and prints a line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the earlier version")
    parser.add_argument("--after", type=Path, default=HERE, help="of the later one; default: this one")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engine", action="append", help="default: keras_dtensor and jax")
    parser.add_argument("--case", action="append", help="as mlp/batch8 or start/batch8; default: all")
    asked = parser.parse_args()
    trees = [asked.before.resolve(), asked.after.resolve()]
    for engine in asked.engine or ["keras_dtensor", "jax"]:
        for (model, mesh), length in RUNS.items():
            if asked.case and f"{model}/{mesh}" not in asked.case:
                continue
            overrides = [f"engine={engine}", f"model={model}", f"mesh={mesh}", *length]
            pairs = [tuple(run(tree, overrides)[0] for tree in trees) for _ in range(asked.repeats)]
            print(told(f"{engine} {model} {mesh}", "steps/s", pairs), flush=True)
        for mesh in ("single", "batch8"):
            if asked.case and f"start/{mesh}" not in asked.case:
                continue
            overrides = [f"engine={engine}", f"mesh={mesh}", "dataset=mnist", *ONE_STEP]
            pairs = [tuple(run(tree, overrides)[1] for tree in trees) for _ in range(asked.repeats)]
            print(told(f"{engine} mlp {mesh}, one step", "s", pairs), flush=True)


if __name__ == "__main__":
    main()

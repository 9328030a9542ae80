"""Measures what a short run costs from its first line to its last, in CPU seconds, wall seconds and memory.

    python -m benchmarks.start --before ../earlier --repeats 5
    python -m benchmarks.start --stages

Each run is a process of its own, in an empty folder, so it makes its MLflow database too. With `--before`, runs of
another checkout alternate with ours, so that what the neighbors of a machine do hits both. `--stages` also prints what
the runs say of their stages. The data of `mnist` is prepared again in each run with `--prepare`.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
RUNS = {
    "digits on jax, one device": ["engine=jax", "mesh=single", "dataset=digits"],
    "MNIST on keras_dtensor, 8 devices": ["mesh=batch8", "model=mlp"],
}
_STAGE = re.compile(r"^(?P<stage>[^:\n]+) \.\.\. (?P<seconds>[\d.]+) s$", re.MULTILINE)


@dataclass(frozen=True)
class Cost:
    """What a run cost.

    Attributes:
      cpu_s: CPU seconds of the process and its children.
      wall_s: seconds from start to end.
      memory_mb: largest resident size of the process or one of its children.
      stages: name of a stage -> wall seconds, as the run printed them.
    """

    cpu_s: float
    wall_s: float
    memory_mb: float
    stages: dict[str, float]


def run(tree: Path, overrides: list[str], *, prepare: bool) -> Cost:
    """Returns what a run of a checkout costs.

    Args:
      tree: the checkout. Its own `.venv` runs it, or this interpreter where it has none.
      overrides: of the command line.
      prepare: whether the data is prepared in an empty folder first.

    Raises:
      RuntimeError: the run failed.
    """
    python = tree / ".venv/bin/python"
    with tempfile.TemporaryDirectory() as folder:
        data = [f"dataset.data_dir={folder}/data"] if prepare else []
        command = [str(python) if python.exists() else sys.executable, "-m", "runner", *overrides, *data]
        log = Path(folder) / "log"
        begun = time.perf_counter()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(tree)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - begun
        text = log.read_text(errors="replace")
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {text[-500:]}")
    stages = {match["stage"]: float(match["seconds"]) for match in _STAGE.finditer(text)}
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, stages)


def shown(costs: list[Cost]) -> str:
    """Returns the medians of several runs as text."""
    cpu = statistics.median(cost.cpu_s for cost in costs)
    wall = statistics.median(cost.wall_s for cost in costs)
    memory = statistics.median(cost.memory_mb for cost in costs)
    lowest = min(cost.cpu_s for cost in costs)
    highest = max(cost.cpu_s for cost in costs)
    return f"{cpu:.1f} CPU s ({lowest:.1f} to {highest:.1f}), {wall:.1f} s, {memory:,.0f} MB"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=[name.split()[0].lower() for name in RUNS])
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--stages", action="store_true")
    options = parser.parse_args()
    trees = {"now": HERE}
    if options.before is not None:
        trees = {"before": options.before.resolve(), **trees}
    for name, overrides in RUNS.items():
        if options.only not in (None, name.split()[0].lower()):
            continue
        prepare = options.prepare and "dataset=digits" not in overrides
        costs: dict[str, list[Cost]] = {version: [] for version in trees}
        for _ in range(options.repeats):
            for version, tree in trees.items():
                costs[version].append(run(tree, overrides, prepare=prepare))
        for version, measured in costs.items():
            print(f"{name}, {version}: {shown(measured)}", flush=True)
            if options.stages:
                for stage in measured[0].stages:
                    seconds = statistics.median(cost.stages.get(stage, 0.0) for cost in measured)
                    print(f"  {stage}: {seconds:.1f} s")


if __name__ == "__main__":
    main()

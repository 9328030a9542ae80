"""What a state takes of memory: the process's peak while it is built, saved, loaded and trained, beside its bytes.

    python -m benchmarks.memory                                               # a gpt of 3 million parameters on batch8
    python -m benchmarks.memory --steps 2 model.dim=512 model.depth=16        # 50 million, and two training steps
    python -m benchmarks.memory model.dim=1664 model.depth=24 model.heads=16  # 800 million: wants 11 GB of free memory

Virtual devices of the CPU share the process's memory, so its peak is that of all devices and the host. What libraries
and data take is left out: it is measured when a small model of the same kind has gone through the same stages. Linux
alone has the kernel's own peak, which is begun again for each stage.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from runner.checkpoint import storage
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.storage import Content
from runner.cli.notebook import compose
from runner.config.schema import RunConfig
from runner.data import loading
from runner.data.base import WEIGHT
from runner.engine import make_engine, registry
from runner.engine.base import HostBatches
from runner.engine.common import Engine
from runner.task.base import DataSpec
from runner.task.registry import make_task

_CONFIG = ("engine=jax", "mesh=batch8", "layout=fsdp", "optimizer=adamw", "model=gpt", "task=language_model")
_DATA = ("dataset=pydoc", "dataset.batch_size=8", "dataset.sequence_length=64", "tracking=none")
_SMALL = ("model.dim=64", "model.depth=1", "model.heads=4")
_ABOUT = {"run": "memory", "config": {}, "seed": 0, "versions": {}}
_MIB = 1 << 20


def now(key: str = "VmRSS") -> int:
    """Returns the process's memory in bytes, or with `VmHWM` its peak since `begin`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise OSError(f"/proc/self/status has no {key}")


def begin() -> None:
    """Begins the process's peak again."""
    Path("/proc/self/clear_refs").write_text("5")


class Stages:
    """Runs stages and keeps the peak and the seconds of each."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, float]] = {}

    def run(self, name: str, stage: Callable[[], object]) -> None:
        """Runs a stage."""
        gc.collect()
        begin()
        begun = time.monotonic()
        stage()
        self.rows[name] = now("VmHWM"), time.monotonic() - begun
        print(f"{name}: {self.rows[name][0] / _MIB:,.0f} MiB with all else", file=sys.stderr, flush=True)


def measured(config: RunConfig, steps: int) -> tuple[Stages, int]:
    """Takes a state through all stages.

    Args:
      config: checked.
      steps: of training, at the end; 0: none, and nothing is compiled.

    Returns:
      The stages' peaks, and the bytes of the state.
    """
    registry.prepare(config)
    data = loading.load(config.dataset, config.trainer.seed, task=config.task)
    task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
    spec = DataSpec(task.arrays, task)
    stages = Stages()
    engine = make_engine(config, spec, 100)
    stages.run("build", engine.build)
    size = sum(int(np.prod(one.shape)) * (2 if "16" in one.dtype else 4) for one in engine.variables().values())
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        stages.run("save", lambda: _save(engine, Path(folder)))
        stages.run("load", lambda: engine.load_state(Checkpoint(storage.place(Path(folder), 0))))
    if steps:
        shape = (1, config.dataset.batch_size)
        arrays = {name: np.zeros((*shape, *one.shape), one.dtype) for name, one in spec.arrays.items()}
        weights = np.ones(shape, np.float32)
        placed = engine.place(HostBatches({**arrays, WEIGHT: weights}, weights, 1))
        stages.run("compile", lambda: engine.compile(placed))
        for number in range(steps):
            stages.run(f"step {number + 1}", lambda: engine.train_steps(placed, 0).read())
    return stages, size


def _save(engine: Engine, folder: Path) -> None:
    storage.write(folder, Content(0, engine.shards(), {}, _ABOUT, passing=True))


def main() -> int:
    """Prints the table; the exit code is 1 where a peak of building, saving or loading is more than `--most`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=0, help="of training, after the state is loaded")
    parser.add_argument("--most", type=float, default=1.15, help="times the state that a peak may be")
    given, overrides = parser.parse_known_args()
    measured(compose(*_CONFIG, *_DATA, *overrides, *_SMALL), given.steps)
    gc.collect()
    libraries = now()
    stages, size = measured(compose(*_CONFIG, *_DATA, *overrides), given.steps)
    table = Table("stage", "peak MiB", "of the state", "s")
    for name, (peak, seconds) in stages.rows.items():
        beside = peak - libraries
        table.add_row(name, f"{beside / _MIB:,.0f}", f"{beside / size:.3f}", f"{seconds:.1f}")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"state: {size / _MIB:,.0f} MiB; libraries and data: {libraries / _MIB:,.0f} MiB")
    worst = max(stages.rows[name][0] for name in ("build", "save", "load"))
    return int((worst - libraries) / size > given.most)


if __name__ == "__main__":
    sys.exit(main())

"""Small configs that are really run on this machine's virtual CPU devices, compared with their plans.

The plan of a config by the CPU's compiler is that of `python -m runner.plan`, in a process that runs nothing. The plan
by arithmetic has no figures of CPUs: it estimates what a program for accelerators holds.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks.plan_errors import DIFFERENT, Errors
from benchmarks.plan_rows import planned
from runner.cli.notebook import compose
from runner.data import loading
from runner.data.base import WEIGHT
from runner.engine import make_engine, registry
from runner.engine.base import HostBatches
from runner.task.base import DataSpec
from runner.task.registry import make_task

# Small models of several kinds on several meshes, all really run; sizes that a step of some 0.1 s has on two cores.
_TEXT = ("task=language_model", "task.sample.prompt=null", "dataset=synthetic", "dataset.batch_size=16")
_HERE: Mapping[str, tuple[str, ...]] = {
    "gpt, data": (*_TEXT, "model=gpt", "task.vocabulary=1024", "dataset.length=128", "mesh.axes={batch:8}"),
    "gpt, fsdp, remat": (
        *_TEXT,
        *("model=gpt", "model.dim=256", "model.remat=full", "task.vocabulary=1024", "dataset.length=256"),
        *("mesh.axes={batch:8}", "layout=fsdp"),
    ),
    "gpt, tensor": (
        *_TEXT,
        *("model=gpt", "model.dim=256", "model.heads=8", "task.vocabulary=2048", "dataset.length=128"),
        *("mesh.axes={batch:2,model:4}", "layout=fsdp_megatron"),
    ),
    "gpt, whole logits": (
        *_TEXT,
        *("model=gpt", "model.fused_head=false", "task.vocabulary=8192", "dataset.length=128", "mesh.axes={batch:8}"),
        "layout=fsdp",
    ),
    "llama, scan": (
        *_TEXT,
        *("model=gpt", "model.positions=rotary", "model.norm=rms", "model.activation=swiglu", "model.bias=false"),
        *("model.scan=true", "model.depth=8", "task.vocabulary=1024", "dataset.length=256", "mesh.axes={batch:4}"),
        *("layout=fsdp", "model.remat=full"),
    ),
    "gpt, one device": (
        *_TEXT,
        "model=gpt",
        "model.depth=2",
        "task.vocabulary=512",
        "dataset.length=64",
        "mesh.axes={batch:1}",
    ),
    "gpt, accumulation": (
        *_TEXT,
        *("model=gpt", "task.vocabulary=1024", "dataset.length=256", "mesh.axes={batch:4}", "layout=fsdp"),
        "trainer.accumulate_steps=4",
    ),
    "vit": (
        "model=vit",
        "model.patch=2",
        "dataset=digits",
        "dataset.batch_size=256",
        "mesh.axes={batch:8}",
        "layout=fsdp",
    ),
    "mlp": (
        "model=mlp",
        "model.hidden=[2048,2048]",
        "dataset=digits",
        "dataset.batch_size=1024",
        "mesh.axes={batch:8}",
    ),
    "convnet": ("model=convnet", "dataset=digits", "dataset.batch_size=512", "mesh.axes={batch:4}"),
}
# Figures of a virtual CPU device, only to have a plan by arithmetic: memory is what is compared.
_CPU = (
    "hardware=h100",
    "hardware.name=cpu_device",
    "hardware.kind=cpu",
    "hardware.target=null",
    "hardware.peak_tflops.float32=0.03",
)
_STEPS = 5


def overrides_of(name: str) -> tuple[str, ...]:
    """Returns the command line of a config of `_HERE`."""
    return ("engine=jax", "optimizer=adamw", "trainer.steps=10", "engine.compilation_cache=false", *_HERE[name])


def compiled(name: str) -> float:
    """Returns the memory of a device in MiB, as `python -m runner.plan` has it from the CPU's compiler.

    Raises:
      subprocess.CalledProcessError: the command fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "runner.plan", *overrides_of(name), "mesh.device=cpu"]
        subprocess.run([*command, f"hydra.run.dir={folder}/run"], capture_output=True, text=True, check=True)
        program = json.loads((Path(folder) / "run" / "plan.json").read_text())["program"]
    return float(program["argument_bytes"] + program["temporary_bytes"]) / 2**20


def measured(name: str) -> dict[str, float]:
    """Runs a config of `_HERE` on virtual CPU devices, in this process.

    Returns:
      Its peak memory per device by XLA and that of the plan by arithmetic, in MiB; and the seconds of a step: real,
      and by the plan's FLOPs and bytes.
    """
    overrides = overrides_of(name)
    config = compose(*overrides, "mesh.device=cpu")
    registry.prepare(config)
    data = loading.load(config.dataset, config.trainer.seed, task=config.task)
    task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
    spec = DataSpec(task.arrays, task)
    engine = make_engine(config, spec, 1)
    engine.build()
    shape = (1, config.dataset.batch_size)
    arrays = {key: np.zeros((*shape, *array.shape), array.dtype) for key, array in spec.arrays.items()}
    weights = np.ones(shape, np.float32)
    placed = engine.place(HostBatches({**arrays, WEIGHT: weights}, weights, 1))
    engine.compile(placed)
    cost = engine.program_cost()
    assert cost is not None
    seconds = []
    for _ in range(_STEPS):
        begun = time.monotonic()
        engine.train_steps(placed, 0).read()
        seconds.append(time.monotonic() - begun)
    # After the run: a plan needs one device only, and JAX makes its devices once per process.
    plan, _ = planned((*overrides, *_CPU))
    assert plan.forecast is not None
    return {
        "xla": (cost.argument_bytes + cost.temporary_bytes) / 2**20,
        "plan": plan.forecast.peak_bytes / 2**20,
        "seconds": min(seconds),
        # All virtual devices share the cores: what is ordered is the work of all of them.
        "planned_seconds": math.prod(plan.axes.values()) * statistics.mean(plan.forecast.step_seconds),
    }


def run() -> tuple[list[list[str]], dict[str, Errors]]:
    """Runs each config of `_HERE` in a process of its own; returns a table and the errors of the memory.

    Raises:
      SystemExit: a config failed; its last line was printed.
    """
    lines = [["config", "peak MiB of XLA", "plan, compiled", "plan, arithmetic", "step ms", "rank by plan"]]
    runs: dict[str, dict[str, float]] = {}
    for name in _HERE:
        command = [sys.executable, "-m", "benchmarks.plans", "--child", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs[name] = json.loads(done.stdout.splitlines()[-1]) | {"compiled": compiled(name)}
        except subprocess.CalledProcessError as error:
            print(f"{name}: {error.stderr.strip().splitlines()[-1]}", file=sys.stderr, flush=True)
    if len(runs) < len(_HERE):
        raise SystemExit(1)
    ranks = sorted(runs, key=lambda name: runs[name]["planned_seconds"])
    for name in sorted(runs, key=lambda name: runs[name]["seconds"]):
        run = runs[name]
        cells = [
            name,
            f"{run['xla']:.1f}",
            f"{run['compiled']:.1f}",
            f"{run['plan']:.1f}",
            f"{1000 * run['seconds']:.1f}",
            str(ranks.index(name) + 1),
        ]
        lines.append(cells)
    found = {}
    for depth, key in (("CPU compiler", "compiled"), ("arithmetic", "plan")):
        errors = Errors.of([(run[key], run["xla"]) for run in runs.values()])
        if errors:
            found[f"memory on this CPU, {depth} compared with XLA"] = errors
    ordered = [_in_order(first, second) for first, second in combinations(runs.values(), 2)]
    known = [answer for answer in ordered if answer is not None]
    lines.append(["pairs that differ by 20%, in the right order", f"{sum(known)} of {len(known)}", "", "", "", ""])
    return lines, found


def _in_order(first: Mapping[str, float], second: Mapping[str, float]) -> bool | None:
    """Returns whether the plans order two runs as their step times do; None if these differ by less than 20%."""
    true = first["seconds"] / second["seconds"]
    if max(true, 1 / true) < DIFFERENT:
        return None
    return (true > 1) == (first["planned_seconds"] > second["planned_seconds"])

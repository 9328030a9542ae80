"""Runs in a process of its own: trains with Keras's optimizers on a mesh and with stock Keras, and compares them.

Usage: python -m tests.optim.keras_worker JSON, with JSON {"engine": name, "steps": number, "runs": [{"class_name":
..., "options": {...}, "keys": {dotted key of the config: value}, "rate": ..., or "optimizer": {all keys of the
group}}]}; prints a line of JSON: for each run what `compared` returns.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from runner.config import search_path
from runner.config.build import build
from runner.config.options import arranged
from runner.config.schema import LayoutConfig, OptimizerConfig, RunConfig
from runner.data.base import Array
from runner.engine import make_engine, registry
from runner.engine.base import Engine, HostBatches
from runner.layout.paths import is_slot
from runner.verify.request import Request
from tests.configs import with_keys
from tests.engine import cases

BATCH = 16
DATA = cases.data()


def config_of(request: dict[str, Any], run: dict[str, Any]) -> RunConfig:
    """Returns the config of one run: a smooth MLP with kernels of odd and even dims."""
    content = run.get("optimizer")
    if content is None:
        content = {"name": "keras", "class_name": run["class_name"], "learning_rate": run.get("rate", 0.01)}
    optimizer = build(OptimizerConfig, arranged("optimizer", content | run.get("options", {})), "optimizer")
    made = cases.config({"batch": 4, "model": 2}, optimizer, hidden=[32, 16], activation="tanh")
    layout = build(LayoutConfig, search_path.content_of("layout/fsdp_megatron"), "layout")
    keys = {"engine.name": request["engine"], "layout": layout, "dataset.batch_size": BATCH}
    return with_keys(made, keys | run.get("keys", {}))


def trained(
    engine: Engine, batches: HostBatches, first: int, last: int, norms: dict[str, float] | None = None
) -> Array:
    """Trains on the batches of some steps and returns the losses; adds the first step's norms of gradients."""
    rows = slice(first, last)
    arrays = {name: array[rows] for name, array in batches.arrays.items()}
    stack = HostBatches(arrays, batches.weights[rows], last - first)
    metrics = engine.train_steps(engine.place(stack), first).read()
    for name, sums in metrics.sums.items():
        if norms is not None and name.startswith("gradient_norm"):
            norms[name] = float(sums[0] / metrics.weight[0])
    return np.asarray(metrics.sums["loss"] / metrics.weight)


def started(config: RunConfig, steps: int, state: dict[str, Array]) -> Engine:
    """Returns a built engine with a state; slots that it lacks begin as in a new run."""
    engine = make_engine(config, DATA, steps)
    engine.build()
    engine.load_state(engine.state() | state)
    return engine


def reference_of(config: RunConfig, batches: HostBatches) -> Any:
    """Returns the single device's side, which is imported with its engine's library."""
    request = Request(config, DATA, batches.steps, batches)
    if registry.has_keras_3(config.engine.name):
        from runner.verify.jax_reference import JaxReference

        return JaxReference(request)
    from runner.verify.keras_reference import KerasReference

    return KerasReference(request)


def compared(config: RunConfig, steps: int) -> dict[str, Any]:
    """Trains on the mesh and with stock Keras on one device.

    Returns:
      `off`: path -> largest difference of any element, relative to the larger of the array's largest magnitude and of
      its change; `slots`: shapes by path; `specs` by path; `bytes`: by path what the plan says, what the engine says
      and what the first device holds; `norms` of the gradients of the first step, as logged, and `expected norms` of
      each variable's; `moved`: largest change of each variable in the first half; `resumed`: paths
      whose values differ after a resume in the middle.
    """
    batches = cases.batches(steps, BATCH)
    reference = reference_of(config, batches)
    expected = reference.train(steps)
    initial = {path.removeprefix("initial/"): v for path, v in expected.items() if path.startswith("initial/")}
    engine = started(config, steps, initial)
    first_slots = {path: value for path, value in engine.state().items() if is_slot(path)}
    half = steps // 2
    norms: dict[str, float] = {}
    losses = [trained(engine, batches, 0, half, norms)]
    middle = engine.state()
    losses.append(trained(engine, batches, half, steps))
    state = engine.state()
    resumed = started(config, steps, middle)
    trained(resumed, batches, half, steps)
    after = resumed.state()
    off = {"loss": _off(np.concatenate(losses), expected["loss"], expected["loss"])}
    missing = []
    for path, value in state.items():
        key = path if is_slot(path) or path not in initial else f"final/{path}"
        if key not in expected:
            missing.append(path)
            continue
        off[path] = _off(value, expected[key], initial.get(path, first_slots.get(path, expected[key])))
    planned = make_engine(config, DATA, steps, planning=True)
    planned.build()
    plan = {path: info.bytes_per_device for path, info in planned.variables().items()}
    told = engine.variables()
    return {
        "off": off,
        "missing": missing + [key for key in expected if is_slot(key) and key not in state],
        "slots": {path: list(value.shape) for path, value in first_slots.items()},
        "specs": {path: [str(axis) for axis in told[path].spec] for path in first_slots},
        "bytes": {path: [plan[path], told[path].bytes_per_device, _held(engine, path)] for path in told},
        "resumed": [path for path, value in state.items() if not np.array_equal(value, after[path])],
        "moved": {path: float(np.abs(middle[path] - value).max()) for path, value in initial.items()},
        "norms": norms,
        "expected norms": {
            key.removeprefix("gradient/"): float(np.linalg.norm(value))
            for key, value in expected.items()
            if key.startswith("gradient/")
        },
        "learned": float(losses[0][0] - losses[-1][-1]),
    }


def _off(value: Array, expected: Array, before: Array) -> float:
    scale = max(float(np.abs(expected).max()), float(np.abs(expected - before).max()), 1e-12)
    return float(np.abs(value - expected).max()) / scale


def _held(engine: Any, path: str) -> int:
    """Returns the bytes of a variable that the first device holds."""
    array = engine._tree.by_path(engine._state)[path] if hasattr(engine, "_tree") else engine._state.saved[path]
    if hasattr(array, "addressable_shards"):
        return int(array.addressable_shards[0].data.nbytes)
    from tensorflow.experimental import dtensor

    return int(np.prod(dtensor.unpack(array.read_value())[0].shape)) * 4


def main() -> None:
    """Compares each run of the request and prints JSON."""
    request = json.loads(sys.argv[1])
    results = {}
    for run in request["runs"]:
        config = config_of(request, run)
        registry.load(config)
        registry._prepare_devices(config)
        name = run.get("name") or run["class_name"]
        results[name] = compared(config, request["steps"])
    print(json.dumps(results))


if __name__ == "__main__":
    main()

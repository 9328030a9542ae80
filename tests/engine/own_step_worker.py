"""Trains a custom step on a mesh, in a process of its own, and writes what it found.

Usage: python -m tests.engine.own_step_worker OUT.npz
"""

import sys
from pathlib import Path

import numpy as np

from runner.config.schema import LayoutConfig, RuleConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec
from runner.engine import make_engine, registry
from runner.engine.base import HostBatches
from runner.engine.common import Engine
from runner.task.base import DataSpec
from runner.task.registry import make_task
from tests.configs import with_keys
from tests.engine import cases

AXES = {"batch": 4, "model": 2}
STEPS, BATCH, PADDED, SIZE = 6, 16, 5, 8
ARRAYS = {"x": ArraySpec((SIZE,), "float32"), "y": ArraySpec((), "float32")}
RULES = [RuleConfig("(net|slow)/d1/kernel", [None, "model"])]


def config(broken: str = "") -> RunConfig:
    """The config of a run."""
    options = {"target": "tests.task.own_steps.Line", "arguments": {"broken": broken}, "minimize": ["error"]}
    task = TaskConfig("step", target=["y"], options=options)
    keys = {"task": task, "layout": LayoutConfig(rules=RULES), "engine.name": "jax", "dataset.batch_size": BATCH}
    return with_keys(cases.config(AXES), {**keys, "engine.compilation_cache": False})


def batches() -> HostBatches:
    """Drawn batches; the last step's end is padding of another size."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(STEPS, BATCH, SIZE)).astype(np.float32)
    weight = np.ones((STEPS, BATCH), np.float32)
    weight[-1, -PADDED:] = 0
    return HostBatches({"x": x, "y": np.tanh(x.sum(-1)), WEIGHT: weight}, weight, STEPS)


def spec(made: RunConfig) -> DataSpec:
    """What an engine is built for."""
    return DataSpec(ARRAYS, make_task(made.task, ARRAYS))


def built(made: RunConfig) -> Engine:
    """The engine on the mesh."""
    engine = make_engine(made, spec(made), STEPS)
    engine.build()
    return engine


def part(given: HostBatches, start: int, stop: int) -> HostBatches:
    """Some of the steps."""
    arrays = {name: array[start:stop] for name, array in given.arrays.items()}
    return HostBatches(arrays, given.weights[start:stop], stop - start)


def on_mesh(made: RunConfig) -> dict[str, Array]:
    """Trains an engine: the final state, and that of a run that was resumed half-way."""
    engine, given = built(made), batches()
    found = {f"spec:{path}": np.asarray(str(info.spec)) for path, info in engine.variables().items()}
    engine.train_steps(engine.place(given), 0).read()
    found |= {f"state:{path}": value for path, value in engine.state().items()}
    first = built(made)
    first.train_steps(first.place(part(given, 0, 3)), 0).read()
    second = built(made)
    second.load_state(first.state())
    second.train_steps(second.place(part(given, 3, STEPS)), 3).read()
    return found | {f"resumed:{path}": value for path, value in second.state().items()}


def errors() -> dict[str, Array]:
    """What classes that break the rules are told."""
    found = {}
    for broken in ("not built", "listed", "loses the optimizer", "shape", "metrics"):
        try:
            built(config(broken))
        except Exception as error:
            found[f"error:{broken}"] = np.asarray(f"{type(error).__name__}: {error}")
    engine = built(config("other inputs"))
    # As an export does.
    engine._data.task.keeps_outputs = True
    try:
        engine.evaluate([part(batches(), 0, 1)], keep_outputs=True)
    except Exception as error:
        found["error:other inputs"] = np.asarray(f"{type(error).__name__}: {error}")
    return found


def main() -> None:
    """Writes what it found."""
    out = Path(sys.argv[1])
    made = config_with_devices()
    found = on_mesh(made) | errors()
    np.savez(out, **found)


def config_with_devices() -> RunConfig:
    """Makes the devices; returns the config."""
    made = with_keys(cases.config(AXES), {"engine.name": "jax"})
    registry.prepare(made)
    registry.load("jax")
    registry.ENGINES["jax"].module("devices").prepare_devices(made.mesh)
    return config()


if __name__ == "__main__":
    main()

"""Runs in a process of its own: trains small transformers on one mesh, and writes what it found.

Usage: python -m tests.engine.gpt_worker OUT.npz JSON, with JSON {"engine": "jax", "keras_dtensor" or "plain", "mesh":
..., "runs": [[name of OPTIONS, options of the model beside], ...], "brief": without gradients and an evaluation}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from runner.engine import registry
from runner.errors import ConfigError
from tests.engine import gpt_cases as cases


def on_mesh(engine_name: str, name: str, mesh: str, more: dict[str, Any], *, brief: bool) -> dict[str, Any]:
    """Returns losses, final weights, and unless `brief` first gradients and an evaluation; or the `error`."""
    from runner.engine import make_engine

    config = cases.config(engine_name, name, mesh, **more)
    registry.load(config)
    batches = cases.batches(name)
    engine = make_engine(config, cases.data(name), batches.steps)
    try:
        engine.build()
        shapes = {path: info.shape for path, info in engine.variables().items() if "optimizer/" not in path}
        state = engine.state()
        engine.load_state(state | as_stored(cases.start(unstacked(shapes)), shapes))
        gradients = {} if brief else engine.gradients(batches, 0)
        metrics = engine.train_steps(engine.place(batches), 0).read()
        evaluated = {} if brief else {"eval": np.array(engine.evaluate([cases.first(batches)]).loss)}
    except ConfigError as error:
        return {"error": np.array(str(error))}
    found = {path: value for path, value in engine.state().items() if path in shapes}
    graded = {f"gradient/{path}": value for path, value in by_block(gradients).items()}
    return {
        "loss": metrics.sums["loss"] / metrics.weight,
        **evaluated,
        **graded,
        **by_block(found),
    }


def unstacked(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes by the paths of a model without a scan."""
    found: dict[str, tuple[int, ...]] = {}
    for path, shape in shapes.items():
        if path.startswith("blocks/"):
            found |= {path.replace("blocks", f"block_{index}", 1): shape[1:] for index in range(shape[0])}
        else:
            found[path] = shape
    return found


def as_stored(values: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Returns values with those of the blocks stacked, where the model has them so."""
    return {
        path: np.stack([values[path.replace("blocks", f"block_{index}", 1)] for index in range(shape[0])])
        if path.startswith("blocks/")
        else values[path]
        for path, shape in shapes.items()
    }


def by_block(values: dict[str, Any]) -> dict[str, Any]:
    """Returns values with stacked ones block by block."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        if path.startswith("blocks/"):
            found |= {path.replace("blocks", f"block_{index}", 1): each for index, each in enumerate(value)}
        else:
            found[path] = value
    return found


def plain(name: str) -> dict[str, Any]:
    """Returns the same of the implementation without this package."""
    from tests.engine import gpt_plain

    config = cases.config("jax", name, "single")
    registry.load(config)
    from runner.engine import make_engine

    engine = make_engine(config, cases.data(name), 1, planning=True)
    engine.build()
    shapes = {path: info.shape for path, info in engine.variables().items() if "optimizer/" not in path}
    arrays = cases.batches(name).arrays
    return gpt_plain.train(cases.start(shapes), arrays, cases.OPTIONS[name], 4, config.model.options["depth"], 0.01)


def main() -> None:
    """Runs every case of the request and writes `<name>:<array>`, numbered where options are given."""
    request = json.loads(sys.argv[2])
    found: dict[str, Any] = {}
    for name, more in request["runs"]:
        key = ",".join([name, *(f"{option}={value}" for option, value in more.items())])
        told = {"brief": request.get("brief", False)}
        if request["engine"] == "plain":
            got = plain(name)
        else:
            got = on_mesh(request["engine"], name, request["mesh"], more, **told)
        found |= {f"{key}:{path}": value for path, value in got.items()}
    np.savez(sys.argv[1], **found)


if __name__ == "__main__":
    main()

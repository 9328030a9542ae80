"""One side of a verification, in a process of its own: `python -m runner.verify.worker SIDE FOLDER`."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from runner.config.errors import ConfigError, EngineError
from runner.engine.dtensor import environment as dtensor
from runner.engine.jax import environment as jax_environment
from runner.engine.libraries import load_keras, load_tensorflow
from runner.verify.compare import TWINS, noise
from runner.verify.parity import second
from runner.verify.request import Request, read_arrays, read_request


def main() -> None:
    """Runs the side that the command line names; says in `<side>.json` how it ended."""
    side, folder = sys.argv[1], Path(sys.argv[2])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    outcome: dict[str, object]
    try:
        outcome = {"kind": "done", **run_side(side, folder)}
    except ConfigError as error:
        outcome = {"kind": "refused", "text": str(error)}
    except EngineError as error:
        outcome = {"kind": "failed", "text": str(error)}
    (folder / f"{side}.json").write_text(json.dumps(outcome))


def _end_with_parent() -> None:
    """Ends this process when its stdin does, so that it does not outlive the one that waits for it."""
    sys.stdin.read()
    os._exit(1)


def run_side(side: str, folder: Path) -> dict[str, float]:
    """Runs one side and writes its arrays.

    Args:
      side: `reference`, `mesh` or, with the engine of `against`, `against`; the others need the files of the first.
      folder: holds the request.

    Returns:
      What else the comparison states: of the reference, the length of the longest sum and the twins' noise.
    """
    request = read_request(folder)
    if side == "against":
        request = replace(request, config=second(request.config))
    if request.config.engine.name == "jax":
        jax_environment.prepare_environment(request.config)
        load_keras()
    else:
        dtensor.prepare_environment(request.config)
        load_tensorflow()
    return _reference(request, folder) if side == "reference" else _mesh(request, folder, side)


def _reference(request: Request, folder: Path) -> dict[str, float]:
    from runner.verify.reference import make_reference

    reference = make_reference(request)
    terms = reference.longest_sum()
    size = noise(terms, request.config.engine.precision)
    np.savez(folder / "reference.npz", **reference.train())  # type: ignore[arg-type]
    for twin in range(TWINS):
        np.savez(folder / f"twin_{twin}.npz", **reference.train(size, seed=twin + 1))  # type: ignore[arg-type]
    return {"terms": terms, "noise": size}


def _mesh(request: Request, folder: Path, side: str) -> dict[str, float]:
    from runner.verify.on_mesh import train

    held = read_arrays(folder / "reference.npz")
    start = {key.removeprefix("initial/"): value for key, value in held.items() if key.startswith("initial/")}
    np.savez(folder / f"{side}.npz", **train(request, start))  # type: ignore[arg-type]
    return {}


if __name__ == "__main__":
    main()

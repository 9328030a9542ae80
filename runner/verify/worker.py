"""One side of a verification, in a process of its own: `python -m runner.verify.worker SIDE FOLDER`."""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.data.base import Array
from runner.engine import registry
from runner.errors import ConfigError, DataError, EngineError
from runner.host.late import late
from runner.processes import lifecycle as processes
from runner.processes.place import from_launcher
from runner.processes.team import current
from runner.verify.children import outcome_file
from runner.verify.compare import MORE_RUNS, PERTURBED_RUNS
from runner.verify.on_mesh import train
from runner.verify.parity import second
from runner.verify.reference import Reference
from runner.verify.request import Request, read_arrays, read_config, read_request, write_arrays
from runner.verify.rounding import noise
from runner.verify.spread import spread

if TYPE_CHECKING:
    from runner.verify import jax_reference, keras_reference
else:  # each imports its engine's library, for which the environment must be set
    jax_reference = late("runner.verify.jax_reference")
    keras_reference = late("runner.verify.keras_reference")

_LONGEST = 600  # characters of a library's error that are told
_ON_MESH = ("mesh", "against")  # sides that make the mesh's devices; the others compute on one
_POLL_S = 0.02
_PATIENT_S = 1e6
_SELDOM = 200_000, 20, 20  # a trace makes next to no garbage, and many objects to search for it


def main() -> None:
    """Runs the side that the command line names; says in `<side>.json` how it ended."""
    side = sys.argv[1]
    folder = Path(sys.argv[2])
    gc.set_threshold(*_SELDOM)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    outcome: dict[str, object]
    try:
        with processes.explained():
            outcome = {"kind": "done", **run_side(side, folder)}
    except ConfigError as error:
        outcome = {"kind": "refused", "text": str(error)}
    except (DataError, EngineError) as error:
        outcome = {"kind": "failed", "text": str(error)}
    except Exception as error:  # whatever a library raises: in one line, as a run says it
        traceback.print_exc()
        outcome = {"kind": "failed", "text": f"{type(error).__name__}: {_told(str(error))}"}
    place = from_launcher()
    (folder / outcome_file(side, place)).write_text(json.dumps(outcome))
    failed = outcome["kind"] != "done"
    if failed:
        processes.failed(str(outcome["text"]), own=True)
    processes.leave(int(failed))


def _told(text: str) -> str:
    """Returns what an error says, without the places in files that AutoGraph puts before it."""
    lines = [line.strip() for line in text.splitlines()]
    places = {n + after for n, line in enumerate(lines) if line.startswith('File "') for after in (0, 1)}
    kept = [line for n, line in enumerate(lines) if n not in places and line != "in user code:"]
    return " ".join(" ".join(kept).split())[:_LONGEST]


def _end_with_parent() -> None:
    """Ends this process when its stdin does, so that it does not outlive the one that waits for it."""
    sys.stdin.read()
    os._exit(1)


def run_side(side: str, folder: Path) -> dict[str, float | str]:
    """Runs one side and writes its arrays.

    Args:
      side: `reference`, `mesh` or, where another engine is compared with, `against`; `again` widens what one device
        differs by from itself. The others need the files of the first.
      folder: holds the request.

    Returns:
      What else the comparison states: of the reference, the length of the longest sum and the noise of its perturbed
      runs.
    """
    config = read_config(folder)
    if side == "against":
        config = second(config)
    if from_launcher() is not None:
        # Process 0's sides may take turns; a child that dies ends its parent, which the others hear of.
        processes.join(replace(config.cluster, start_timeout=_PATIENT_S), {"the side": side})
    if side in _ON_MESH:
        registry.prepare(config)
    registry.load(config)
    request = replace(read_request(folder), config=config)
    if side == "again":
        return _again(request, folder)
    return _reference(request, folder) if side == "reference" else _mesh(request, folder, side)


def make_reference(request: Request) -> Reference:
    """Returns the single device that the config's engine is held against; its library is imported.

    Raises:
      ConfigError: the builder fails, or made a model that no mesh can train.
    """
    if registry.has_keras_3(request.config.engine.name):
        return jax_reference.JaxReference(request)
    return keras_reference.KerasReference(request)


def _reference(request: Request, folder: Path) -> dict[str, float | str]:
    reference = make_reference(request)
    size = noise(reference.longest_sum, reference.precision)
    most = request.config.verify.seconds
    trained = reference.train(request.batches.steps, seconds=math.inf if most is None else most)
    steps = len(trained["loss"])
    given = reference.points(trained)
    single = {**trained, **given, **reference.at_points(given)}
    write_arrays(folder / "reference.npz", {**single, **reference.exact(single, size)})
    seeds = range(1, PERTURBED_RUNS + 1)
    perturbed = ({**reference.train(steps, size, seed), **reference.at_points(given, size, seed)} for seed in seeds)
    write_arrays(folder / "spread.npz", spread(single, perturbed))
    return {"terms": reference.longest_sum, "noise": size, "precision": reference.precision}


def _again(request: Request, folder: Path) -> dict[str, float | str]:
    """Adds more perturbed runs of the training from the start."""
    reference = make_reference(request)
    size = noise(reference.longest_sum, reference.precision)
    held = read_arrays(folder / "reference.npz")
    seeds = range(PERTURBED_RUNS + 1, PERTURBED_RUNS + 1 + MORE_RUNS)
    wider = spread(held, (reference.train(len(held["loss"]), size, seed) for seed in seeds))
    before = read_arrays(folder / "spread.npz")
    widest = {key: np.maximum(value, wider[key]) if key in wider else value for key, value in before.items()}
    write_arrays(folder / "spread.npz", widest)
    return {}


def _mesh(request: Request, folder: Path, side: str) -> dict[str, float | str]:
    file = folder / "reference.npz"

    def reference() -> dict[str, Array]:
        while not file.exists():  # the process that started both ends this one where the other fails
            time.sleep(_POLL_S)
        return read_arrays(file)

    found = train(request, reference, ahead=current().broadcast("compiles ahead", lambda: not file.exists()))
    if current().is_first:
        write_arrays(folder / f"{side}.npz", found)
    return {}


if __name__ == "__main__":
    main()

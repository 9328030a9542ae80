"""One side of a verification, in its own process: `python -m runner.verify.worker SIDE FOLDER`."""

from __future__ import annotations

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

from runner.cluster import lifecycle as processes
from runner.cluster.place import from_launcher
from runner.cluster.team import current
from runner.config.schema import MeshConfig
from runner.data.base import Array
from runner.engine import registry
from runner.errors import ConfigError, DataError, EngineError
from runner.host.late import late
from runner.layout.mesh import device_kind
from runner.verify.children import PERTURBED, result_file
from runner.verify.compare import MORE_RUNS, PERTURBED_RUNS, spread
from runner.verify.on_mesh import train
from runner.verify.reference import Reference
from runner.verify.request import Request, read_arrays, read_config, read_request, write_arrays
from runner.verify.rounding import noise

if TYPE_CHECKING:
    from runner.verify import jax_reference, keras_reference, own_step_reference
else:
    # Each imports its engine's library, and the environment must be set before.
    jax_reference = late("runner.verify.jax_reference")
    own_step_reference = late("runner.verify.own_step_reference")
    keras_reference = late("runner.verify.keras_reference")

# Characters of a library's error that are shown: enough for the cause of most, on a few lines of a terminal.
_MAX_ERROR = 600
# Products of float32 in float32. GPUs and TPUs round their operands to 10 or 7 bits by default, which the tolerance
# does not include: on one H200, two programs of the same gpt differed by 1.2 times the tolerance. With this setting
# its loss after 20 steps was that of the CPU to seven digits.
_EXACT_PRODUCTS = ("JAX_DEFAULT_MATMUL_PRECISION", "highest")
# As in `children`: not noticed beside a training, and cheap.
_POLL_S = 0.02
# Without a limit in practice: process 0 may run its sides in turns, so another process's child waits as long as a
# whole side takes.
_START_TIMEOUT_S = 1e6


def main() -> None:
    """Runs the side that the command line names and writes its result to `<side>.json`."""
    side = sys.argv[1]
    folder = Path(sys.argv[2])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    result: dict[str, object]
    try:
        with processes.explained():
            result = {"kind": "done", **run_side(side, folder)}
    except ConfigError as error:
        result = {"kind": "invalid", "text": str(error)}
    except (DataError, EngineError) as error:
        result = {"kind": "failed", "text": str(error)}
    except Exception as error:
        # Whatever a library raises ends as one line, as in a run; the log has the traceback.
        traceback.print_exc()
        result = {"kind": "failed", "text": f"{type(error).__name__}: {_in_one_line(str(error))}"}
    (folder / result_file(side, from_launcher())).write_text(json.dumps(result))
    has_failed = result["kind"] != "done"
    if has_failed:
        processes.failed(str(result["text"]), own=True)
    processes.leave(int(has_failed))


def _in_one_line(text: str) -> str:
    """Returns an error's text as one line, without the places in files that AutoGraph puts before it."""
    kept = []
    is_code_of_place = False
    for line in text.splitlines():
        stripped = line.strip()
        is_place = stripped.startswith('File "')
        # AutoGraph writes each place on two lines: the file and its line number, then the code there.
        if not is_place and not is_code_of_place and stripped != "in user code:":
            kept.append(stripped)
        is_code_of_place = is_place
    return " ".join(" ".join(kept).split())[:_MAX_ERROR]


def _end_with_parent() -> None:
    """Ends this process when its stdin closes, so that it does not outlive the process that waits for it."""
    sys.stdin.read()
    os._exit(1)


def run_side(side: str, folder: Path) -> dict[str, float | str]:
    """Runs one side, `reference`, `mesh` or `perturbed`, and writes its arrays beside the request.

    The mesh waits for the reference's arrays; perturbed runs of the single device are added to them. Returned are, of
    the reference, the length of the longest sum, the noise of its perturbed runs, and the precision.
    """
    config = read_config(folder)
    if from_launcher() is not None:
        # A child that dies ends its parent, of which the other processes hear: no timeout is needed for that.
        processes.join(replace(config.cluster, start_timeout=_START_TIMEOUT_S), {"the side": side})
    compute_exactly(config.mesh)
    if side == "mesh":
        registry.prepare(config)
    registry.load(config)
    request = replace(read_request(folder), config=config)
    if side == "reference":
        return _reference(request, folder)
    if side == PERTURBED:
        return _perturbed(request, folder)
    return _mesh(request, folder)


def compute_exactly(config: MeshConfig) -> None:
    """Makes JAX compute float32 products in float32 on GPUs and TPUs, unless the environment says otherwise.

    Must run before JAX's first import. On CPUs they are computed so anyway.
    """
    if device_kind(config) != "cpu":
        os.environ.setdefault(*_EXACT_PRODUCTS)


def make_reference(request: Request) -> Reference:
    """Returns the single device that the config's engine is compared with; its library must be loaded.

    Raises:
      ConfigError: the builder fails, or made a model that no mesh can train.
    """
    if request.data.task.own_step:
        return own_step_reference.OwnStepReference(request)
    if registry.ENGINES[request.config.engine.name].full:
        return jax_reference.JaxReference(request)
    return keras_reference.KerasReference(request)


def _reference(request: Request, folder: Path) -> dict[str, float | str]:
    """Writes the single device's arrays, then how far its perturbed runs differ from them."""
    reference = make_reference(request)
    size = noise(reference.longest_sum, reference.precision)
    seconds = request.config.verify.seconds
    trained = reference.train(request.batches.steps, seconds=math.inf if seconds is None else seconds)
    steps = len(trained["loss"])
    states = reference.points(trained)
    single = {**trained, **states, **reference.at_points(states)}
    # The mesh's side waits for this file, so it comes before the perturbed runs.
    write_arrays(folder / "reference.npz", {**single, **reference.exact(single, size)})

    def perturbed(seed: int) -> dict[str, Array]:
        return {**reference.train(steps, size, seed), **reference.at_points(states, size, seed)}

    # Made one at a time: the arrays of several runs of a large model may not fit in memory.
    runs = map(perturbed, range(1, PERTURBED_RUNS + 1))
    write_arrays(folder / "spread.npz", spread(single, runs))
    return {"terms": reference.longest_sum, "noise": size, "precision": reference.precision}


def _perturbed(request: Request, folder: Path) -> dict[str, float | str]:
    """Adds perturbed runs of the training from the start, with other seeds, to the differences in `spread.npz`."""
    reference = make_reference(request)
    size = noise(reference.longest_sum, reference.precision)
    single = read_arrays(folder / "reference.npz")
    steps = len(single["loss"])
    seeds = range(PERTURBED_RUNS + 1, PERTURBED_RUNS + 1 + MORE_RUNS)
    further = spread(single, (reference.train(steps, size, seed) for seed in seeds))
    widest = read_arrays(folder / "spread.npz")
    for key, value in widest.items():
        if key in further:
            widest[key] = np.maximum(value, further[key])
    write_arrays(folder / "spread.npz", widest)
    return {}


def _mesh(request: Request, folder: Path) -> dict[str, float | str]:
    file = folder / "reference.npz"

    def wait_for_reference() -> dict[str, Array]:
        # No timeout: the process that started both sides ends this one if the other fails.
        while not file.exists():
            time.sleep(_POLL_S)
        return read_arrays(file)

    # All processes must decide alike, or one would wait in a collective for the others.
    compiles_first = current().broadcast("compiles first", lambda: not file.exists())
    arrays = train(request, wait_for_reference, compiles_first=compiles_first)
    if current().is_first:
        write_arrays(folder / "mesh.npz", arrays)
    return {}


if __name__ == "__main__":
    main()

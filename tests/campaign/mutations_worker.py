"""Verifies a scene's mesh again and again in one process: `python -m tests.campaign.mutations_worker FOLDER`.

The folder holds the config as `runner.verify.record` writes it, and `jobs.json`, a list of the names of mutations; an
empty name breaks nothing. One device computes once. A line of JSON on stdout tells what came of each job.
"""

import importlib
import json
import re
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from runner.data.base import Array
from runner.errors import ConfigError, DataError, EngineError
from runner.verify import worker
from runner.verify.on_mesh import train
from runner.verify.report import Verification
from runner.verify.request import Request
from tests.campaign.mutations_hooks import Hooks
from tests.campaign.mutations_table import MUTATIONS

JOBS = "jobs.json"
_HOOKS = {
    "jax": ("tests.campaign.mutations_jax", "JaxHooks"),
    "keras_dtensor": ("tests.campaign.mutations_dtensor", "DTensorHooks"),
}


def suspects(found: Verification) -> tuple[str, ...]:
    """Returns the variables that differ, the worst first; where none does, those that are not verified."""
    if found.failed:
        failed = sorted(found.failed, key=lambda check: (check.ratio, check.relative), reverse=True)
        return tuple(dict.fromkeys(check.variable or check.name for check in failed))
    unverified = [variable for variable in found.variables if not variable.is_verified]
    return tuple(each.variable for each in sorted(unverified, key=lambda each: -each.resolution))


def culprits(found: Verification) -> tuple[str, ...]:
    """Returns the variables of the checks that failed nearest to where an error comes from, in the verdict's order.

    A wrong gradient moves every variable in the end: what counts is whose gradient is wrong, and where none is, what a
    step makes wrong of what it is given.
    """
    failed = [each for each in found.checks if not each.passed and each.variable]
    for kinds in (("gradient", "point"), ("update",)):
        first = {each.variable for each in failed if each.kind in kinds}
        if first:
            return tuple(name for name in suspects(found) if name in first)
    return suspects(found)


class _Scene:
    """One device's arrays, the request and those of the sound mesh."""

    def __init__(self, request: Request) -> None:
        self._config, self._request, self._one_device = request.config, request, worker.computed(request)
        self._sound: dict[str, Array] = {}

    def tried(self, name: str) -> dict[str, Any]:
        """Returns the outcome of a mutation and the variables that the verdict names."""
        aimed = ""
        if name:
            (mutation,) = (each for each in MUTATIONS if each.name == name)
            keys = self._one_device.arrays
            variables = [key.removeprefix("gradient/") for key in keys if key.startswith("gradient/")]
            found = [path for path in variables if re.fullmatch(mutation.path, path)]
            assert found or not mutation.path, f"there is no {mutation.path}"
            aimed = found[0] if mutation.path else ""
            module, hooks_class = _HOOKS[self._config.engine.name]
            hooks: Hooks = getattr(importlib.import_module(module), hooks_class)(self._config)
            try:
                mutation.way(hooks, aimed)
                arrays = train(self._request, self._one_device.arrays)
            finally:
                hooks.patches.undo()
        else:
            arrays = train(self._request, self._one_device.arrays)
        verification = self._one_device.verification(arrays)
        outcome = verification.verdict
        if not name:
            self._sound = arrays
        elif outcome == "verified" and self._is_as_sound(arrays):
            return {"outcome": "equivalent", "aimed": aimed, "first": [], "named": []}
        return {"outcome": outcome, "aimed": aimed, "first": culprits(verification), "named": suspects(verification)}

    def _is_as_sound(self, found: dict[str, Array]) -> bool:
        return set(self._sound) == set(found) and all(
            np.array_equal(self._sound[key], value, equal_nan=True) for key, value in found.items()
        )


def _told(scene: _Scene, name: str) -> dict[str, Any]:
    try:
        return scene.tried(name)
    except ConfigError as error:
        return {"outcome": f"refused: {error}"}
    except (DataError, EngineError) as error:
        return {"outcome": f"failed: {error}"}
    except Exception as error:  # of a mutation that does not fit: said, and counted as one that was not caught
        traceback.print_exc()
        return {"outcome": f"raised: {type(error).__name__}: {error}"[:500]}


def main() -> None:
    """Runs the jobs of a scene, one after the other."""
    folder = Path(sys.argv[1])
    threading.Thread(target=worker._end_with_parent, daemon=True).start()
    scene = _Scene(worker.prepared(folder))
    for number, name in enumerate(json.loads((folder / JOBS).read_text())):
        begun = time.monotonic()
        told = _told(scene, name)
        print(json.dumps({"number": number, **told, "seconds": time.monotonic() - begun}), flush=True)


if __name__ == "__main__":
    main()

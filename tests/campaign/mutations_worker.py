"""Runs one side of a scene, or its mesh again and again: `python -m tests.campaign.mutations_worker FOLDER`.

The folder holds what `runner.verify.request.write_request` wrote and `jobs.json`, a list of `Job`s. Each is run in a
folder of its own beside it, which sees the files of this one, and told of by a line of JSON on stdout.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from runner.engine import registry
from runner.errors import ConfigError, DataError, EngineError
from runner.verify import worker
from runner.verify.request import read_request
from tests.campaign.mutations_hooks import Hooks
from tests.campaign.mutations_table import MUTATIONS

JOBS = "jobs.json"
_HOOKS = {
    "jax": ("tests.campaign.mutations_jax", "JaxHooks"),
    "keras_dtensor": ("tests.campaign.mutations_dtensor", "DTensorHooks"),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of a side.

    Attributes:
      number: of its folder.
      side: `reference` or `mesh` of a verification.
      mutation: name of what breaks the mesh; empty: nothing does.
      path: of the variable that it is aimed at; empty: none.
    """

    number: int
    side: str = "mesh"
    mutation: str = ""
    path: str = ""

    def folder(self, scene: Path) -> Path:
        """Returns where the job's files are, of those of its scene; the reference's are there for all jobs."""
        return scene if self.side == "reference" else scene / "jobs" / str(self.number)


def _run(scene: Path, job: Job) -> dict[str, Any]:
    """Runs a job and returns what its side says."""
    folder = job.folder(scene)
    if folder != scene:
        folder.mkdir(parents=True)
        for path in scene.iterdir():
            if path.is_file():
                os.link(path, folder / path.name)
    try:
        return {"kind": "done", **_broken(scene, job, folder)}
    except ConfigError as error:
        return {"kind": "refused", "text": str(error)}
    except (DataError, EngineError) as error:
        return {"kind": "failed", "text": str(error)}
    except Exception as error:  # of a mutation that does not fit: said, and counted as one that was not caught
        traceback.print_exc()
        return {"kind": "raised", "text": " ".join(f"{type(error).__name__}: {error}".split())[:500]}


def _broken(scene: Path, job: Job, folder: Path) -> dict[str, Any]:
    if not job.mutation:
        return dict(worker.run_side(job.side, folder))
    config = read_request(scene).config
    registry.load(config)
    module, name = _HOOKS[config.engine.name]
    hooks: Hooks = getattr(importlib.import_module(module), name)(config)
    try:
        (mutation,) = (each for each in MUTATIONS if each.name == job.mutation)
        mutation.way(hooks, job.path)
        return dict(worker.run_side(job.side, folder))
    finally:
        hooks.patches.undo()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Runs the jobs of a scene, one after the other."""
    scene = Path(sys.argv[1])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for fields in json.loads((scene / JOBS).read_text()):
        job = Job(**fields)
        begun = time.monotonic()
        said = _run(scene, job)
        print(json.dumps({"number": job.number, "said": said, "seconds": time.monotonic() - begun}), flush=True)


if __name__ == "__main__":
    main()

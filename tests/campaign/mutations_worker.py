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
from runner.verify import on_mesh, worker
from runner.verify.request import read_request
from tests.campaign import resumes
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
      side: `reference` or `mesh` of a verification; `whole` or `resumed`, see `tests.campaign.resumes`.
      mutation: name of what breaks the mesh; empty: nothing does.
      path: of the variable that it is aimed at; empty: none.
      chosen: of a gradient that is scaled, see `Hooks.scaled`: factor, what is added, factor of the second half; null:
        none is.
    """

    number: int
    side: str = "mesh"
    mutation: str = ""
    path: str = ""
    chosen: tuple[float, float, float] | None = None

    def folder(self, scene: Path) -> Path:
        """Returns where the job's files are, of those of its scene; a reference's are there for all jobs."""
        return scene if self.side in ("reference", "whole") else scene / "jobs" / str(self.number)


class Sides:
    """Runs jobs of one config.

    One engine serves all gradients that are scaled: what is done to them is an input of its program.
    """

    def __init__(self, scene: Path) -> None:
        self._scene, self._config = scene, read_request(scene).config
        self._scaled: tuple[Hooks, dict[str, Any]] | None = None

    def run(self, job: Job) -> dict[str, Any]:
        """Runs a job and returns what its side says."""
        folder = job.folder(self._scene)
        if folder != self._scene:
            folder.mkdir(parents=True)
            for path in self._scene.iterdir():
                if path.is_file():
                    os.link(path, folder / path.name)
        try:
            return {"kind": "done", **self._run(job, folder)}
        except ConfigError as error:
            return {"kind": "refused", "text": str(error)}
        except (DataError, EngineError) as error:
            return {"kind": "failed", "text": str(error)}
        except Exception as error:  # of a mutation that does not fit: said, and counted as one that was not caught
            traceback.print_exc()
            return {"kind": "raised", "text": " ".join(f"{type(error).__name__}: {error}".split())[:500]}

    def _run(self, job: Job, folder: Path) -> dict[str, Any]:
        if not job.mutation and job.chosen is None:
            return self._run_side(job.side, folder)
        registry.load(self._config)
        if job.chosen is not None:
            return self._run_scaled(job, folder)
        hooks = self._hooks()
        try:
            (mutation,) = (each for each in MUTATIONS if each.name == job.mutation)
            mutation.way(hooks, job.path)
            return self._run_side(job.side, folder, hooks)
        finally:
            hooks.patches.undo()

    def _run_side(self, side: str, folder: Path, hooks: Hooks | None = None) -> dict[str, Any]:
        if side == "whole":
            resumes.train_whole(self._scene)
            return {}
        if side == "resumed":
            resumes.train_resumed(self._scene, folder, hooks)
            return {}
        return dict(worker.run_side(side, folder))

    def _run_scaled(self, job: Job, folder: Path) -> dict[str, Any]:
        assert job.chosen is not None
        if self._scaled is None:
            hooks = self._hooks()
            hooks.scaled()
            self._scaled = hooks, {}
        hooks, held = self._scaled

        def make(*given: Any, **named: Any) -> Any:
            if "engine" not in held:
                held["engine"] = _rebuilt(registry.make_engine(*given, **named))
            return held["engine"]

        hooks.aim = job.path, job.chosen
        before, on_mesh.make_engine = on_mesh.make_engine, make
        try:
            return dict(worker.run_side("mesh", folder))
        finally:
            on_mesh.make_engine = before

    def end_scaled(self) -> None:
        """Puts the program that scales gradients away."""
        if self._scaled is not None:
            self._scaled[0].patches.undo()
            self._scaled = None

    def _hooks(self) -> Hooks:
        module, name = _HOOKS[self._config.engine.name]
        made: Hooks = getattr(importlib.import_module(module), name)(self._config)
        return made


def _rebuilt(engine: Any) -> Any:
    """Makes a built engine begin again when it is built again, without a compilation."""
    initial: dict[str, Any] = {}
    sound = engine.build

    def build() -> None:
        if not initial:
            sound()
            initial.update(engine.state())
        else:
            engine.load_state(initial)

    engine.build = build
    return engine


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Runs the jobs of a scene, one after the other."""
    scene = Path(sys.argv[1])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sides = Sides(scene)
    for fields in json.loads((scene / JOBS).read_text()):
        job = Job(**fields)
        if job.chosen is None:
            sides.end_scaled()
        begun = time.monotonic()
        said = sides.run(job)
        print(json.dumps({"number": job.number, "said": said, "seconds": time.monotonic() - begun}), flush=True)


if __name__ == "__main__":
    main()

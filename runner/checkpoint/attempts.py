"""The attempt of a run that this process trains: its claim, its entry in the run's record, and the record's end."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from runner.checkpoint import files, runs
from runner.checkpoint.arguments import NAME, folder_of, recorded_overrides
from runner.checkpoint.files import LARGEST_RECORD, DamagedError
from runner.checkpoint.places import Place, place
from runner.checkpoint.resume import Previous
from runner.checkpoint.runs import RECORD, SavedRun
from runner.cluster import process, restarts
from runner.cluster.team import current
from runner.config.schema import CheckpointConfig
from runner.errors import in_one_line, passing
from runner.host import outputs
from runner.host.paths import random_part
from runner.tracking import Tracker

# Seconds between two writes. What an attempt that is killed has not recorded is at most this long.
BEAT_S = 5.0

# Why an attempt ended that came to the end of the run.
FINISHED = "finished"

# A tag of a run that was restarted: its attempts, and why each ended.
TAG = "runner.attempts"

# An attempt's claim: a file `attempt-<n>` with the identity of the process that has begun it.
CLAIM = "attempt-"


def causes(attempts: Sequence[Mapping[str, Any]]) -> str:
    """Returns the attempts and why each ended, for a tag of the run; the last one is at the end of its training."""
    parts: list[str] = []
    for number, attempt in enumerate(attempts, start=1):
        unrecorded = FINISHED if number == len(attempts) else "killed, or lost with its machine"
        part = f"{number}: steps {attempt['first']:,} to {attempt['step']:,}"
        if attempt["mesh"] != attempts[0]["mesh"]:
            part += f", on {attempt['mesh']}"
        parts.append(f"{part}, {attempt['ended'] or unrecorded}")
    return "; ".join(parts)


class Journal:
    """Writes a run's record, which has this process's attempt last, every few seconds; the training never waits."""

    def __init__(self, run: SavedRun, lost: Callable[[str], object]) -> None:
        """Starts the thread, which calls `lost` with a line if another process has begun a later attempt."""
        self._folder = run.folder
        self._record = dict(run.record)
        self._own = dict(run.record["attempts"][-1])
        self._lost = lost
        self._has_warned = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="attempt-journal", daemon=True)
        self._thread.start()

    def attempts(self) -> list[dict[str, Any]]:
        """Returns the run's attempts up to now, this one last."""
        return [*self._record["attempts"][:-1], dict(self._own)]

    def update(self, step: int) -> None:
        """Takes the number of training steps done, which is written with the next beat."""
        self._own["step"] = step

    def end(self, why: str) -> None:
        """Records the end of the attempt and of the run, and why; the first reason counts."""
        self._over.set()
        # No beat may replace the record after the last write below.
        self._thread.join()
        if not self._own["ended"]:
            self._own["ended"] = why
            self._record |= {"ended": True, "finished": why == FINISHED}
            self._write()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            try:
                found = files.read_json(self._folder / RECORD, LARGEST_RECORD)
            except (DamagedError, OSError):
                found = self._record  # lost: it is written again
            if found.get("process") != self._record["process"]:
                self._lost(f"another process has begun this run in {self._folder}; this one ends")
                return
            self._write()

    def _write(self) -> None:
        try:
            runs.write_record(self._folder, {**self._record, "seen": time.time(), "attempts": self.attempts()})
        except OSError as error:
            # The next beat tries again: a record that stays unchanged shows other machines that this process is gone.
            # Checkpoints report a full disk themselves.
            if not self._has_warned:
                self._has_warned = True
                outputs.warn(f"could not record the attempt in {self._folder / RECORD}: {error}")


def _leave(why: str) -> None:
    """Ends this process at once: it was suspended for so long that another one has taken its run.

    To save or to record anything would overwrite what the other process has written.
    """
    outputs.warn(why)
    os._exit(1)


def claim(folder: Place, number: int) -> None:
    """Claims an attempt: of several processes that have read the same record, all but one raise a PassingError."""
    path = folder / f"{CLAIM}{number}"
    data = json.dumps(process.identity()).encode()
    files.make_folder(folder)
    try:
        files.create(path, data)
    except FileExistsError:
        other = {key: str(value) for key, value in files.read_json(path, LARGEST_RECORD).items()}
        if other != process.identity() and not process.is_gone(other):
            problem = f"another process has begun the run at the same time ({path})"
            raise passing(NAME, folder.name, problem=problem, fix="wait for it or stop it") from None
        # It was killed before it wrote the record.
        files.write(path, data)


def begin(
    config: CheckpointConfig,
    name: str | None,
    mesh: str,
    tracker: Tracker,
    folder: Path,
    previous: Previous | None,
    locks: ExitStack,
) -> tuple[SavedRun, Journal | None]:
    """Records the run, this process and its attempt in `run.json`, and begins the journal, which process 0 has.

    `mesh` are its axes and sizes in words, and `folder` is the run's own. `locks` gets a lock on a new run. As it is
    closed, after the run's tracker, it ends the run's record with the reason that ends the command.
    """
    start = 0 if previous is None else previous.checkpoint.step
    resumed = None if previous is None or previous.branches else previous.run
    journals: list[Journal] = []

    def register() -> list[Any]:
        lasting: dict[str, Any] = {}
        if resumed is not None:
            # A copied folder keeps its name, and a copied run stays one of its tracking store.
            run_id = resumed.id
            is_tracked = resumed.tracking_id is not None
            own_folder = resumed.folder
            lasting = {key: resumed.record[key] for key in ("origin", NAME, runs.RUN_NAME) if key in resumed.record}
            if previous is not None and previous.repeats_steps:
                lasting[runs.WENT_BACK] = True
        else:
            root = folder_of(config.folder)
            is_tracked = tracker.run_id is not None
            if previous is not None:
                lasting["origin"] = f"{previous.run.id}@{start}"
            if name is not None:
                # Locked since it was looked for.
                run_id = tracker.run_id or name
                lasting[NAME] = name
            else:
                run_id = tracker.run_id or folder.name
                if files.names(root / run_id):
                    run_id += f"-{random_part()}"  # an earlier run that was not tracked had the same hydra.run.dir
                # Locked before it can be found.
                locks.enter_context(runs.locked("trainer.checkpoint.folder", SavedRun(root / run_id, {"run": root})))
            own_folder = root / (name or run_id)
        if tracker.run_name:
            lasting[runs.RUN_NAME] = tracker.run_name
        # Locks may not reach everywhere: another process may have begun the run since it was looked for.
        there = runs.begun(own_folder)
        attempts: list[dict[str, Any]] = []
        if there is not None:
            if resumed is None or there.record["process"] != resumed.record["process"]:
                there = runs.ended(NAME, there)
            attempts += there.record.get("attempts", [])
        if attempts and not attempts[-1]["ended"]:
            attempts[-1] = {**attempts[-1], "ended": restarts.earlier_end()}
        # Before the record, which the loser of two starts must leave alone.
        claim(own_folder, len(attempts) + 1)
        record = {
            "run": run_id,
            "tracked": is_tracked,
            "overrides": recorded_overrides(),
            "process": process.identity(),
            "started": time.time(),
            "attempts": [*attempts, {"first": start, "step": start, "mesh": mesh, "ended": ""}],
            **lasting,
        }
        runs.write_record(own_folder, record)
        run = SavedRun(own_folder, record)
        journal = Journal(run, _leave)
        journals.append(journal)
        # A lost process ends this one from another thread, without the stack.
        current().on_end(lambda reason, _: journal.end(reason))

        def end(kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
            why = FINISHED
            if kind is not None:
                why = in_one_line(str(error)) or kind.__name__
            journal.end(why)

        # `push` and not `callback`, because such a function gets the exception that ends the attempt.
        locks.push(end)
        return [str(run.folder), dict(run.record)]

    run_folder, record = current().broadcast("the run's checkpoints", register)
    return SavedRun(place(run_folder), record), next(iter(journals), None)

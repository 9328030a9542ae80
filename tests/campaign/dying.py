"""Runs a module as `python -m` does, in a process that dies at a chosen moment of its own doing.

    python -m tests.campaign.dying FOLDER MOMENT MODULE [arguments]

A moment is the so-manieth event of a kind, `checkpoint:7`; then comes SIGKILL. `checkpoint:7:SIGTERM:0.2` asks the
process to end instead, and kills it 0.2 seconds later; `start:1:SIGKILL:1.5` kills it 1.5 seconds after its start.
`never` counts the events of each kind into FOLDER/moments.json. What is seen are changes in FOLDER, as the interpreter
reports them before they are made, and commits to a database, before and after.
"""

from __future__ import annotations

import functools
import json
import os
import re
import runpy
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEVER, COUNTS = "never", "moments.json"
START, STORE, TORN = "start", "store", "torn"
_COMMIT, _FSYNC, _SAVED = "tests.commit", "tests.fsync", "tests.saved"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# What a change means, by the event and the path in the folder; the first that fits.
_KINDS = (
    ("removal", r"os\.(remove|rmdir) checkpoints/.*|os\.rename .*/step-[^/]*"),
    ("record", r"\S+ checkpoints/.*(run|best)\.json[^/]*"),
    ("checkpoint", r"\S+ checkpoints/.*"),
    ("artifacts", r"\S+ mlartifacts/.*"),
    ("results", r"\S+ run[^/]*/[^.][^/]*\.(png|json|txt|csv|md|svg)"),
    ("folder", r"\S+ run[^/]*/.*"),
)
KINDS = (START, STORE, TORN, *(name for name, _ in _KINDS))


@dataclass(frozen=True)
class Moment:
    """When a process dies.

    Attributes:
      kind: of the event.
      number: of the event among those of its kind, from 1.
      signal: that is sent at the event.
      delay: seconds after it, at which the process is killed whatever it has made of the signal.
    """

    kind: str
    number: int
    signal: str = "SIGKILL"
    delay: float = 0.0

    def __str__(self) -> str:
        """Returns what `parsed` reads."""
        return f"{self.kind}:{self.number}" + (f":{self.signal}:{self.delay:g}" if self.delay else "")


def number_of(name: str) -> int:
    """Returns a signal's number."""
    return int(signal.Signals[name])


def parsed(text: str) -> Moment | None:
    """Reads a moment; None for `never`."""
    if text == NEVER:
        return None
    kind, number, *rest = text.split(":")
    return Moment(kind, int(number), rest[0], float(rest[1])) if rest else Moment(kind, int(number))


class Watch:
    """Counts events, and ends the process at its moment."""

    def __init__(self, folder: Path, moment: Moment | None) -> None:
        self.counts: Counter[str] = Counter()
        self._folder, self._moment = f"{folder}/", moment
        self._lock = threading.Lock()

    def note(self, kind: str, torn: Path | None = None) -> None:
        """Takes an event; `torn` is a file that is cut in half where the process dies at it."""
        with self._lock:
            self.counts[kind] += 1
            moment = self._moment
            if moment is None or (kind, self.counts[kind]) != (moment.kind, moment.number):
                return
            if torn is not None and not moment.delay:
                os.truncate(torn, torn.stat().st_size // 2)
        if moment.delay:
            signal.setitimer(signal.ITIMER_REAL, moment.delay)  # nothing handles SIGALRM: it ends the process at once
        if moment.signal != "SIGKILL" or not moment.delay:
            os.kill(os.getpid(), number_of(moment.signal))

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Takes an audit event of the interpreter."""
        if event == _COMMIT:
            self.note(STORE)
        elif event == _SAVED:
            self.note(TORN, Path(arguments[0]))
        elif (path := _changed(event, arguments)) is not None and path.startswith(self._folder):
            told = f"{event} {path.removeprefix(self._folder)}"
            kind = next((name for name, pattern in _KINDS if re.fullmatch(pattern, told)), None)
            if kind is not None:
                self.note(kind)


def _changed(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Returns the absolute path that an event changes; None where it changes none."""
    if event == _FSYNC:
        return _of_descriptor(arguments[0])
    if event == "open":
        path, _, flags = arguments
        return _absolute(path) if isinstance(flags, int) and flags & _WRITES else None
    if event in ("os.remove", "os.rmdir"):
        return _absolute(arguments[0], arguments[1])
    if event == "os.mkdir":
        return _absolute(arguments[0], arguments[2])
    return _absolute(arguments[0], arguments[2]) if event == "os.rename" else None


def _absolute(path: Any, folder: int = -1) -> str | None:
    if isinstance(path, int):
        return _of_descriptor(path)
    name = os.fsdecode(path)
    return os.path.abspath(os.path.join(_of_descriptor(folder) or "", name) if folder >= 0 else name)  # noqa: PTH100, PTH118


def _of_descriptor(descriptor: int) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    except OSError:
        return None


def _report_more_events() -> None:
    """Has what the interpreter does not report reported too."""
    from sqlalchemy.engine.default import DefaultDialect

    from runner.training.checkpoint import tensors

    fsync, save, commit = os.fsync, tensors.write, DefaultDialect.do_commit

    @functools.wraps(fsync)
    def reported_fsync(descriptor: Any) -> None:
        sys.audit(_FSYNC, descriptor if isinstance(descriptor, int) else descriptor.fileno())
        fsync(descriptor)

    @functools.wraps(save)
    def reported_save(path: Path, arrays: Any) -> Any:
        told = save(path, arrays)
        sys.audit(_SAVED, path)
        return told

    def reported_commit(self: DefaultDialect, connection: Any) -> None:
        sys.audit(_COMMIT)
        commit(self, connection)  # type: ignore[no-untyped-call]
        sys.audit(_COMMIT)

    patches: list[tuple[Any, str, Callable[..., Any]]] = [
        (os, "fsync", reported_fsync),
        (tensors, "write", reported_save),
        (DefaultDialect, "do_commit", reported_commit),
    ]
    for owner, name, reported in patches:
        setattr(owner, name, reported)


def main() -> None:
    """Runs the module; see the head of this file."""
    folder, moment, module, *arguments = sys.argv[1:]
    watch = Watch(Path(folder).absolute(), parsed(moment))
    watch.note(START)
    _report_more_events()
    sys.addaudithook(watch.audit)
    sys.argv[:] = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        if moment == NEVER:
            (Path(folder) / COUNTS).write_text(json.dumps(watch.counts))


if __name__ == "__main__":
    main()

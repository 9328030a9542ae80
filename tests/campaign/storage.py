"""Failing storage under a run: full disks, quotas, failing writes and renames, slow ones, a locked database.

What must hold: the run goes on and ends with a true exit code and status, in a few lines; every point that it logged
is in the store or in a file from where the next start stores it, once; a checkpoint that is there opens, and exit code
0 says that the last state is one. Where no place takes what is left, that is said and the exit code is 1.
"""

from __future__ import annotations

import errno
import io
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.campaign import training
from tests.campaign.base import Case
from tests.campaign.training import STEPS, Places

CASES = 60
_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES)
_MOUNTED_MIB = 16
_NEEDS_MOUNT = ("full disk", "read-only disk", "no inodes")
_KINDS = ("no file grows", "no file opens", "renames fail", "syncs fail", "syncs are slow", "database is locked")


@dataclass(frozen=True)
class Fault:
    """What fails, and when.

    Attributes:
      kind: what.
      begins: at this step; 0: before the command.
      ends: at this step; more than the run has: not while it runs.
      everywhere: also where records go that outputs do not take.
      number: of the system's error, where a kind can have several.
    """

    kind: str
    begins: int
    ends: int
    everywhere: bool
    number: int

    def __str__(self) -> str:
        where = "everywhere" if self.everywhere else "under outputs"
        until = f"to step {self.ends}" if self.ends <= STEPS else "to the end"
        error = f" ({errno.errorcode[self.number]})" if self.kind in ("no file opens", "renames fail") else ""
        return f"{self.kind}{error} {where} from step {self.begins} {until}"


def run(cases: int, seed: int, folder: Path) -> Iterator[Case]:
    """Tries cases; those that need a mount are left out, with a line, where that is not permitted."""
    training.make_store(folder / "store.db", folder)
    kinds = list(_KINDS)
    if _may_mount(folder):
        kinds += _NEEDS_MOUNT
    else:
        print(f"storage: not tried here, as nothing can be mounted: {', '.join(_NEEDS_MOUNT)}", file=sys.stderr)
    draw = random.Random(seed)
    for number in range(cases):
        kind = kinds[number % len(kinds)]
        begins = draw.choice((0, 2, draw.randint(3, STEPS - 1), STEPS))
        if kind == "read-only disk":  # a disk with files that are open for writing can't become one
            begins = 0
        ends = draw.choice((draw.randint(begins + 1, STEPS), STEPS + 1)) if begins < STEPS else STEPS + 1
        fault = Fault(kind, begins, ends, draw.random() < 0.3, draw.choice(_ERRORS))
        yield _try(fault, folder / str(number), folder / "store.db")


def _try(fault: Fault, folder: Path, store: Path) -> Case:
    with _disk(fault, folder / "disk") as disk:
        elsewhere = disk / "elsewhere" if fault.everywhere else folder / "elsewhere"
        places = Places(disk / "outputs", elsewhere, folder / "kept", f"sqlite:///{disk}/outputs/mlflow.db")
        for place in (places.outputs, elsewhere, places.kept):
            place.mkdir(parents=True)
        shutil.copyfile(store, places.outputs / "mlflow.db")
        begin, end = _ACTIONS[fault.kind](fault, disk)
        moments = [(fault.begins, begin), (fault.ends, end)]

        def at_step(step: int) -> None:
            while moments and step >= moments[0][0]:
                moments.pop(0)[1]()
                time.sleep(0.06)  # the writer's next round meets it

        done = training.run(places, at_step, begin=lambda: at_step(0))
        if fault.kind in _NEEDS_MOUNT:
            _mend(disk)
        after = training.next_start(places)
        found = training.stored(places.outputs / "mlflow.db")
        wrong = training.judge(done, after, found, places.outputs / "checkpoints")
    said = f"exit code {done.code}, {len(done.lines)} lines, status {found.status}, {done.seconds:.1f} s"
    return Case(str(fault), not wrong, "; ".join(wrong) or said)


Action = Callable[[], None]


def _no_growth(fault: Fault, disk: Path) -> tuple[Action, Action]:
    del fault
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def begin() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = (disk / "outputs" / "mlflow.db").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    return begin, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _failing(names: dict[Any, tuple[str, ...]]) -> Callable[[Fault, Path], tuple[Action, Action]]:
    """Returns what lets functions of the system fail for paths on a case's disk that are written."""

    def make(fault: Fault, disk: Path) -> tuple[Action, Action]:
        real = {(module, name): getattr(module, name) for module, some in names.items() for name in some}

        def failing(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(path: Any, *given: Any, **named: Any) -> Any:
                if _is_on(path, disk) and _writes(function, given, named):
                    raise OSError(fault.number, os.strerror(fault.number), os.fspath(path))
                return function(path, *given, **named)

            return call

        def begin() -> None:
            for (module, name), function in real.items():
                setattr(module, name, failing(function))

        def end() -> None:
            for (module, name), function in real.items():
                setattr(module, name, function)

        return begin, end

    return make


def _is_on(path: Any, disk: Path) -> bool:
    return isinstance(path, str | os.PathLike) and str(os.fspath(path)).startswith(str(disk))


def _writes(function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    if function is io.open:
        return any(letter in str(named.get("mode", given[0] if given else "r")) for letter in "wax+")
    if function is os.open:
        return bool(given[0] & (os.O_WRONLY | os.O_RDWR))
    return True


def _syncs(fails: bool) -> Callable[[Fault, Path], tuple[Action, Action]]:
    def make(fault: Fault, disk: Path) -> tuple[Action, Action]:
        del fault
        real = os.fsync

        def sync(handle: int) -> None:
            if not fails:
                time.sleep(0.15)
            elif str(Path(f"/proc/self/fd/{handle}").resolve()).startswith(str(disk)):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(handle)

        return lambda: setattr(os, "fsync", sync), lambda: setattr(os, "fsync", real)

    return make


def _locked(fault: Fault, disk: Path) -> tuple[Action, Action]:
    del fault
    held: list[sqlite3.Connection] = []

    def begin() -> None:
        held.append(sqlite3.connect(disk / "outputs" / "mlflow.db", isolation_level=None, check_same_thread=False))
        held[0].execute("BEGIN EXCLUSIVE")

    def end() -> None:
        held.pop().close()

    return begin, end


def _filled(fault: Fault, disk: Path) -> tuple[Action, Action]:
    del fault

    def begin() -> None:
        with (disk / "filler").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass

    return begin, lambda: (disk / "filler").unlink(missing_ok=True)


def _without_inodes(fault: Fault, disk: Path) -> tuple[Action, Action]:
    del fault

    def begin() -> None:
        (disk / "inodes").mkdir()
        try:
            for number in range(100_000):
                (disk / "inodes" / str(number)).touch()
        except OSError:
            pass

    return begin, lambda: shutil.rmtree(disk / "inodes")


def _read_only(fault: Fault, disk: Path) -> tuple[Action, Action]:
    del fault
    return lambda: _mount("-o", "remount,ro", str(disk)), lambda: _mount("-o", "remount,rw", str(disk))


_ACTIONS: dict[str, Callable[[Fault, Path], tuple[Action, Action]]] = {
    "no file grows": _no_growth,
    "no file opens": _failing({os: ("open", "mkdir"), io: ("open",)}),
    "renames fail": _failing({os: ("rename", "replace")}),
    "syncs fail": _syncs(fails=True),
    "syncs are slow": _syncs(fails=False),
    "database is locked": _locked,
    "full disk": _filled,
    "no inodes": _without_inodes,
    "read-only disk": _read_only,
}


def _mend(disk: Path) -> None:
    _mount("-o", "remount,rw", str(disk))
    (disk / "filler").unlink(missing_ok=True)
    shutil.rmtree(disk / "inodes", ignore_errors=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], capture_output=True, check=False)


@contextmanager
def _disk(fault: Fault, place: Path) -> Iterator[Path]:
    """Yields a folder, on a disk of its own where the fault is the disk's."""
    place.mkdir(parents=True)
    if fault.kind not in _NEEDS_MOUNT:
        yield place
        return
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_MOUNTED_MIB}m,nr_inodes=300", "tmpfs", str(place)], check=True
    )
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _may_mount(folder: Path) -> bool:
    if sys.platform != "linux" or shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory(dir=folder) as place:
        tried = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, check=False)
        if tried.returncode == 0:
            subprocess.run(["umount", place], check=True)
        return tried.returncode == 0

"""Looks at what runs of several processes listen on: loopback alone, or what the user has accepted by a key.

A case is an engine in two processes. The listening sockets come from `/proc`, while the run trains. The runs that were
not accepted must end with exit code 2 before a library is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests import forks
from tests.campaign import faults
from tests.campaign.base import Case
from tests.proc import place_of

CASES = 6
_LONGEST_S = 240.0  # of a start on a machine that others share
_POLL_S = 0.2
_LISTENS = "0A"  # state of a socket in /proc/net/tcp
_LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
_ANY = {"0" * 8, "0" * 32}
_BLOCKED = ("tensorflow", "tf_keras", "keras", "jax", "mlflow")


@dataclass(frozen=True)
class Run:
    """A run of two processes.

    Attributes:
      engine: of the runner.
      accepted: `cluster.open_ports`.
    """

    engine: str
    accepted: bool

    @property
    def is_rejected(self) -> bool:
        """Whether it must not start."""
        return self.engine != "jax" and not self.accepted

    def __str__(self) -> str:
        """Returns its overrides."""
        return f"engine={self.engine} cluster.open_ports={str(self.accepted).lower()}"

    def command(self, folder: Path) -> list[str]:
        """Returns the command line of a run that trains until it is ended."""
        model = ["model=mlp_core"] if self.engine == "core_dtensor" else []
        return [
            *(sys.executable, "-m", "runner", "dataset=digits", "mesh=batch2", "cluster=local", *str(self).split()),
            *("trainer.epochs=100000", "trainer.progress=none", "trainer.checkpoint.enabled=false", "tracking=none"),
            *(*model, f"hydra.run.dir={folder / 'run'}"),
        ]


_ENGINES = ("jax", "keras_dtensor", "core_dtensor")
RUNS = tuple(Run(engine, accepted) for accepted in (False, True) for engine in _ENGINES)


def listening(pid: int) -> set[str]:
    """Returns the addresses, as `/proc/net/tcp` writes them, at which sockets of a process listen."""
    own = set()
    place = place_of(pid)
    if place is None:
        return set()
    try:
        for handle in (place / "fd").iterdir():
            with suppress(OSError):  # the process has closed it meanwhile
                own.add(str(handle.readlink()))
        lines = (place / "net/tcp").read_text().splitlines()[1:]
        six = place / "net/tcp6"
        if six.exists():
            lines += six.read_text().splitlines()[1:]
    except OSError:  # it has ended
        return set()
    addresses = set()
    for line in lines:
        fields = line.split()
        if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in own:
            addresses.add(fields[1].partition(":")[0])
    return addresses


def rejected(run: Run, folder: Path) -> Case:
    """Starts a run that must not start, where importing anything heavy ends it otherwise."""
    blocked = folder / "blocked"
    blocked.mkdir(parents=True)
    for name in _BLOCKED:
        (blocked / f"{name}.py").write_text(f"raise SystemExit('imported {name}')\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(blocked), str(forks.ROOT)])}
    done = subprocess.run(
        run.command(folder),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    lines = done.stderr.splitlines()
    is_named = len(lines) == 1 and "cluster.open_ports" in lines[0] and "run code as you" in lines[0]
    return Case(str(run), done.returncode == 2 and is_named, f"exit code {done.returncode}: {lines[-1:]}")


def opened(run: Run, folder: Path) -> Case:
    """Starts a run, and looks at its ports while it trains."""
    folder.mkdir(parents=True)
    library = forks.JAX if run.engine == "jax" else forks.TENSORFLOW
    with (folder / "said").open("wb") as said:
        process = forks.Popen(
            run.command(folder), library=library, cwd=folder, env=dict(os.environ), stdout=said, stderr=said,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    # The last port opens with the first collective. Nothing more opens a moment after the engine is connected.
    addresses: set[str] = set()
    expected = _LOOPBACK if run.engine == "jax" else _ANY
    deadline = time.monotonic() + _LONGEST_S
    quiet_since = time.monotonic()
    while time.monotonic() < deadline and process.poll() is None:
        before = set(addresses)
        for there in faults.there(folder):
            addresses |= listening(there.pid)
        if addresses != before:
            quiet_since = time.monotonic()
        has_trained = "mesh batch=2" in (folder / "said").read_text(errors="replace") and addresses & expected
        if has_trained and time.monotonic() - quiet_since > 15.0:
            break
        time.sleep(_POLL_S)
    has_ended = process.poll() is not None
    faults.end(folder)
    process.wait()
    open_to_all = bool(addresses & _ANY)
    only_loopback = bool(addresses) and addresses <= _LOOPBACK
    # DTensor's case fails when TensorFlow learns to bind to an address: then the key and the page can go.
    held = not has_ended and (only_loopback if run.engine == "jax" else open_to_all)
    return Case(str(run), held, f"listens on {', '.join(sorted(addresses)) or 'nothing'}{', has ended' * has_ended}")


def run(cases: int, seed: int, folder: Path) -> Iterator[Case]:
    """Tries the runs in their order; see `tests.campaign.base.Campaign`."""
    for number in range(cases):
        tried = RUNS[(number + seed) % len(RUNS)]
        where = folder / f"case-{number}"
        yield rejected(tried, where) if tried.is_rejected else opened(tried, where)

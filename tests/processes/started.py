"""Starts processes of the tests, and tells how they ended."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.cluster.launch import free_port
from tests.proc import is_there

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 30.0  # that every end may take


@dataclass(frozen=True)
class End:
    """How a process ended.

    Attributes:
      code: its exit code.
      said: what it said on stdout, its lines of JSON.
      lines: of stderr.
    """

    code: int
    said: Sequence[Mapping[str, Any]]
    lines: Sequence[str]


def explicit(index: int, count: int, port: int, **keys: object) -> dict[str, Any]:
    """Returns the cluster of a process that the tests start themselves."""
    start = {"name": "explicit", "processes": count, "index": index, "coordinator": f"127.0.0.1:{port}"}
    return start | {"start_timeout": 20.0} | keys


class Process:
    """A process of the tests; its output goes to files, so that nobody has to read it while it runs."""

    def __init__(self, folder: Path, cluster: Mapping[str, Any], act: str, agrees: Mapping[str, Any] = {}) -> None:
        folder.mkdir(parents=True)
        self.port = int(str(cluster.get("coordinator", ":0")).rpartition(":")[2])
        self._out, self._err = folder / "out", folder / "err"
        asked = json.dumps({"cluster": cluster, "act": act, "agrees": dict(agrees)})
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.processes.worker", asked],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=os.environ | {"SLURM_PROCID": "7", "OMPI_COMM_WORLD_RANK": "7", "PMI_RANK": "7", "PMIX_RANK": "7"},
            )

    @property
    def said(self) -> list[dict[str, Any]]:
        """What it has said so far."""
        lines = self._out.read_text().splitlines(keepends=True)
        return [json.loads(line[line.index("{") :]) for line in lines if line.endswith("\n") and "{" in line]

    @property
    def lines(self) -> list[str]:
        """The lines of its stdout so far."""
        return self._out.read_text().splitlines()

    def send(self, signum: int) -> None:
        """Sends it a signal."""
        self.process.send_signal(signum)

    def end(self, within: float = WITHIN_S) -> End:
        """Waits for its end."""
        code = self.process.wait(within)
        return End(code, self.said, self._err.read_text().splitlines())

    def close(self) -> None:
        """Ends it, if it runs, and those that it said it is or started."""
        started = [pid for said in self.said for pid in (said["pid"], said.get("left", said["pid"]))]
        for pid in (self.process.pid, *started):
            with suppress(ProcessLookupError):
                if is_there(pid):
                    os.kill(pid, 9)
        self.process.wait()


@contextmanager
def closing(*processes: Process) -> Iterator[tuple[Process, ...]]:
    """Ends processes with the block."""
    try:
        yield processes
    finally:
        for one in processes:
            one.close()


def team(folder: Path, act: str, count: int = 2, port: int | None = None, **keys: object) -> list[Process]:
    """Starts processes that come together."""
    where = port or free_port()
    return [Process(folder / str(index), explicit(index, count, where, **keys), act) for index in range(count)]

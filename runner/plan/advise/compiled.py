"""Plans of candidates by compilers, in processes of their own, several at a time."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from runner.cluster.launch import (
    AS_TYPED,
    LAUNCHER_VARIABLE,
)
from runner.engine import registry
from runner.host import children, cores
from runner.host.quoting import quoted
from runner.plan import forecast, rates
from runner.plan.advise import ranking
from runner.plan.base import Forecast

_PLAN = "runner.plan"
_PLAN_FILE = "plan.json"
# A child's own folder in that of its files, and what it prints on stderr.
_RUN = "run"
_ERRORS = "errors.txt"
# The longest time that a plan may take, in seconds. A KerasHub model of 8 billion parameters compiles
# within 60.
_LONGEST_S = 900.0
# Memory of this machine that a process may take, in bytes. A gpt of 12 blocks with 1600 units takes 0.8 GiB
# with the CPU's compiler, and programs grow with the number of blocks.
_CHILD_BYTES = 3 << 30


@dataclass(frozen=True)
class Children:
    """Processes that plan candidates: a command's arguments, and its overrides without those that candidates
    replace.
    """

    arguments: tuple[str, ...]
    overrides: tuple[str, ...]

    @property
    def concurrency(self) -> int:
        """Returns how many processes plan at the same time: a compiler uses one core for most of its time."""
        fitting: int = psutil.virtual_memory().available // _CHILD_BYTES
        return max(1, min(cores.available(), fitting))

    def plans(self, entries: Sequence[ranking.Planned], compiler: str) -> list[ranking.Planned | str]:
        """Returns candidates with the figures of a compiler, or the error of each that can't be compiled."""
        commands = []
        for entry in entries:
            commands.append([*self.overrides, *entry.candidate.overrides(), f"plan.compiler={compiler}"])
        results: list[ranking.Planned | str] = []
        for entry, content in zip(entries, self._run_all(commands), strict=True):
            if isinstance(content, str):
                results.append(content)
                continue
            if content.get("forecast") is None:
                results.append(of_program(entry, content["program"], os.cpu_count() or 1))
            else:
                results.append(ranking.of_forecast(entry.candidate, Forecast.from_dict(content["forecast"])))
        return results

    def _run_all(self, commands: Sequence[Sequence[str]]) -> list[dict[str, Any] | str]:
        """Returns the plan that each command writes into its folder, or its error in one line."""
        contents: dict[str, dict[str, Any] | str] = {}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)

            def ended(number: str, code: int | None) -> None:
                contents[number] = _result(folder / number, code)

            starts = {}
            for number, overrides in enumerate(commands):
                starts[str(number)] = functools.partial(self._start, overrides, folder / str(number))
            children.run_all(starts, ended, concurrency=self.concurrency, longest_s=_LONGEST_S)
        return [contents[str(number)] for number in range(len(commands))]

    def _start(self, overrides: Sequence[str], folder: Path) -> children.Child:
        folder.mkdir()
        target = (folder / _RUN).as_posix()
        command = [sys.executable, "-m", _PLAN, *self.arguments, *overrides, f"hydra.run.dir={quoted(str(target))}"]
        # Linux ends the child if this process is killed.
        environment = {**registry.environment_for_children(), **AS_TYPED, LAUNCHER_VARIABLE: str(os.getpid())}
        with (folder / _ERRORS).open("wb") as errors:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )


def _result(folder: Path, code: int | None) -> dict[str, Any] | str:
    """Returns the content of the JSON file that a child wrote into its folder, or its error in one line."""
    if code is None:
        return f"took more than {_LONGEST_S:.0f} s"
    if code:
        lines = (folder / _ERRORS).read_text(errors="replace").strip().splitlines()
        # A command prints its error last. One that was killed may have printed nothing, and then has its exit code
        # alone.
        return [f"ended with exit code {code}", *lines][-1].removeprefix("error: ")
    content: dict[str, Any] = json.loads((folder / _RUN / _PLAN_FILE).read_text())
    return content


def of_program(entry: ranking.Planned, program: Mapping[str, Any], cores: int) -> ranking.Planned:
    """Returns a candidate with what the CPU's compiler counts for one of this machine's virtual devices.

    The devices share the machine's cores and memory, so a step takes the sum of their times. The times rank candidates
    on one machine; they are no predictions.
    """
    devices = 1
    for size in entry.candidate.sizes.values():
        devices *= size
    compute = devices * program["flops"] / (cores * rates.CPU_GFLOPS_PER_CORE * 1e9)
    moved = devices * program["accessed_bytes"] / (rates.CPU_GB_S * 1e9)
    bound = forecast.COMPUTE if compute > moved else forecast.MEMORY
    memory = (
        ("state and batches", int(program["argument_bytes"])),
        ("temporaries", int(program["temporary_bytes"])),
    )
    return replace(
        entry,
        peak_bytes=sum(size for _, size in memory),
        memory=memory,
        # At best a device computes while it reads and writes; at worst it does one after the other.
        step_seconds=(max(compute, moved), compute + moved),
        bound=bound,
        parts=((forecast.COMPUTE, compute), (forecast.MEMORY, moved), (forecast.LINKS, 0.0)),
        depth="cpu",
    )

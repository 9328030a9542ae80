"""Plans and measurements of candidates in processes of their own, several at a time; plans are kept on the disk."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.advise import candidates, ranking
from runner.advise.candidates import Candidate
from runner.advise.timing.command import FILE
from runner.host import paths
from runner.host.outputs import spared
from runner.host.quoting import quoted
from runner.plan import forecast
from runner.plan.base import ARITHMETIC

_CACHE = "advise_cache"
_PLAN = "runner.plan"
_TIMING = "runner.advise.timing"
# The longest time that a plan or a measurement may take, in seconds. A KerasHub model of 8 billion parameters compiles
# within 60.
_LONGEST_S = 900.0
# Groups and keys that a candidate sets, or that this command reads.
_REPLACED_GROUPS = ("mesh", "layout")
_REPLACED = ("mesh.axes", "advise.", "plan.compiler")
# Keys that only a plan reads.
_PLAN_KEYS = ("hardware", "hardware.", "plan.", "plan")
# Rates of this machine's cores and memory, which its virtual devices share: those of `runner.plan.rates`.
_GFLOPS_PER_CORE = 30.0
_GB_S = 10.0


@dataclass(frozen=True)
class Children:
    """Processes that plan and measure candidates.

    Attributes:
      overrides: of the command line, without those that candidates replace.
      environment: of this process before its engine changed it.
      version: digest of the code, which the kept plans depend on.
    """

    overrides: tuple[str, ...]
    environment: Mapping[str, str]
    version: str

    def plans(self, entries: Sequence[ranking.Planned], compiler: str) -> list[ranking.Planned | str]:
        """Returns candidates with the figures of a compiler, or the error of each that can't be compiled.

        Args:
          entries: planned by arithmetic.
          compiler: `target` or `cpu`.
        """

        def plan(entry: ranking.Planned) -> ranking.Planned | str:
            words = [*self.overrides, *entry.candidate.overrides(), f"plan.compiler={compiler}"]
            content = self._kept(words)
            if isinstance(content, str):
                return content
            if content.get("forecast") is None:
                return of_program(entry, content["program"], os.cpu_count() or 1)
            return of_forecast(entry, content["forecast"])

        return self._each(plan, entries)

    def measured(self, entries: Sequence[ranking.Planned], devices: int) -> list[ranking.Planned | str]:
        """Returns candidates with the time of a step on virtual CPU devices of this machine, one after the other.

        Args:
          entries: planned.
          devices: number of devices.
        """
        results: list[ranking.Planned | str] = []
        words = for_training(self.overrides)
        here = ["mesh.device=cpu", f"mesh.cpu_devices={devices}"]
        for entry in entries:
            content = self._run(_TIMING, [*words, *entry.candidate.overrides(), *here], FILE)
            if isinstance(content, str):
                results.append(content)
                continue
            results.append(replace(entry, measured_seconds=float(content["seconds"])))
        return results

    def _each(
        self, function: Callable[[ranking.Planned], ranking.Planned | str], entries: Sequence[ranking.Planned]
    ) -> list[ranking.Planned | str]:
        # A compiler uses one core for most of its time.
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return list(pool.map(function, entries))

    def _kept(self, words: Sequence[str]) -> dict[str, Any] | str:
        """Returns the plan of a command line, from an earlier run if there is one."""
        digest = hashlib.sha256("\0".join([self.version, *words]).encode()).hexdigest()[:32]
        file = paths.outputs_dir() / _CACHE / f"{digest}.json"
        if file.is_file():
            content: dict[str, Any] = json.loads(file.read_text())
            return content
        planned = self._run(_PLAN, words, "plan.json")
        if isinstance(planned, str):
            return planned
        with spared(str(file)):
            file.parent.mkdir(parents=True, exist_ok=True)
            # Another process may read the file: it appears whole.
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps({"forecast": planned["forecast"], "program": planned["program"]}))
            part.replace(file)
        return planned

    def _run(self, module: str, words: Sequence[str], file: str) -> dict[str, Any] | str:
        """Returns the content of the JSON file that a command writes into its folder, or its error in one line."""
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "run"
            command = [sys.executable, "-m", module, *words, f"hydra.run.dir={quoted(target.as_posix())}"]
            try:
                done = subprocess.run(
                    command,
                    env=dict(self.environment),
                    capture_output=True,
                    text=True,
                    timeout=_LONGEST_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"took more than {_LONGEST_S:.0f} s"
            if done.returncode:
                lines = done.stderr.strip().splitlines() or [f"ended with exit code {done.returncode}"]
                return lines[-1].removeprefix("error: ")
            content: dict[str, Any] = json.loads((target / file).read_text())
            return content


def kept_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides of a command line without those that candidates replace.

    A later override of a key wins, but one of a group must not occur twice.

    Example:
      >>> kept_overrides(["model=gpt", "mesh=batch8", "mesh.device=gpu", "advise.devices=8", "mesh.axes={batch: 4}"])
      ('model=gpt', 'mesh.device=gpu')
    """
    kept = []
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key not in _REPLACED_GROUPS and not key.startswith(_REPLACED):
            kept.append(override)
    return tuple(kept)


def for_training(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides without those that only plans read.

    Example:
      >>> for_training(["model=gpt", "hardware=h100", "plan.price=2"])
      ['model=gpt']
    """
    kept = []
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key not in _PLAN_KEYS and not key.startswith(("hardware.", "plan.")):
            kept.append(override)
    return kept


def of_forecast(entry: ranking.Planned, content: Mapping[str, Any]) -> ranking.Planned:
    """Returns a candidate with the forecast that a plan.json has."""
    memory = tuple((part["kind"], int(part["bytes"])) for part in content["memory"])
    peak = sum(size for _, size in memory)
    capacity = int(content["capacity_bytes"])
    verdict = ranking.FITS
    if capacity and peak > capacity:
        verdict = ranking.TOO_LARGE
        counted = sum(part["bytes"] for part in content["memory"] if part["source"] == "counted")
        if content["depth"] == ARITHMETIC and counted <= capacity:
            verdict = ranking.MAY_FIT
    fastest, slowest = content["step_seconds"]
    parts = (
        (forecast.COMPUTE, sum(content["compute_seconds"]) / 2),
        (forecast.MEMORY, float(content["memory_seconds"])),
        (forecast.LINKS, float(content["link_seconds"]) / forecast.LINK_EFFICIENCY),
    )
    return replace(
        entry,
        verdict=verdict,
        peak_bytes=peak,
        memory=memory,
        step_seconds=(float(fastest), float(slowest)),
        bound=str(content["bound"]),
        parts=parts,
        depth=str(content["depth"]),
    )


def of_program(entry: ranking.Planned, program: Mapping[str, Any], cores: int) -> ranking.Planned:
    """Returns a candidate with what the CPU's compiler counts for one of this machine's virtual devices.

    The devices share the machine's cores and memory, so a step takes the sum of their times. The times rank candidates
    on one machine; they are no predictions.

    Args:
      entry: planned by arithmetic.
      program: as plan.json has it.
      cores: of the machine.
    """
    devices = 1
    for size in entry.candidate.sizes.values():
        devices *= size
    compute = devices * program["flops"] / (cores * _GFLOPS_PER_CORE * 1e9)
    moved = devices * program["accessed_bytes"] / (_GB_S * 1e9)
    bound = forecast.COMPUTE if compute > moved else forecast.MEMORY
    memory = (
        ("state and batches", int(program["argument_bytes"])),
        ("temporaries", int(program["temporary_bytes"])),
    )
    return replace(
        entry,
        peak_bytes=sum(size for _, size in memory),
        memory=memory,
        step_seconds=(max(compute, moved), compute + moved),
        bound=bound,
        parts=((forecast.COMPUTE, compute), (forecast.MEMORY, moved), (forecast.LINKS, 0.0)),
        depth="cpu",
    )


def without_options_of(candidate: Candidate, overrides: Sequence[str]) -> list[str]:
    """Returns the overrides of a candidate that differ from what the command line has without them.

    Args:
      candidate: the options.
      overrides: of the command line, as `kept_overrides` returns them.
    """
    defaults = {f"layout={candidates.REPLICATED}", "trainer.accumulate_steps=1", "engine.state=float32", "mesh=single"}
    defaults.add("model.remat=none")
    return [word for word in candidate.overrides() if word not in defaults and word not in overrides]

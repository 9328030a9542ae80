"""The advice of one command line: candidates are enumerated, planned, ranked, shown and written."""

from __future__ import annotations

import itertools
import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.text import Text

from runner.checkpoint.arguments import key_of
from runner.config.convert import as_typed
from runner.config.invocation import choices, composed_with
from runner.config.schema import HardwareConfig, RunConfig
from runner.console import Console, size
from runner.data import loading
from runner.engine import registry
from runner.errors import EngineError
from runner.host import stages
from runner.host.late import late
from runner.host.outputs import required, spared
from runner.layout import mesh, transformers
from runner.model import gpt_options
from runner.plan import base, limits, memory, rates
from runner.plan.advise import arithmetic, candidates, ranking, show
from runner.plan.advise.arithmetic import Arithmetic
from runner.plan.make import row_tokens
from runner.plan.table import as_markdown, plan_console, rich_table
from runner.task.base import DataSpec
from runner.task.registry import make_task

if TYPE_CHECKING:
    from runner import figures
else:
    figures = late("runner.figures")

_GIB = 1 << 30
# Groups that a candidate sets, and those that only plans read.
_REPLACED_GROUPS = ("mesh", "layout")
_PLAN_GROUPS = ("hardware", "plan", "advise")
_PRESET = "experiment="
_MARKERS = {base.FITS: "o", base.MAY_FIT: "^", base.TOO_LARGE: "x"}


def run(config: RunConfig, composed: DictConfig) -> None:
    """Finds, prints and writes the advice; an EngineError if no candidate can be planned, or none fits."""
    del composed
    began = time.perf_counter()
    remat = None
    if config.model.target == gpt_options.TARGET:
        remat = str(config.model.options.get("remat"))
    own = candidates.Candidate(
        tuple(config.mesh.axes.items()),
        choices()["layout"],
        sequence=config.layout.sequence is not None,
        remat=remat,
        accumulate=config.trainer.accumulate_steps,
        state=config.engine.state,
    )
    config = replace(config, plan=replace(config.plan, compiler=base.ARITHMETIC))
    registry.prepare(config)
    data = loading.load(config.dataset, config.trainer.seed, task=config.task)
    task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
    spec = DataSpec(task.arrays, task)
    typed_keys = list(map(key_of, HydraConfig.get().overrides.task))
    search = Arithmetic(config, spec, choices())
    devices = config.advise.devices
    assert devices is not None
    with stages.stage("planning candidates by arithmetic", alone=True) as reached:
        axes = _axes_of(search, spec)
        allowed = candidates.allowed(own, config.dataset.batch_size, config.engine.precision, typed_keys, axes)
        planned, dropped = arithmetic.explored(search, devices, allowed, reached)
        if not planned:
            why = "; ".join(detail for _, _, detail in ranking.reasons(dropped)) or "there is no candidate"
            raise EngineError(f"no mesh of {devices} devices can be planned: {why}")
    entries = ranking.ranked(planned)
    best = entries[0]
    overrides = for_training(as_typed(HydraConfig.get().overrides.task))
    overrides += tuple(_changing(best.candidate, own, overrides))
    words = ["python", "-m", "runner", *composed_with(), *overrides]
    # The variable lets JAX reserve as much memory as the candidate needs.
    command = f"{best.setting} {shlex.join(words)}".lstrip()
    lines = [show.why(best), *show.left_out(entries, dropped)]
    warnings = rates.borrowed(config.hardware, choices()["hardware"])
    warnings += rates.unpriced_network(config.plan, config.hardware, best.candidate.sizes)
    for warning in warnings:
        lines.append(f"warning: {warning}")
    lines.append(f"found in {time.perf_counter() - began:.0f} s, by arithmetic")
    title = f"{devices} devices of hardware={config.hardware.name}, global batch {config.dataset.batch_size}"
    _report(config.hardware, title, entries, lines, command)


def _axes_of(search: Arithmetic, spec: DataSpec) -> list[str]:
    """Returns the names of the mesh axes that suit a model, the outermost first."""
    axes = [candidates.BATCH]
    roles = transformers.read(search.shapes()).roles
    if any(role.experts is not None for role in roles.values()):
        axes.append(candidates.EXPERTS)
    if roles and row_tokens(spec) is not None:
        axes.append(candidates.SEQUENCE)
    # Last, because the last axis fills a node first: the sums of activations over it are to stay inside one node.
    axes.append(candidates.MODEL)
    return axes


def _report(
    hardware: HardwareConfig, title: str, entries: Sequence[ranking.Planned], lines: Sequence[str], command: str
) -> None:
    """Prints and writes the advice; an EngineError if no candidate fits."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = plan_console()
    best = entries[0]
    fits = best.verdict != base.TOO_LARGE
    memory_bytes = round((hardware.memory_gib or 0.0) * _GIB)
    # The share that the largest candidate gets is the largest that any of them can have.
    largest = limits.share(hardware.kind, max(entry.peak_bytes for entry in entries), memory_bytes)
    capacity = round((largest or 1.0) * memory_bytes)
    if fits:
        lines = [*lines, "", f"the best: {command}"]

    def print_to(console: Console) -> None:
        console.print(Text(title, style="bold"))
        console.print()
        console.print(rich_table(show.table(entries), console.width, show.DROP))
        console.print()
        console.print_lines(lines)

    with required(folder):
        (folder / "advise.json").write_text(json.dumps(list(map(asdict, entries)), indent=2) + "\n")
        (folder / "advise.md").write_text(as_markdown("Advice", print_to))
    with spared(str(folder / "advise.png")):
        _draw(folder / "advise.png", entries, capacity, title)
    print_to(console)
    console.print(f"written: advise.md, advise.json, advise.png in {folder}", soft_wrap=True)
    # Only after the table and the files, which show by how much the candidates are too large.
    if not fits:
        state = sum(count for kind, count in best.memory if kind in memory.STATE)
        fix = "lower dataset.batch_size, or add devices"
        if state > capacity:
            # A smaller batch has as large a state.
            fix = f"its weights and optimizer state alone need {size(state)}: add devices, or choose a smaller model"
        raise EngineError(
            f"no candidate fits {title}: the smallest needs {size(best.peak_bytes)} of {size(capacity)} per device; "
            f"{fix}"
        )


def for_training(overrides: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides of a command line without those that a candidate replaces, or that only plans read.

    A later override of a key wins, but one of a group must not occur twice.

    Example:
      >>> for_training(["model=gpt", "mesh=batch8", "mesh.device=gpu", "advise.devices=8", "mesh.axes={batch: 4}"])
      ('model=gpt', 'mesh.device=gpu')
    """
    remaining = []
    for override in overrides:
        # Hydra's signs before a key: + adds it, ++ sets or adds it, and ~ deletes it.
        key = override.lstrip("+~").partition("=")[0]
        is_replaced = key in _REPLACED_GROUPS or key.startswith("mesh.axes")
        if not is_replaced and key.partition(".")[0] not in _PLAN_GROUPS:
            remaining.append(override)
    return tuple(remaining)


def _changing(candidate: candidates.Candidate, start: candidates.Candidate, overrides: Sequence[str]) -> list[str]:
    """Returns a candidate's overrides without those whose values the config has anyway."""
    same = {
        f"model.remat={start.remat}",
        f"trainer.accumulate_steps={start.accumulate}",
        f"engine.state={start.state}",
    }
    # A preset may set the mesh; without one it is this option.
    if not any(override.lstrip("+").startswith(_PRESET) for override in overrides):
        same.add(candidates.MESH)
    return [override for override in candidate.overrides() if override not in same]


def _draw(path: Path, entries: Sequence[ranking.Planned], capacity: int, title: str) -> None:
    """Draws the ranked candidates; a capacity of 0 is not known."""

    def place(entry: ranking.Planned) -> tuple[float, float]:
        return entry.peak_bytes / _GIB, 1000 * entry.seconds

    series: dict[str, tuple[str, str, list[tuple[float, float]]]] = {}
    layouts = sorted({entry.candidate.layout for entry in entries})
    for (index, layout), (verdict, marker) in itertools.product(enumerate(layouts), _MARKERS.items()):
        color = figures.SERIES[index % len(figures.SERIES)]
        series[f"{layout}, {verdict}"] = (color, marker, [])
    for entry in entries:
        series[f"{entry.candidate.layout}, {entry.verdict}"][2].append(place(entry))
    unbeaten = ranking.front([entry for entry in entries if entry.verdict != base.TOO_LARGE])
    best = entries[0]
    name = f"1: {mesh.describe(best.candidate.sizes)}, {best.candidate.layout}"
    figures.front(path, title, series, list(map(place, unbeaten)), (name, place(best)), capacity / _GIB)

"""The advice of one command line: candidates are enumerated, planned, ranked, shown and written."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.text import Text

from runner.checkpoint.arguments import key_of
from runner.config import compose
from runner.config.convert import as_typed, choices
from runner.config.schema import HardwareConfig, RunConfig
from runner.data import loading
from runner.engine import registry
from runner.errors import EngineError
from runner.host import stages
from runner.host.late import late
from runner.host.outputs import required, spared
from runner.host.tables import size
from runner.layout import mesh, transformers
from runner.layout.axes import SEQUENCE
from runner.model import gpt_options
from runner.plan import depth, host_memory, limits, memory, rates
from runner.plan.advise import (
    arithmetic,
    candidates,
    compiled,
    ranking,
    show,
)
from runner.plan.advise.arithmetic import Arithmetic
from runner.plan.base import ARITHMETIC
from runner.plan.files import table_markdown
from runner.plan.table import plan_console, rich_table
from runner.task.base import DataSpec
from runner.task.registry import make_task

if TYPE_CHECKING:
    from runner import figures
else:
    figures = late("runner.figures")

logger = logging.getLogger(__name__)

_GIB = 1 << 30
# Groups and keys that a candidate sets, or that this command reads.
_REPLACED_GROUPS = ("mesh", "layout")
_REPLACED = ("mesh.axes", "advise.", "plan.compiler")
# Groups that only a plan reads.
_PLAN_GROUPS = ("hardware", "plan")
_PRESET = "experiment="
_MARKERS = {ranking.FITS: "o", ranking.MAY_FIT: "^", ranking.TOO_LARGE: "x"}
# Candidates that a compiler plans: as many as must fit until it stops, and the most that it tries. On this machine
# it tries more, because arithmetic alone ranks its virtual devices poorly.
_FITTING = 3
_MOST_COMPILED = 8
_MOST_COMPILED_HERE = 24
# Seconds of compiling after which one candidate that fits is enough: a large model that is not scanned takes a minute.
_SLOW_S = 60.0


@dataclass(frozen=True)
class _Advice:
    """Planned candidates, the best first, the others, and the time that the search took."""

    entries: list[ranking.Planned]
    dropped: list[ranking.Dropped]
    seconds: float


def run(config: RunConfig, composed: DictConfig) -> None:
    """Finds, prints and writes the advice.

    Raises:
      EngineError: no candidate can be planned, or none fits.
    """
    del composed
    folder = Path(HydraConfig.get().runtime.output_dir)
    began = time.perf_counter()
    devices = config.advise.devices
    assert devices is not None
    overrides = kept(as_typed(HydraConfig.get().overrides.task))
    children = compiled.Children(tuple(compose.composed_with()), overrides)
    compiler = depth.settled(config).plan.compiler
    options = config.model.options
    own = candidates.Candidate(
        tuple(config.mesh.axes.items()),
        choices()["layout"],
        sequence=config.layout.sequence is not None,
        remat=str(options.get("remat")) if config.model.target == gpt_options.TARGET else None,
        accumulate=config.trainer.accumulate_steps,
        state=config.engine.state,
    )
    advice = _arithmetic(config, devices, own, began)
    entries = advice.entries
    if compiler != ARITHMETIC:
        entries = _compile(children, entries, compiler)
    advice = _Advice(entries, advice.dropped, time.perf_counter() - began)
    _report(config, advice, own, folder, overrides)


def _arithmetic(config: RunConfig, devices: int, start: candidates.Candidate, began: float) -> _Advice:
    """Returns the candidates, ranked by arithmetic; `start` is the config as it is."""
    hardware = config.hardware
    if hardware.is_here:
        hardware = this_machine(devices)
        config = replace(config, hardware=hardware, mesh=replace(config.mesh, device="cpu"))
    config = replace(config, plan=replace(config.plan, compiler=ARITHMETIC))
    registry.prepare(config)
    data = loading.load(config.dataset, config.trainer.seed, task=config.task)
    task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
    spec = DataSpec(task.arrays, task)
    chosen = choices()
    typed_keys = [key_of(override) for override in HydraConfig.get().overrides.task]
    search = Arithmetic(config, spec, chosen)
    with stages.stage("planning candidates by arithmetic", alone=True):
        axes = _axes_of(search, spec)
        options = candidates.allowed(start, config.dataset.batch_size, config.engine.precision, typed_keys, axes)
        planned, dropped = arithmetic.explored(search, devices, options, logger.info)
        if not planned:
            why = "; ".join(detail for _, _, detail in ranking.reasons(dropped)) or "there is no candidate"
            raise EngineError(f"no mesh of {devices} devices can be planned: {why}")
        best = ranking.ranked(planned)[0]
        more = arithmetic.savings(search, best.candidate, dropped)
    names = {entry.candidate for entry in more}
    dropped = [entry for entry in dropped if entry.candidate not in names]
    return _Advice(ranking.ranked([*planned, *more]), dropped, time.perf_counter() - began)


def _axes_of(search: Arithmetic, spec: DataSpec) -> list[str]:
    """Returns the names of the mesh axes that suit a model, the outermost first."""
    axes = [candidates.BATCH]
    roles = transformers.read(search.shapes()).roles
    if any(role.experts is not None for role in roles.values()):
        axes.append(candidates.EXPERTS)
    has_sequence = any(SEQUENCE in spec.arrays[name].dims for name in spec.task.input_names)
    if has_sequence and roles:
        axes.append(candidates.SEQUENCE)
    # Last, because the last axis fills a node first: the sums of activations over it are to stay inside one node.
    axes.append(candidates.MODEL)
    return axes


def this_machine(devices: int) -> HardwareConfig:
    """Returns the figures of one of this machine's virtual CPU devices, which share its cores and memory."""
    cores = os.cpu_count() or 1
    # Devices share the cores and the memory's bandwidth equally, and also communicate through the memory.
    return HardwareConfig(
        name="this machine",
        kind="cpu",
        memory_gib=host_memory.of_virtual_device(devices, machines=1) / _GIB,
        peak_tflops={"float32": cores * rates.CPU_GFLOPS_PER_CORE / devices / 1e3},
        memory_gb_s=rates.CPU_GB_S / devices,
        link_gb_s=rates.CPU_GB_S / devices,
    )


def _compile(children: compiled.Children, entries: Sequence[ranking.Planned], compiler: str) -> list[ranking.Planned]:
    """Returns the candidates with the best ones planned by a compiler, and ranked by what it says.

    Candidates that it finds to fit come before those that it has not seen, and those that it can't compile or finds
    too large after these.
    """
    most = _MOST_COMPILED_HERE if compiler == depth.CPU else _MOST_COMPILED
    wanted = most if compiler == depth.CPU else _FITTING
    # By time alone: arithmetic overestimates the memory of some models, so that what may fit is tried too.
    tried = [entry for entry in entries if entry.verdict != ranking.TOO_LARGE]
    tried.sort(key=lambda entry: entry.seconds)
    with stages.stage(f"planning the best candidates with plan.compiler={compiler}"):
        seen, failed = _seen(children, tried[:most], compiler, wanted)
        if seen and not _fitting(seen):
            # What may fit is fast because it saves no memory. If none of that fits, what fits by arithmetic is next.
            certain = [entry for entry in tried[most:] if entry.verdict == ranking.FITS]
            more, more_failed = _seen(children, certain[:most], compiler, 1)
            seen += more
            failed += more_failed
    if not seen:
        return list(entries)
    names = {entry.candidate for entry in (*seen, *failed)}
    others = [entry for entry in entries if entry.candidate not in names]
    usable = [entry for entry in seen if entry.verdict != ranking.TOO_LARGE]
    too_large = [entry for entry in seen if entry.verdict == ranking.TOO_LARGE]
    unseen = [entry for entry in others if entry.verdict != ranking.TOO_LARGE]
    unseen_too_large = [entry for entry in others if entry.verdict == ranking.TOO_LARGE]
    return [*ranking.ranked(usable), *unseen, *failed, *ranking.ranked(too_large), *unseen_too_large]


def _seen(
    children: compiled.Children, entries: Sequence[ranking.Planned], compiler: str, wanted: int
) -> tuple[list[ranking.Planned], list[ranking.Planned]]:
    """Returns the candidates that a compiler plans until so many fit, and those that it can't compile."""
    seen: list[ranking.Planned] = []
    failed: list[ranking.Planned] = []
    step = children.concurrency
    began = time.monotonic()
    for start in range(0, len(entries), step):
        part = entries[start : start + step]
        for entry, result in zip(part, children.plans(part, compiler), strict=True):
            if isinstance(result, str):
                logger.info("%s: %s", " ".join(entry.candidate.overrides()), result)
                failed.append(entry)
                continue
            seen.append(result)
        is_slow = time.monotonic() - began > _SLOW_S
        if _fitting(seen) >= (1 if is_slow else wanted):
            break
    return seen, failed


def _fitting(entries: Sequence[ranking.Planned]) -> int:
    return sum(1 for entry in entries if entry.verdict == ranking.FITS)


def _report(
    config: RunConfig, advice: _Advice, start: candidates.Candidate, folder: Path, overrides: Sequence[str]
) -> None:
    """Prints and writes the advice.

    Raises:
      EngineError: no candidate fits.
    """
    console = plan_console()
    entries = advice.entries
    best = entries[0]
    fits = best.verdict != ranking.TOO_LARGE
    content = show.table(entries)
    devices = config.advise.devices
    name = config.hardware.name
    memory_bytes = round((config.hardware.memory_gib or 0.0) * _GIB)
    # The share that the largest candidate gets is the largest that any of them can have.
    largest = limits.share(config.hardware.kind, max(entry.peak_bytes for entry in entries), memory_bytes)
    capacity = round((largest or 1.0) * memory_bytes)
    title = f"{devices} devices of hardware={name}, global batch {config.dataset.batch_size}"
    lines = [*show.why(best, entries), *show.left_out(entries, advice.dropped)]
    network = rates.unpriced_network(config.plan, config.hardware, best.candidate.sizes)
    if network is not None:
        lines.append(f"warning: {network}")
    lines.append(f"found in {advice.seconds:.0f} s, with figures from {_depths(entries)}")
    training = [*for_training(overrides), *_changing(best.candidate, start, overrides)]
    command = _with_setting(best, shlex.join(["python", "-m", "runner", *compose.composed_with(), *training]))
    with required(folder):
        (folder / "advise.json").write_text(json.dumps([asdict(entry) for entry in entries], indent=2) + "\n")
        notes = "- " + "\n- ".join(line.strip() for line in lines)
        text = f"# Advice\n\n{title}\n\n{table_markdown(content)}\n\n{notes}\n"
        if fits:
            text += f"\n```sh\n{command}\n```\n"
        (folder / "advise.md").write_text(text)
    with spared(str(folder / "advise.png")):
        _draw(folder / "advise.png", entries, capacity, title)
    console.print(Text(title, style="bold"))
    console.print()
    console.print(rich_table(content, console.width, show.DROP))
    console.print()
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    if fits:
        console.print()
        console.print(f"the best: {command}", soft_wrap=True, markup=False)
    console.print(f"written: advise.md, advise.json, advise.png in {folder}", soft_wrap=True)
    # Only after the table and the files, which show by how much the candidates are too large.
    if not fits:
        raise EngineError(
            f"no candidate fits {devices} devices of hardware={name}: the smallest needs {size(best.peak_bytes)} of "
            f"{size(capacity)} per device; {_fix(best, capacity)}"
        )


def kept(overrides: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides of a command line without those that candidates replace.

    A later override of a key wins, but one of a group must not occur twice.

    Example:
      >>> kept(["model=gpt", "mesh=batch8", "mesh.device=gpu", "advise.devices=8", "mesh.axes={batch: 4}"])
      ('model=gpt', 'mesh.device=gpu')
    """
    remaining = []
    for override in overrides:
        # Hydra's signs before a key: + adds it, ++ sets or adds it, and ~ deletes it.
        key = override.lstrip("+~").partition("=")[0]
        if key not in _REPLACED_GROUPS and not key.startswith(_REPLACED):
            remaining.append(override)
    return tuple(remaining)


def for_training(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides without those that only plans read.

    Example:
      >>> for_training(["model=gpt", "hardware=h100", "plan.price=2"])
      ['model=gpt']
    """
    remaining = []
    for override in overrides:
        group = override.lstrip("+~").partition("=")[0].partition(".")[0]
        if group not in _PLAN_GROUPS:
            remaining.append(override)
    return remaining


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

    def places(entries: Iterable[ranking.Planned]) -> list[tuple[float, float]]:
        return [(entry.peak_bytes / _GIB, 1000 * entry.seconds) for entry in entries]

    series: dict[str, tuple[str, str, list[tuple[float, float]]]] = {}
    layouts = sorted({entry.candidate.layout for entry in entries})
    for (index, layout), (verdict, marker) in itertools.product(enumerate(layouts), _MARKERS.items()):
        chosen = [entry for entry in entries if (entry.candidate.layout, entry.verdict) == (layout, verdict)]
        color = figures.SERIES[index % len(figures.SERIES)]
        series[f"{layout}, {verdict}"] = (color, marker, places(chosen))
    unbeaten = ranking.front([entry for entry in entries if entry.verdict != ranking.TOO_LARGE])
    best = entries[0]
    name = f"1: {mesh.describe(best.candidate.sizes)}, {best.candidate.layout}"
    (place,) = places([best])
    figures.front(path, title, series, places(unbeaten), (name, place), capacity / _GIB)


def _fix(smallest: ranking.Planned, capacity: int) -> str:
    """Returns what makes the smallest candidate fit, if none does: a smaller batch has as large a state."""
    state = sum(count for kind, count in smallest.memory if kind in memory.STATE)
    if smallest.memory and state > capacity:
        return f"its weights and optimizer state alone need {size(state)}: add devices, or choose a smaller model"
    return "lower dataset.batch_size, or add devices"


def _with_setting(entry: ranking.Planned, command: str) -> str:
    """Returns a command after the variable that lets JAX reserve as much memory as a candidate needs."""
    return f"{entry.setting} {command}".lstrip()


def _depths(entries: Sequence[ranking.Planned]) -> str:
    """Returns what the figures come from, in words."""
    names = sorted({entry.depth for entry in entries})
    return " and ".join(f"plan.compiler={name}" for name in names)

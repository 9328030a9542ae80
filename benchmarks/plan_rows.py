"""Plans of published runs: a row of the file, planned by arithmetic or by the target's compiler."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import gpu, published
from runner.cli.notebook import compose
from runner.config.schema import RunConfig
from runner.data import loading
from runner.engine import make_engine, registry
from runner.plan import memory
from runner.plan.base import Plan
from runner.plan.command import compile_step
from runner.plan.forecast import LINK_EFFICIENCY
from runner.plan.make import make_plan
from runner.task.base import DataSpec
from runner.task.registry import make_task

GIB = 1 << 30


@dataclass
class Result:
    """A row's plan beside its published figures.

    Attributes:
      row: number in the file, from 0.
      source: first words of the source.
      model: as published.
      card: option of `hardware`.
      overrides: of the config.
      problem: why there is no plan; empty: there is one.
      predicted_gib: memory per device at the peak.
      counted_gib: of these, what is counted exactly.
      capacity_gib: of the device.
      published_gib: null: not published.
      is_alike: activation checkpointing is that of the run.
      ran_out: the run ended out of memory.
      products_seconds: of the step at the peak rate, with attention at its own cost.
      memory_seconds: through the device's memory.
      links_seconds: of the collectives.
      model_seconds: of the model's FLOPs at the peak rate, without recomputation: the MFU's numerator.
      published_seconds: of a step; null: not published.
      tokens: of a step per device.
      accumulates: microbatches.
      predicted_seconds: with an efficiency fitted on other sources.
      constant_seconds: the opponent's.
      compiled_gib: by the target's compiler; null: not compiled.
      framework_gib: what the run's framework holds in known arrays beyond the runner.
      range_seconds: of a step, as the plan prints it, with the efficiencies of conf/hardware.
      parts: GiB by kind of memory.
    """

    row: int
    source: str
    model: str
    card: str = ""
    overrides: tuple[str, ...] = ()
    problem: str = ""
    predicted_gib: float = math.nan
    counted_gib: float = math.nan
    capacity_gib: float = math.nan
    published_gib: float | None = None
    is_alike: bool = True
    ran_out: bool = False
    products_seconds: float = math.nan
    memory_seconds: float = math.nan
    links_seconds: float = math.nan
    model_seconds: float = math.nan
    published_seconds: float | None = None
    tokens: float = math.nan
    accumulates: int = 1
    predicted_seconds: float | None = None
    constant_seconds: float | None = None
    compiled_gib: float | None = None
    framework_gib: float = 0.0
    range_seconds: tuple[float, float] = (math.nan, math.nan)
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Returns `fits`, `may not fit` or `does not fit`.

        Activations are those of another program, so only a state that is too large says that the run does not fit.
        """
        if self.predicted_gib <= self.capacity_gib:
            return "fits"
        return "may not fit" if self.counted_gib <= self.capacity_gib else "does not fit"

    def seconds(self, efficiency: float) -> float:
        """Returns the step time at an attained share of the peak rate, as `runner.plan.forecast` has it."""
        return max(self.products_seconds / efficiency + self.memory_seconds, self.links_seconds)


def planned(overrides: Sequence[str], *, compiled: bool = False) -> tuple[Plan, RunConfig]:
    """Returns a config's plan, by arithmetic or by the target's compiler, and the config.

    Args:
      overrides: of the config.
      compiled: use the compiler.
    """
    compiler = "target" if compiled else "arithmetic"
    config = compose(*overrides, f"plan.compiler={compiler}")
    registry.prepare(config)
    data = loading.load(config.dataset, config.trainer.seed, task=config.task)
    task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
    spec = DataSpec(task.arrays, task)
    engine = make_engine(config, spec, 1, planning=True)
    engine.build()
    if compiled:
        compile_step(engine, spec, config.dataset.batch_size, 1)
    return make_plan(config, engine, spec, {}), config


def results(rows: Iterable[Mapping[str, str]], report: Callable[[str], None], cache: Path | None) -> list[Result]:
    """Returns the plans of published runs by arithmetic.

    Args:
      rows: of a CSV file.
      report: is called with a line per row that has no plan.
      cache: file with the results so far, which is continued; None: none.
    """
    found: list[Result] = []
    if cache is not None and cache.is_file():
        kept = [Result(**values) for values in json.loads(cache.read_text())]
        found = [result for result in kept if result.source != _OWN]
    for number, row in enumerate(rows):
        if number < len(found):
            continue
        if cache is not None:
            save(cache, found)
        result = Result(number, row["source"].split(",")[0], row["model"])
        found.append(result)
        try:
            run = published.mapped(row)
            result.source = run.source
            result.card = run.card
            result.overrides = run.overrides
            plan, config = planned(run.overrides)
        except Exception as error:  # A row that can't be planned is a result too, with the reason.
            result.problem = f"{error}".splitlines()[0]
            report(f"row {number} ({row['model']}): {result.problem}")
            continue
        _fill(result, run, plan, config)
    return found


# Source of the results of this project's own runs.
_OWN = "mesh-runner"
# Seconds of a step on one H200 by case of `benchmarks.gpu`: docs/h200.md.
_ON_H200 = {"125m,none": 0.160, "125m,full": 0.186, "1b,none": 0.179, "1b,full": 0.215}


def own_results(first: int) -> list[Result]:
    """Returns the plans of this project's runs on one H200 beside their step times.

    Args:
      first: number of the first row.
    """
    found = []
    for number, (case, seconds) in enumerate(_ON_H200.items(), first):
        plan, config = planned(["hardware=h200", *gpu.CONFIG, *gpu.CASES[case]])
        result = Result(number, _OWN, case, card="h200")
        _fill_times(result, plan, config)
        assert plan.forecast is not None
        result.predicted_gib = plan.forecast.peak_bytes / GIB
        result.capacity_gib = config.hardware.memory_gib or math.nan
        result.counted_gib = 0.0
        result.tokens = float(plan.forecast.tokens)
        result.published_seconds = seconds
        found.append(result)
    return found


def save(path: Path, rows: Sequence[Result]) -> None:
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1))


def _fill(result: Result, run: published.Published, plan: Plan, config: RunConfig) -> None:
    """Writes the figures of a plan and of its published run into the result."""
    forecast = plan.forecast
    assert forecast is not None
    result.counted_gib = 0.0
    for part in forecast.memory:
        gib = part.bytes / GIB
        if part.kind == memory.OPTIMIZER:
            gib /= run.optimizer_shards
        result.parts[part.kind] = gib
        if part.source == "counted":
            result.counted_gib += gib
    result.predicted_gib = sum(result.parts.values())
    # Not JAX's share of it: other frameworks take all.
    result.capacity_gib = config.hardware.memory_gib or math.nan
    result.published_gib = run.memory_gib
    result.framework_gib = run.framework_bytes / GIB
    result.is_alike = run.is_alike
    result.ran_out = run.ran_out
    peak = _fill_times(result, plan, config)
    result.tokens = run.tokens_per_device
    result.accumulates = run.accumulates
    if run.has_time and not run.ran_out:
        result.published_seconds = run.step_seconds(plan.flops_per_device, peak)


def _fill_times(result: Result, plan: Plan, config: RunConfig) -> float:
    """Writes a plan's times into the result, and returns the peak rate in FLOP/s."""
    forecast = plan.forecast
    assert forecast is not None
    peaks = config.hardware.peak_tflops
    peak = (peaks.get(config.engine.precision) or max(peaks.values())) * 1e12
    result.model_seconds = plan.flops_per_device / peak
    # The range's fast end is that of the largest efficiency.
    result.products_seconds = forecast.compute_seconds[0] * config.hardware.efficiency[1]
    result.memory_seconds = forecast.memory_seconds
    result.range_seconds = forecast.step_seconds
    result.links_seconds = forecast.link_seconds / LINK_EFFICIENCY
    return peak


def compile_some(rows: Sequence[Result], count: int) -> None:
    """Compiles rows with the target's compiler, each in a process of its own, spread over the rows that have one."""
    able = [row for row in rows if not row.problem and row.card in ("h100", "h200", "a100_40g", "a100_80g", "b200")]
    step = max(len(able) // count, 1)
    # Those with a published memory first.
    able.sort(key=lambda row: row.published_gib is None)
    with_memory = sum(row.published_gib is not None for row in able)
    chosen = able[: min(with_memory, count // 2)] + able[with_memory::step]
    for row in chosen[:count]:
        command = [sys.executable, "-m", "benchmarks.plans", "--child-target", json.dumps(row.overrides)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            print(f"row {row.row}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr, flush=True)
            continue
        row.compiled_gib = float(done.stdout.splitlines()[-1])
        print(
            f"row {row.row}: compiled {row.compiled_gib:.1f} GiB, arithmetic {row.predicted_gib:.1f}", file=sys.stderr
        )

"""How far plans are from real runs: published ones, the compilers' figures, and runs on this machine.

    python -m benchmarks.plans published_runs.csv                       # every row by arithmetic: half a second each
    python -m benchmarks.plans published_runs.csv --target 8            # and eight of them by the GPU compiler
    python -m benchmarks.plans --here                                   # ten small configs, really run on this CPU
    python -m benchmarks.plans published_runs.csv --write docs/plan_accuracy.md --record runner/plan/known_errors.json

The rows have the columns of `benchmarks.published.COLUMNS`. Efficiencies per card are fitted again on all sources but
one, and judged on that one; what is printed for a row never used its own source. The opponent is a constant: the
median MFU of the card's rows of other sources.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks import published
from runner.config.schema import RunConfig
from runner.data import loading
from runner.data.base import WEIGHT
from runner.engine import make_engine, registry
from runner.engine.base import CountsCost, HostBatches
from runner.notebook.composing import compose
from runner.plan import depth, known_errors
from runner.plan.base import Plan
from runner.plan.command import compile_step
from runner.plan.forecast import LINK_EFFICIENCY
from runner.plan.make import make_plan
from runner.task.base import DataSpec
from runner.task.registry import make_task

_GIB = 1 << 30
# Half of the width of the step time's range, as a factor: 80% of the published runs lie inside.
_INSIDE = 0.8
# Pairs of runs whose times differ by less are not ordered: published tables do not repeat runs.
_DIFFERENT = 1.2
# Cards that a card's efficiency is taken from if the other sources have none of its own, the nearest first.
_RELATED = {
    "h200": ("h100",),
    "b200": ("h100",),
    "a100_40g": ("a100_80g",),
    "a100_80g": ("a100_40g",),
    "v5e": ("v6e", "v5p", "v4"),
    "v5p": ("v4", "v5e", "v6e"),
    "v6e": ("v5e", "v5p", "v4"),
    "v4": ("v5p", "v5e", "v6e"),
}
# Rows by which a card's own efficiency is drawn to that of all cards.
_SHRINKAGE = 1.0


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
        """Returns what the plan says: `fits`, `may not fit` or `does not fit`."""
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
    config = depth.settled(compose(*overrides, f"plan.compiler={compiler}"))
    registry.prepare(config)
    data = loading.load_run(config)
    task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
    spec = DataSpec(task.arrays, task)
    engine = make_engine(config, spec, 1, planning=True)
    engine.build()
    if compiled:
        compile_step(engine, spec, config.dataset.batch_size, 1)
    return make_plan(config, engine, spec, {}, [""] * len(config.layout.rules)), config


def results(rows: Iterable[Mapping[str, str]], report: Callable[[str], None], cache: Path | None) -> list[Result]:
    """Returns the plans of published runs by arithmetic.

    Args:
      rows: of a CSV file.
      report: is called with a line per row that has no plan.
      cache: file with the results so far, which is continued; None: none.
    """
    found: list[Result] = []
    if cache is not None and cache.is_file():
        found = [Result(**values) for values in json.loads(cache.read_text())]
    for number, row in enumerate(rows):
        if number < len(found):
            continue
        if cache is not None:
            _save(cache, found)
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


def _save(path: Path, rows: Sequence[Result]) -> None:
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1))


def _fill(result: Result, run: published.Published, plan: Plan, config: RunConfig) -> None:
    """Writes the figures of a plan and of its published run into the result."""
    forecast = plan.forecast
    assert forecast is not None
    result.counted_gib = 0.0
    for part in forecast.memory:
        result.parts[part.kind] = part.bytes / _GIB
        if part.source == "counted":
            result.counted_gib += part.bytes / _GIB
    result.predicted_gib = forecast.peak_bytes / _GIB
    result.capacity_gib = forecast.capacity_bytes / _GIB
    result.published_gib = run.memory_gib
    result.framework_gib = run.framework_bytes / _GIB
    result.is_alike = run.is_alike
    result.ran_out = run.ran_out
    peaks = config.hardware.peak_tflops
    peak = (peaks.get(config.engine.precision) or max(peaks.values())) * 1e12
    result.model_seconds = plan.flops_per_device / peak
    # The range's fast end is that of the largest efficiency.
    result.products_seconds = forecast.compute_seconds[0] * config.hardware.efficiency[1]
    result.memory_seconds = forecast.memory_seconds
    result.range_seconds = forecast.step_seconds
    result.links_seconds = forecast.link_seconds / LINK_EFFICIENCY
    result.tokens = run.tokens_per_device
    result.accumulates = run.accumulates
    if run.has_time and not run.ran_out:
        result.published_seconds = run.step_seconds(plan.flops_per_device, peak)


def efficiency(result: Result) -> float | None:
    """Returns the share of the peak with which a plan's step takes as long as the published one.

    Null: no share does, as for a step that the links bound.
    """
    assert result.published_seconds is not None
    left = result.published_seconds - result.memory_seconds
    if left <= 0 or result.links_seconds >= result.published_seconds:
        return None
    return result.products_seconds / left


def fitted(rows: Sequence[Result], card: str) -> float | None:
    """Returns the efficiency of a card: the median of its rows, drawn to that of related cards and of all rows."""
    by_card: dict[str, list[float]] = {}
    for row in rows:
        share = efficiency(row)
        if share is not None:
            by_card.setdefault(row.card, []).append(share)
    everything = [share for shares in by_card.values() for share in shares]
    if not everything:
        return None
    prior = statistics.median(everything)
    for related in _RELATED.get(card, ()):
        if related in by_card:
            prior = statistics.median(by_card[related])
            break
    own = by_card.get(card, [])
    if not own:
        return prior
    weight = len(own) / (len(own) + _SHRINKAGE)
    return math.exp(weight * math.log(statistics.median(own)) + (1 - weight) * math.log(prior))


def judge_times(rows: Sequence[Result]) -> None:
    """Writes the predicted step times into the rows: of efficiencies, and of a constant, from other sources alone."""
    timed = [row for row in rows if row.published_seconds is not None]
    for source in {row.source for row in timed}:
        others = [row for row in timed if row.source != source]
        for row in timed:
            if row.source != source:
                continue
            share = fitted(others, row.card)
            if share is not None:
                row.predicted_seconds = row.seconds(share)
            constant = _constant(others, row.card)
            if constant is not None:
                row.constant_seconds = row.model_seconds / constant


def _constant(rows: Sequence[Result], card: str) -> float | None:
    """Returns the median MFU of a card's rows, or of its related cards', or of all."""
    for cards in ((card,), _RELATED.get(card, ()), tuple({row.card for row in rows})):
        shares = [row.model_seconds / (row.published_seconds or math.nan) for row in rows if row.card in cards]
        if shares:
            return statistics.median(shares)
    return None


@dataclass(frozen=True)
class Errors:
    """Relative errors of one figure: their number, median, 90th percentile, and the worst."""

    runs: int
    median: float
    p90: float
    worst: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> Errors | None:
        """Returns the errors of (predicted, true) pairs; None if there are none."""
        errors = sorted(abs(predicted / true - 1) for predicted, true in pairs)
        if not errors:
            return None
        return cls(len(errors), float(np.quantile(errors, 0.5)), float(np.quantile(errors, 0.9)), errors[-1])

    def __str__(self) -> str:
        return f"median {self.median:.0%}, p90 {self.p90:.0%}, worst {self.worst:.0%} over {self.runs} runs"


def time_errors(rows: Iterable[Result], *, constant: bool = False) -> Errors | None:
    """Returns the errors of predicted step times."""
    pairs = []
    for row in rows:
        predicted = row.constant_seconds if constant else row.predicted_seconds
        if predicted is not None and row.published_seconds is not None:
            pairs.append((predicted, row.published_seconds))
    return Errors.of(pairs)


def memory_errors(rows: Iterable[Result], *, alike: bool | None = None, own: bool = True) -> Errors | None:
    """Returns the errors of predicted memory.

    Args:
      rows: of which those with a published memory count.
      alike: only those whose activation checkpointing is the plan's, or only the others; None: all.
      own: as planned; else with the known arrays that the run's framework holds beyond.
    """
    pairs = []
    for row in rows:
        if row.published_gib and not row.problem and alike in (None, row.is_alike):
            pairs.append((row.predicted_gib + (0.0 if own else row.framework_gib), row.published_gib))
    return Errors.of(pairs)


def differences(rows: Sequence[Result]) -> list[tuple[Result, Result, float, float]]:
    """Returns pairs of runs of one model whose config differs in devices or batch alone: predicted, published GiB."""
    found = []
    for first, second in combinations([row for row in rows if row.published_gib and not row.problem], 2):
        changed = set(first.overrides) ^ set(second.overrides)
        keys = {override.partition("=")[0] for override in changed}
        is_one_model = first.model == second.model and bool(keys) and keys <= {"mesh.axes", "dataset.batch_size"}
        if is_one_model and first.published_gib != second.published_gib:
            predicted = second.predicted_gib + second.framework_gib - first.predicted_gib - first.framework_gib
            stated = (second.published_gib or 0.0) - (first.published_gib or 0.0)
            found.append((first, second, predicted, stated))
    return found


def order(rows: Sequence[Result]) -> tuple[int, int]:
    """Returns how many pairs on one card differ by 20% per FLOP-normalized time, and how many the plan orders right.

    Compared is the time per token, so that a larger batch is no slower run.
    """
    right = 0
    pairs = 0
    timed = [row for row in rows if row.predicted_seconds and row.published_seconds]
    for first, second in combinations(timed, 2):
        if first.card != second.card:
            continue
        true = _ratio(first, second, lambda row: row.published_seconds)
        predicted = _ratio(first, second, lambda row: row.predicted_seconds)
        if max(true, 1 / true) >= _DIFFERENT:
            pairs += 1
            right += (true > 1) == (predicted > 1)
    return pairs, right


def _ratio(first: Result, second: Result, seconds: Callable[[Result], float | None]) -> float:
    """Returns the ratio of two runs' times per token."""
    return (seconds(first) or math.nan) / first.tokens / ((seconds(second) or math.nan) / second.tokens)


def gates(rows: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Returns runs that ran and are rejected, and runs that ran out of memory and are accepted."""
    planned_rows = [row for row in rows if not row.problem]
    rejected = [row for row in planned_rows if not row.ran_out and row.verdict == "does not fit"]
    accepted = [row for row in planned_rows if row.ran_out and row.verdict == "fits"]
    return rejected, accepted


def half_width(rows: Sequence[Result]) -> float:
    """Returns the factor around predicted times inside of which 80% of the published ones lie."""
    ratios = []
    for row in rows:
        if row.predicted_seconds and row.published_seconds:
            ratio = row.predicted_seconds / row.published_seconds
            ratios.append(max(ratio, 1 / ratio))
    return float(np.quantile(ratios, _INSIDE)) if ratios else math.nan


def _table(rows: Sequence[Result]) -> list[list[str]]:
    """Returns a line per run: predicted and published figures side by side."""
    lines = [
        [
            "run",
            "card",
            "GiB predicted",
            "published",
            "verdict",
            "tokens/s",
            "published",
            "step",
            "published",
            "MFU",
            "published",
        ]
    ]
    for row in rows:
        if row.problem:
            continue
        line = [f"{row.row} {row.model[:24]}", row.card, f"{row.predicted_gib:.1f}", _text(row.published_gib, ".1f")]
        line.append(row.verdict)
        for predicted, true in (
            (_per(row.tokens, row.predicted_seconds), _per(row.tokens, row.published_seconds)),
            (row.predicted_seconds, row.published_seconds),
            (_per(row.model_seconds, row.predicted_seconds), _per(row.model_seconds, row.published_seconds)),
        ):
            form = ".0f" if predicted and predicted > 100 else ".3g"
            line += [_text(predicted, form), _text(true, form)]
        lines.append(line)
    return lines


def _per(amount: float, seconds: float | None) -> float | None:
    return amount / seconds if seconds else None


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def summary(rows: Sequence[Result]) -> list[tuple[str, str]]:
    """Returns figure and value of everything that the runs add up to."""
    lines = []
    have = [row for row in rows if not row.problem]
    lines.append(("published runs, planned", f"{len(rows)}, {len(have)}"))
    for alike, words in (
        (True, "activation checkpointing of the run"),
        (False, "activation checkpointing near the run's"),
    ):
        lines.append((f"memory, {words}", str(memory_errors(have, alike=alike) or "none")))
        with_loss = memory_errors(have, alike=alike, own=False)
        lines.append((f"memory, {words}, and its framework's arrays", str(with_loss or "none")))
    for first, second, predicted, true in differences(have):
        lines.append(
            (f"memory, run {second.row} less run {first.row}", f"{predicted:+.2f} GiB, published {true:+.2f}")
        )
    lines.append(("step time", str(time_errors(have) or "none")))
    lines.append(("step time by a constant MFU per card", str(time_errors(have, constant=True) or "none")))
    for source in sorted({row.source for row in have}):
        own = [row for row in have if row.source == source]
        errors = time_errors(own)
        if errors:
            lines.append((f"step time, {source}", f"{errors}; constant: {time_errors(own, constant=True)}"))
    lines.append(("factor around the step time that has 80% of the runs inside", f"{half_width(have):.2f}"))
    inside = [
        row.range_seconds[0] <= row.published_seconds <= row.range_seconds[1]
        for row in have
        if row.published_seconds is not None
    ]
    lines.append(("step times inside the printed range", f"{sum(inside)} of {len(inside)}"))
    pairs, right = order(have)
    lines.append(("pairs on one card that differ by 20%, in the right order", f"{right} of {pairs}"))
    rejected, accepted = gates(have)
    lines.append(("runs that ran and are rejected", ", ".join(str(row.row) for row in rejected) or "none"))
    lines.append(
        ("runs that ran out of memory and are accepted", ", ".join(str(row.row) for row in accepted) or "none")
    )
    verdicts = [row.verdict for row in have if not row.ran_out]
    lines.append(
        ("verdicts of runs that ran", f"{verdicts.count('fits')} fits, {verdicts.count('may not fit')} may not fit")
    )
    for card in sorted({row.card for row in have}):
        share = fitted([row for row in have if row.published_seconds], card)
        if share:
            lines.append((f"efficiency of {card}, all sources", f"{share:.3f}"))
    compiled = [row for row in have if row.compiled_gib]
    errors = Errors.of((row.predicted_gib, row.compiled_gib or math.nan) for row in compiled)
    if errors:
        lines.append(("memory, arithmetic compared with the compiler", str(errors)))
    return lines


# Small models of several kinds on several meshes, all really run; sizes that a step of some 0.1 s has on two cores.
_TEXT = ("task=language_model", "task.sample.prompt=null", "dataset=synthetic", "dataset.batch_size=16")
_HERE: Mapping[str, tuple[str, ...]] = {
    "gpt, data": (*_TEXT, "model=gpt", "task.vocabulary=1024", "dataset.length=128", "mesh.axes={batch:8}"),
    "gpt, fsdp, remat": (
        *_TEXT,
        *("model=gpt", "model.dim=256", "model.remat=full", "task.vocabulary=1024", "dataset.length=256"),
        *("mesh.axes={batch:8}", "layout=fsdp"),
    ),
    "gpt, tensor": (
        *_TEXT,
        *("model=gpt", "model.dim=256", "model.heads=8", "task.vocabulary=2048", "dataset.length=128"),
        *("mesh.axes={batch:2,model:4}", "layout=fsdp_megatron"),
    ),
    "gpt, whole logits": (
        *_TEXT,
        *("model=gpt", "model.fused_head=false", "task.vocabulary=8192", "dataset.length=128", "mesh.axes={batch:8}"),
        "layout=fsdp",
    ),
    "llama, scan": (
        *_TEXT,
        *("model=gpt", "model.positions=rotary", "model.norm=rms", "model.activation=swiglu", "model.bias=false"),
        *("model.scan=true", "model.depth=8", "task.vocabulary=1024", "dataset.length=256", "mesh.axes={batch:4}"),
        *("layout=fsdp", "model.remat=full"),
    ),
    "gpt, one device": (
        *_TEXT,
        "model=gpt",
        "model.depth=2",
        "task.vocabulary=512",
        "dataset.length=64",
        "mesh.axes={batch:1}",
    ),
    "gpt, accumulation": (
        *_TEXT,
        *("model=gpt", "task.vocabulary=1024", "dataset.length=256", "mesh.axes={batch:4}", "layout=fsdp"),
        "trainer.accumulate_steps=4",
    ),
    "vit": ("model=vit", "dataset=digits", "dataset.batch_size=256", "mesh.axes={batch:8}", "layout=fsdp"),
    "mlp": (
        "model=mlp",
        "model.hidden=[2048,2048]",
        "dataset=digits",
        "dataset.batch_size=1024",
        "mesh.axes={batch:8}",
    ),
    "convnet": ("model=convnet", "dataset=digits", "dataset.batch_size=512", "mesh.axes={batch:4}"),
}
# Figures of a virtual CPU device, only to have a plan by arithmetic: memory is what is compared.
_CPU = (
    "hardware=h100",
    "hardware.name=cpu_device",
    "hardware.kind=cpu",
    "hardware.target=null",
    "+hardware.peak_tflops.float32=0.03",
)
_STEPS = 5


def measured_here(name: str) -> dict[str, float]:
    """Runs a config of `_HERE` on virtual CPU devices, in this process.

    Returns:
      Its peak memory per device by XLA and that of the plan by arithmetic, in MiB; and the seconds of a step: real,
      and by the plan's FLOPs and bytes.
    """
    overrides = ("engine=jax", "optimizer=adamw", "trainer.steps=10", "engine.compilation_cache=false", *_HERE[name])
    plan, _ = planned((*overrides, *_CPU))
    assert plan.forecast is not None
    config = compose(*overrides, "mesh.device=cpu")
    registry.prepare(config)
    data = loading.load_run(config)
    task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
    spec = DataSpec(task.arrays, task)
    engine = make_engine(config, spec, 1)
    engine.build()
    shape = (1, config.dataset.batch_size)
    arrays = {key: np.zeros((*shape, *array.shape), array.dtype) for key, array in spec.arrays.items()}
    weights = np.ones(shape, np.float32)
    placed = engine.place(HostBatches({**arrays, WEIGHT: weights}, weights, 1))
    engine.compile(placed)
    assert isinstance(engine, CountsCost)
    cost = engine.program_cost()
    assert cost is not None
    seconds = []
    for _ in range(_STEPS):
        begun = time.monotonic()
        engine.train_steps(placed, 0).read()
        seconds.append(time.monotonic() - begun)
    return {
        "xla": (cost.argument_bytes + cost.temporary_bytes) / 2**20,
        "plan": plan.forecast.peak_bytes / 2**20,
        "seconds": min(seconds),
        # All virtual devices share the cores: what is ordered is the work of all of them.
        "planned_seconds": math.prod(plan.axes.values()) * statistics.mean(plan.forecast.step_seconds),
    }


def here() -> tuple[list[list[str]], dict[str, Errors]]:
    """Runs each config of `_HERE` in a process of its own; returns a table and the errors of the memory."""
    lines = [["config", "peak MiB of XLA", "plan", "step ms", "rank by plan"]]
    runs: dict[str, dict[str, float]] = {}
    for name in _HERE:
        command = [sys.executable, "-m", "benchmarks.plans", "--child", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr, flush=True)
            continue
        runs[name] = json.loads(done.stdout.splitlines()[-1])
    ranks = sorted(runs, key=lambda name: runs[name]["planned_seconds"])
    for name in sorted(runs, key=lambda name: runs[name]["seconds"]):
        run = runs[name]
        cells = [
            name,
            f"{run['xla']:.1f}",
            f"{run['plan']:.1f}",
            f"{1000 * run['seconds']:.1f}",
            str(ranks.index(name) + 1),
        ]
        lines.append(cells)
    pairs = [(run["plan"], run["xla"]) for run in runs.values()]
    found = {}
    errors = Errors.of(pairs)
    if errors:
        found["memory on this CPU, arithmetic compared with XLA"] = errors
    ordered = [_in_order(first, second) for first, second in combinations(runs.values(), 2)]
    known = [answer for answer in ordered if answer is not None]
    lines.append(["pairs that differ by 20%, in the right order", f"{sum(known)} of {len(known)}", "", "", ""])
    return lines, found


def _in_order(first: Mapping[str, float], second: Mapping[str, float]) -> bool | None:
    """Returns whether the plans order two runs as their step times do; None if these differ by less than 20%."""
    true = first["seconds"] / second["seconds"]
    if max(true, 1 / true) < _DIFFERENT:
        return None
    return (true > 1) == (first["planned_seconds"] > second["planned_seconds"])


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


def recorded(rows: Sequence[Result], more: Mapping[str, Errors]) -> dict[str, dict[str, object]]:
    """Returns the content of `runner/plan/known_errors.json`: the errors that plans print."""
    entries: dict[str, tuple[Errors | None, str]] = {
        "memory, arithmetic": (
            Errors.of((row.predicted_gib, row.compiled_gib) for row in rows if row.compiled_gib is not None),
            "programs of the target's compiler",
        ),
        "memory, target": (
            Errors.of(
                (row.compiled_gib, row.published_gib)
                for row in rows
                if row.compiled_gib is not None and row.published_gib is not None
            ),
            "published runs",
        ),
        "step time": (time_errors(rows), "published runs"),
    }
    content: dict[str, dict[str, object]] = {}
    for name, (errors, of) in entries.items():
        if errors is not None:
            content[name] = {"runs": errors.runs, "median": errors.median, "p90": errors.p90, "of": of}
    for name, errors in more.items():
        content[name] = {"runs": errors.runs, "median": errors.median, "p90": errors.p90, "of": "runs"}
    return content


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Returns a table whose first line is the heading."""
    parts = ["| " + " | ".join(lines[0]) + " |", "|" + "---|" * len(lines[0])]
    parts += ["| " + " | ".join(line) + " |" for line in lines[1:]]
    return "\n".join(parts)


# Comments in a page between which the benchmark writes its tables.
_BEGIN = "<!-- written by benchmarks.plans -->"
_END = "<!-- end -->"


def _complain(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def write_page(path: Path, tables: str) -> None:
    """Replaces the tables of a page."""
    before, _, rest = path.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    path.write_text(f"{before}{_BEGIN}\n\n{tables}\n\n{_END}{after}")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="?", type=Path, help="CSV file of published runs")
    parser.add_argument("--target", type=int, default=0, metavar="N", help="compile N rows with the target's compiler")
    parser.add_argument("--here", action="store_true", help="run small configs on this CPU")
    parser.add_argument("--json", type=Path, help="all figures of all rows; rows in it are not planned again")
    parser.add_argument("--write", type=Path, help="page to write the tables into")
    parser.add_argument("--record", type=Path, help="file of the errors that plans print")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--child-target", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measured_here(arguments.child)))
        return
    if arguments.child_target:
        plan, _ = planned(json.loads(arguments.child_target), compiled=True)
        assert plan.forecast is not None
        print(plan.forecast.peak_bytes / _GIB)
        return
    if arguments.runs is None and not arguments.here:
        parser.error("name a CSV file of published runs, or --here")
    rows: list[Result] = []
    tables = []
    content: dict[str, dict[str, object]] = {}
    if arguments.runs:
        rows = results(published.read(arguments.runs), _complain, arguments.json)
        judge_times(rows)
        if arguments.target:
            compile_some(rows, arguments.target)
    own: dict[str, Errors] = {}
    if arguments.here:
        lines, own = here()
        tables.append(markdown(lines))
    content = recorded(rows, own)
    known = [["figure of a plan", "error"]]
    for name, values in content.items():
        known.append([name, str(known_errors.Errors(**values))])  # type: ignore[arg-type]
    parts = [markdown(known)]
    if rows:
        parts += [markdown([("figure", "value"), *summary(rows)]), markdown(_table(rows))]
    text = "\n\n".join([*parts, *tables])
    print(text)
    if arguments.json:
        _save(arguments.json, rows)
    if arguments.write:
        write_page(arguments.write, text)
    if arguments.record:
        arguments.record.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()

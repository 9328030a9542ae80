"""Steps a second of several processes: the engine `jax` beside a bare JAX loop of the same step, interleaved.

    python -m benchmarks.processes                                  # MNIST; MLP and convnet; 2 x 1 and 2 x 4 devices
    python -m benchmarks.processes --model mlp --shape 2x1 --repeats 5 --undisturbed 0.01
    python -m benchmarks.processes --dataset synthetic --steps 40 --repeats 1

A shape is processes x devices of each. All contenders of a case train the same model on the same examples with the
same global batch, over gloo and loopback; a repeat runs each once, in an order drawn again. Besides the engine and the
bare loop (`benchmarks.bare_jax`) there is the engine in one process that holds all of the devices, which tells what
the processes cost. `--check` asks that the engine makes at least 0.95 times the steps of the bare loop.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import data
from benchmarks.contenders import ROOT, Contender, ContenderError, child_env, last_json_line, run_process
from benchmarks.ours import read_summary
from benchmarks.throughput import processor_ticks, stolen_share
from runner.cluster.launch import free_port

AT_LEAST = 0.95
OURS = "ours, jax"
BARE = "bare JAX loop"
ALONE = "ours, jax, one process"
# Whether it runs in several processes.
_CONTENDERS = {OURS: True, ALONE: False}
# Steps that a measurement is long enough with.
_STEPS = {("mlp", 1): 800, ("mlp", 4): 300, ("convnet", 1): 200, ("convnet", 4): 80}
_WARMUP = 20
_LONGEST_EPOCH = 400
_TIMEOUT_S = 600.0
_COLLECTIVE_S = 60
_THREADS_A_DEVICE = 4
_RETRIES = 3


@dataclass(frozen=True)
class Case:
    """What is trained, and on what.

    Attributes:
      model: key of `benchmarks.data.TASKS`.
      processes: how many.
      devices: virtual ones of each process.
      steps: that are measured.
    """

    model: str
    processes: int
    devices: int
    steps: int

    @property
    def title(self) -> str:
        """Names the case."""
        return f"{data.TASKS[self.model].title}: {self.processes} processes x {self.devices} devices"


@dataclass(frozen=True)
class Session:
    """What one invocation holds fixed.

    Attributes:
      dataset: overrides that choose the runner's examples.
      data_file: the same examples, as the bare loop reads them.
      scratch: folder for the runs.
    """

    dataset: tuple[str, ...]
    data_file: Path
    scratch: Path


def run_ours(name: str, case: Case, session: Session, folder: Path) -> dict[str, Any]:
    """Trains with the runner.

    Raises:
      ContenderError: it failed.
    """
    task = data.TASKS[case.model]
    epoch = min(case.steps, _LONGEST_EPOCH)
    arguments = [
        *session.dataset,
        "engine=jax",
        f"model={case.model}",
        f"mesh.axes={{batch:{case.processes * case.devices}}}",
        *(["cluster=local", f"cluster.processes={case.processes}"] if _CONTENDERS[name] else []),
        f"dataset.batch_size={task.batch_size}",
        f"optimizer.learning_rate={task.learning_rate}",
        f"trainer.steps_per_epoch={epoch}",
        f"trainer.epochs={math.ceil(case.steps / epoch)}",
        "trainer.limit_eval_batches=1",
        "trainer.checkpoint.enabled=false",
        "trainer.progress=none",
        "tracking=none",
        f"hydra.run.dir={json.dumps(str(folder))}",
    ]
    run_process([sys.executable, "-m", "runner", *arguments], child_env(Contender(name, name, "")), _TIMEOUT_S)
    summary = read_summary(folder / "summary.json")
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    return {
        "steps_per_second": float(summary["steps_per_second"]),
        "steps": int(summary["measured_steps"]),
        "cpu_ms_per_step": float(summary["cpu_ms_per_step"]),  # process 0's
        "all_reduces": sum(one["count"] for one in plan["traffic"] if one["kind"] == "all_reduce"),
        "final_loss": float(summary["train_loss"]),
    }


def run_bare(case: Case, session: Session) -> dict[str, Any]:
    """Trains with the bare loop.

    Raises:
      ContenderError: one of its processes failed.
    """
    # The loop starts a step before the one before it has ended, and each holds a thread a device until all have met:
    # with few more than the devices it waits for ever.
    threads = max(os.cpu_count() or 1, _THREADS_A_DEVICE * case.devices)
    limit = f"--xla_cpu_collective_timeout_seconds={_COLLECTIVE_S}"
    own = {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": str(threads), "XLA_FLAGS": limit}
    env = {
        key: value
        for key, value in child_env(Contender(BARE, BARE, "", own)).items()
        if not key.lower().endswith("_proxy")  # JAX's service is asked at once, without any between
    }
    command = [
        sys.executable,
        "-m",
        "benchmarks.bare_jax",
        f"--model={case.model}",
        f"--data-file={session.data_file}",
        f"--processes={case.processes}",
        f"--devices={case.devices}",
        f"--coordinator=127.0.0.1:{free_port()}",
        f"--steps={case.steps}",
        f"--warmup-steps={_WARMUP}",
    ]
    started = [
        subprocess.Popen(
            [*command, f"--process={index}"],
            cwd=ROOT,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for index in range(case.processes)
    ]
    try:
        said = [process.communicate(timeout=_TIMEOUT_S) for process in started]
    except subprocess.TimeoutExpired:
        raise ContenderError(f"no result after {_TIMEOUT_S:.0f} s") from None
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(started, said, strict=True):
        if process.returncode:
            raise ContenderError(f"exit code {process.returncode}: " + "\n".join(errors.splitlines()[-8:]))
    return last_json_line(said[0][0])


def measured(name: str, case: Case, session: Session, repeat: int, undisturbed: float | None) -> dict[str, Any]:
    """Measures a contender, again while others took more of the processors; a failure is an entry with `error`."""
    figures: dict[str, Any] = {}
    for again in range(_RETRIES + 1):
        before = processor_ticks()
        try:
            if name == BARE:
                figures = run_bare(case, session)
            else:
                short = (
                    f"{case.model}-{case.processes}x{case.devices}-{list(_CONTENDERS).index(name)}-{repeat}-{again}"
                )
                figures = run_ours(name, case, session, session.scratch / short)
        except ContenderError as error:
            figures = {"error": str(error)}
        stolen = stolen_share(before, processor_ticks())
        figures |= {"repeat": repeat, "measured_again": again, "stolen_share": stolen}
        if undisturbed is None or stolen is None or stolen <= undisturbed:
            break
    return figures


def _good(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [run for run in runs if "error" not in run]


def _median(runs: list[dict[str, Any]], key: str) -> float | None:
    found = [run[key] for run in _good(runs) if run.get(key) is not None]
    return statistics.median(found) if found else None


def ratios(runs: dict[str, list[dict[str, Any]]], one: str, other: str) -> tuple[float | None, list[float]]:
    """Returns the ratio of two contenders' medians, and those within each repeat; None where one has no figures."""
    medians = [_median(runs.get(name, []), "steps_per_second") for name in (one, other)]
    if None in medians:
        return None, []
    rates = [{run["repeat"]: run["steps_per_second"] for run in _good(runs[name])} for name in (one, other)]
    paired = [rates[0][repeat] / rates[1][repeat] for repeat in sorted({*rates[0]} & {*rates[1]})]
    return medians[0] / medians[1], paired  # type: ignore[operator]


def show(case: Case, runs: dict[str, list[dict[str, Any]]], console: Console) -> float | None:
    """Prints a case's table and ratios; returns that of the engine `jax` beside the bare loop."""
    table = Table("", "steps/s", "slowest", "fastest", "ms a step", "all-reduces", "loss", title=case.title)
    for name, entries in runs.items():
        rates = [run["steps_per_second"] for run in _good(entries)]
        if not rates:
            table.add_row(name, str(entries[-1]["error"]).splitlines()[0] if entries else "-")
            continue
        rate = statistics.median(rates)
        cells = [f"{rate:.1f}", f"{min(rates):.1f}", f"{max(rates):.1f}", f"{1000 / rate:.2f}"]
        table.add_row(name, *cells, f"{_median(entries, 'all_reduces'):.0f}", f"{_median(entries, 'final_loss'):.3f}")
    console.print(table)
    found = None
    for one, other in ((OURS, BARE), (OURS, ALONE)):
        ratio, paired = ratios(runs, one, other)
        if ratio is not None:
            shown = ", ".join(f"{each:.3f}" for each in paired)
            console.print(f"{one} beside {other}: {ratio:.3f} (paired: {shown})", highlight=False)
        if (one, other) == (OURS, BARE):
            found = ratio
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=tuple(data.TASKS), help="default: all")
    parser.add_argument("--shape", action="append", help="processes x devices of each; default: 2x1 and 2x4")
    parser.add_argument("--only", help=f"contenders, separated by semicolons: {'; '.join((BARE, *_CONTENDERS))}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, help="that are measured; default: by model and shape")
    parser.add_argument("--dataset", choices=("mnist", "synthetic"), default="mnist")
    parser.add_argument("--data-dir", help="where prepared data lies (the runner's dataset.data_dir)")
    parser.add_argument(
        "--undisturbed", type=float, metavar="SHARE", help="measures again where others had more of the processors"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "processes_benchmark.json")
    parser.add_argument("--check", action="store_true", help=f"exits with code 1 where a ratio is below {AT_LEAST}")
    return parser.parse_args()


def prepared(given: argparse.Namespace, scratch: Path) -> Session:
    """Writes the examples that all train on."""
    file = scratch / "examples.npz"
    if given.dataset == "mnist":
        data.save(data.mnist(data.MNIST_TRAIN, given.data_dir), file)
        place = [] if given.data_dir is None else [f"dataset.data_dir={json.dumps(given.data_dir)}"]
        return Session(("dataset=mnist", *place), file, scratch)
    data.save(data.synthetic(data.MNIST_TRAIN), file)
    return Session(("dataset=arrays", f"dataset.path={json.dumps(str(file))}"), file, scratch)


def main() -> int:
    """Measures, prints tables and ratios, and writes the JSON file.

    Returns:
      The exit code: with `--check` 1 where a ratio is missed or could not be measured.
    """
    given = parse_arguments()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # by way of what ends the children
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    asked = set(given.only.split(";")) if given.only else {BARE, *_CONTENDERS}
    names = [name for name in (OURS, BARE, ALONE) if name in {one.strip() for one in asked}]
    found = []
    with tempfile.TemporaryDirectory(prefix="processes-") as folder:
        session = prepared(given, Path(folder))
        for model in given.model or list(data.TASKS):
            for shape in given.shape or ["2x1", "2x4"]:
                processes, devices = map(int, shape.split("x"))
                steps = given.steps or _STEPS.get((model, devices), 100)
                case = Case(model, processes, devices, steps)
                runs = {name: [] for name in names}
                for repeat in range(given.repeats):
                    for name in random.Random(repeat).sample(names, len(names)):
                        figures = measured(name, case, session, repeat, given.undisturbed)
                        runs[name].append(figures)
                        rate = figures.get("steps_per_second")
                        shown = f"{rate:.1f} steps/s" if rate else f"failed: {figures['error']}"
                        console.print(f"{model} {shape} repeat {repeat + 1}/{given.repeats}  {name}: {shown}")
                ratio = show(case, runs, console)
                found.append({"model": model, "shape": shape, "steps": steps, "ratio_to_bare": ratio, "runs": runs})
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2) + "\n")
    console.print(f"figures: {given.out}")
    missed = [case for case in found if not case["ratio_to_bare"] or case["ratio_to_bare"] < AT_LEAST]
    return 1 if given.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())

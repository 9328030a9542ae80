"""Training throughput of the runner beside its peers, in one invocation.

    python -m benchmarks.throughput                      # MNIST, three repeats, every default contender of the MLP
    python -m benchmarks.throughput --model convnet      # the Keras guide's network: engine=jax and its peers
    python -m benchmarks.throughput --dataset synthetic --only tutorial,tf_keras_fit --repeats 1 --seconds 3

Every contender of a model trains on the same examples, each time in a process of its own: a 784-128-10 ReLU MLP (Adam
0.01, batch 128) or the convnet of the Keras guide for JAX (Adam 0.001, batch 64), by cross-entropy from logits. A
repeat runs all of them once, in an order drawn again, so that a busy spell of the machine does not hit one contender
alone. The runner reads its own datasets, so `ours` needs MNIST.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # started by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from benchmarks import data, report
from benchmarks.contenders import (
    CONTENDERS,
    CROSS_DEVICE_OPS,
    ROOT,
    Contender,
    ContenderError,
    run_child,
    run_peer,
)
from benchmarks.meter import Budget
from benchmarks.ours import run_ours

_STARTUP_SECONDS = 240.0  # imports, compiling and a loaded machine, on top of the measured time
_DATA_CHILD = "data"
_RETRIES = 3


@dataclass(frozen=True)
class Session:
    """What one invocation holds fixed.

    Attributes:
      budget: how long each contender is measured.
      dataset: `mnist` or `synthetic`.
      data_dir: where the runner finds prepared data; null: its default.
      examples: training examples.
      scratch: folder for the examples and the runner's outputs.
      cross_device_ops: how MirroredStrategy reduces.
      undisturbed: share of the processors' time that others may have while a contender runs; null: any.
    """

    budget: Budget
    dataset: str
    data_dir: str | None
    examples: int
    scratch: Path
    cross_device_ops: str
    undisturbed: float | None = None

    @property
    def data_file(self) -> Path:
        """Where the children read the examples."""
        return self.scratch / "examples.npz"

    @property
    def timeout(self) -> float:
        """Seconds after which a child is given up."""
        # A window that is bounded by time ends in time; an epoch of a slow contender is never waited for.
        return _STARTUP_SECONDS + 3 * self.budget.seconds


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures the runner's training throughput beside its peers'.")
    parser.add_argument("--repeats", type=int, default=3, help="times that every contender runs")
    parser.add_argument("--seconds", type=float, default=6.0, help="steady window of a contender")
    parser.add_argument(
        "--undisturbed",
        type=float,
        metavar="SHARE",
        help=f"runs a contender again, at most {_RETRIES} times, where others had more of the processors meanwhile",
    )
    parser.add_argument("--steps", type=int, help="closes a window earlier, after that many steps")
    parser.add_argument("--warmup-steps", type=int, default=30, help="steps before the window, compiling included")
    parser.add_argument("--examples", type=int, default=data.MNIST_TRAIN, help="training examples")
    parser.add_argument("--model", choices=tuple(data.TASKS), default="mlp", help="what is trained")
    parser.add_argument("--only", help="contenders, separated by commas: " + ", ".join(CONTENDERS))
    parser.add_argument("--all", action="store_true", help="adds the contenders that no target is about")
    parser.add_argument("--dataset", choices=("mnist", "synthetic"), default="mnist")
    parser.add_argument("--data-dir", help="where prepared data lies (the runner's dataset.data_dir)")
    parser.add_argument(
        "--cross-device-ops",
        choices=("auto", *CROSS_DEVICE_OPS),
        default="auto",
        help="how MirroredStrategy reduces; auto tries each for a moment and keeps the fastest",
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/throughput.json"), help="the JSON file")
    parser.add_argument("--check", action="store_true", help="exits with code 1 unless every target is met")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--data-file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.repeats < 1 or arguments.seconds <= 0 or arguments.warmup_steps < 2:
        parser.error("--repeats must be at least 1, --seconds above 0 and --warmup-steps at least 2")
    if arguments.steps is not None and arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    try:
        arguments.examples = data.whole_batches(arguments.examples)
    except ValueError as error:
        parser.error(str(error))
    unknown = [name for name in (arguments.only or "").split(",") if name and name not in CONTENDERS]
    if unknown:
        parser.error(f"--only: no contender {', '.join(unknown)}; there are {', '.join(CONTENDERS)}")
    return arguments


def chosen(arguments: argparse.Namespace) -> list[Contender]:
    """Lists the contenders of this invocation."""
    if arguments.only:
        wanted = set(arguments.only.split(","))
        return [contender for contender in CONTENDERS.values() if contender.name in wanted]
    of_model = [contender for contender in CONTENDERS.values() if contender.model == arguments.model]
    return [contender for contender in of_model if contender.default or arguments.all]


def child(arguments: argparse.Namespace) -> int:
    """Runs one contender in this process and prints its figures as one JSON line."""
    with open(os.devnull, "w", encoding="utf-8") as sink, contextlib.redirect_stdout(sink):  # noqa: PTH123 (a device)
        if arguments.child == _DATA_CHILD:
            made = (
                data.synthetic(arguments.examples)
                if arguments.dataset == "synthetic"
                else data.mnist(arguments.examples, arguments.data_dir)
            )
            data.save(made, arguments.data_file)
            result: dict[str, Any] = {"examples": len(made.labels)}
        else:
            budget = Budget(arguments.seconds, arguments.steps, arguments.warmup_steps)
            result = run_peer(arguments.child, arguments.data_file, budget, arguments.cross_device_ops)
    print(json.dumps(result), flush=True)
    return 0


def _peer_arguments(contender: Contender, session: Session, budget: Budget) -> list[str]:
    arguments = [
        f"--child={contender.name}",
        f"--data-file={session.data_file}",
        f"--seconds={budget.seconds}",
        f"--warmup-steps={budget.warmup_steps}",
        f"--cross-device-ops={session.cross_device_ops}",
    ]
    return arguments if budget.steps is None else [*arguments, f"--steps={budget.steps}"]


def prepare_data(session: Session) -> None:
    """Writes the examples, in a child: reading MNIST may load TensorFlow, which this process stays free of."""
    arguments = [
        f"--child={_DATA_CHILD}",
        f"--data-file={session.data_file}",
        f"--dataset={session.dataset}",
        f"--examples={session.examples}",
    ]
    if session.data_dir is not None:
        arguments.append(f"--data-dir={session.data_dir}")
    run_child(arguments, Contender(_DATA_CHILD, _DATA_CHILD, "single"), timeout=900.0)


def measure(contender: Contender, session: Session, repeat: int) -> dict[str, Any]:
    """Runs a contender once; a failure becomes an entry with `error`, so that the others still run."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    before = processor_ticks()
    try:
        if contender.ours:
            if session.dataset != "mnist":
                raise ContenderError("the runner reads its own datasets: use --dataset mnist")
            scratch = session.scratch / f"{contender.name}_{repeat}"
            figures = run_ours(contender, session.budget, session.examples, session.data_dir, scratch, session.timeout)
        else:
            arguments = _peer_arguments(contender, session, session.budget)
            figures = run_child(arguments, contender, session.timeout)
    except ContenderError as error:
        figures = {"contender": contender.name, "error": str(error)}
    stolen = stolen_share(before, processor_ticks())
    return {"repeat": repeat, "load_average_before": load, "stolen_share": stolen, **figures}


def undisturbed(contender: Contender, session: Session, repeat: int) -> dict[str, Any]:
    """Measures a contender, and again while others took the processors; the last measurement counts."""
    for again in range(_RETRIES + 1):
        figures = {**measure(contender, session, repeat), "measured_again": again}
        stolen = figures["stolen_share"]
        if session.undisturbed is None or stolen is None or stolen <= session.undisturbed:
            break
    return figures


def processor_ticks() -> tuple[int, int] | None:
    """Returns ticks of all processors and those of them that a hypervisor gave to others; None where not told."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    except OSError:
        return None
    ticks = [int(field) for field in line.split()[1:9]]  # user, nice, system, idle, iowait, irq, softirq, steal
    return sum(ticks), ticks[-1]


def stolen_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Returns the share of processor time that others had between two readings of `processor_ticks`."""
    if before is None or after is None or after[0] <= before[0]:
        return None
    return (after[1] - before[1]) / (after[0] - before[0])


def fastest_reduction(session: Session, console: Console) -> tuple[str, dict[str, Any]]:
    """Tries each way that MirroredStrategy can reduce on CPUs, so that it competes at its best.

    Returns:
      The name of the fastest one that works, and steps per second (or the error) of each.
    """
    tried: dict[str, Any] = {}
    mirrored = CONTENDERS["mirrored_fit"]
    for name in CROSS_DEVICE_OPS:
        brief = Budget(min(4.0, session.budget.seconds), session.budget.steps, 10)
        arguments = [*_peer_arguments(mirrored, session, brief), f"--cross-device-ops={name}"]
        try:
            tried[name] = run_child(arguments, mirrored, session.timeout)["steps_per_second"]
        except ContenderError as error:
            tried[name] = str(error)
    rates = {name: rate for name, rate in tried.items() if isinstance(rate, float)}
    best = max(rates, key=rates.__getitem__, default="default")
    shown = ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items()) or "none works"
    console.print(f"MirroredStrategy, steps/s by cross_device_ops: {shown}; kept: {best}", highlight=False)
    return best, tried


def run_repeats(contenders: list[Contender], session: Session, repeats: int, console: Console) -> report.Runs:
    """Runs every contender once a repeat, in an order of its own each time."""
    runs: report.Runs = {contender.name: [] for contender in contenders}
    for repeat in range(repeats):
        order = random.Random(repeat).sample(contenders, len(contenders))
        for contender in order:
            figures = undisturbed(contender, session, repeat)
            runs[contender.name].append(figures)
            shown = f"{figures['steps_per_second']:.1f} steps/s" if "error" not in figures else "failed"
            stolen = figures["stolen_share"]
            shown += f", {stolen:.1%} of the processors taken by others" if stolen else ""
            console.print(f"repeat {repeat + 1}/{repeats}  {contender.name}: {shown}", highlight=False)
    return runs


def main(argv: list[str] | None = None) -> int:
    """Measures, prints the table and writes the JSON file.

    Args:
      argv: command-line arguments; null: those of the process.

    Returns:
      The exit code: 0, or 1 with `--check` and a target that is missed or was not measured; 2 without data.
    """
    given = sys.argv[1:] if argv is None else argv
    arguments = parse_arguments(given)
    if arguments.child:
        return child(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=140)
    contenders = chosen(arguments)
    budget = Budget(arguments.seconds, arguments.steps, arguments.warmup_steps)
    tried: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="throughput_") as scratch:
        reduction = "default" if arguments.cross_device_ops == "auto" else arguments.cross_device_ops
        fixed = (budget, arguments.dataset, arguments.data_dir, arguments.examples, Path(scratch))
        session = Session(*fixed, reduction, arguments.undisturbed)
        try:
            prepare_data(session)
        except ContenderError as error:
            console.print(f"no training data ({error})\nprepare MNIST, or use --dataset synthetic", markup=False)
            return 2
        if arguments.cross_device_ops == "auto" and any(c.name == "mirrored_fit" for c in contenders):
            reduction, tried = fastest_reduction(session, console)
            session = Session(*fixed, reduction, arguments.undisturbed)
        runs = run_repeats(contenders, session, arguments.repeats, console)
    report.print_report(runs, console)
    settings = {
        "command": " ".join(["python -m benchmarks.throughput", *given]),
        "dataset": arguments.dataset,
        "examples": arguments.examples,
        "repeats": arguments.repeats,
        "window_seconds": budget.seconds,
        "window_steps": budget.steps,
        "warmup_steps": budget.warmup_steps,
        "undisturbed": arguments.undisturbed,
        "mirrored_cross_device_ops": {"used": reduction, "tried": tried},
    }
    out = arguments.out if arguments.out.is_absolute() else ROOT / arguments.out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report.document(runs, settings), indent=2) + "\n", encoding="utf-8")
    console.print(f"figures: {arguments.out}", highlight=False)
    return 0 if not arguments.check or all(verdict.met for verdict in report.verdicts(runs)) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Trains gpt on one GPU, and compares step time and peak memory with the plans of the same configs.

    python -m benchmarks.gpu --hardware h100 --out gpu.json       # all cases, a few minutes
    python -m benchmarks.gpu --hardware h100 --case 125m,none     # one case
    python -m benchmarks.gpu --hardware h100 --read gpu.json      # the table again, without a GPU

Each case is one run of `engine=jax` in a process of its own. The step time and the model FLOPs utilization are those
that the run reports; the peak memory is JAX's own count. The plan is that of `plan.compiler=arithmetic`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import device_memory

# Numbers of parameters with a vocabulary of 50,304: 163 million, of which 77 are embeddings and head, and 1.0 billion.
_MODELS = {
    "125m": ("model.dim=768", "model.depth=12", "model.heads=12", "dataset.batch_size=32"),
    "1b": ("model.dim=2048", "model.depth=16", "model.heads=16", "dataset.batch_size=8"),
}
_REMATS = ("none", "full")
CASES = {f"{model},{remat}": (*_MODELS[model], f"model.remat={remat}") for model in _MODELS for remat in _REMATS}
CONFIG = (
    "mesh=single",
    "engine=jax",
    "engine.precision=bfloat16",
    "model=gpt",
    "optimizer=adamw",
    "task=language_model",
    "task.vocabulary=50304",
    "dataset=synthetic",
    "dataset.vocabulary=50304",
    "dataset.length=2048",
)
# Of the calls the runner leaves out the first three, which compile and warm up, and reports no rate of fewer than ten
# steps.
_LENGTH = ("trainer.steps=24", "trainer.steps_per_call=2", "trainer.limit_eval_batches=1")
_TRAINING = ("mesh.device=gpu", *_LENGTH, "tracking=none", "trainer.checkpoint.enabled=false", "trainer.progress=none")
_GIB = 1 << 30


def measured(overrides: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """Trains one config in a process of its own.

    Args:
      overrides: of the command line, in addition to `CONFIG`.
      timeout_s: seconds after which the run is ended.

    Returns:
      `code`, the exit code; `output`, the last lines; `memory`, as `benchmarks.device_memory` prints it; `summary`,
      the run's summary.json; and `program`, what XLA counted for the compiled step. The last three are empty if the
      run failed before.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        module = "benchmarks.device_memory"
        done = _run(module, [*CONFIG, *_TRAINING, *overrides], folder, timeout_s)
        lines = (done.stdout + done.stderr).splitlines()
        memory = {}
        for line in lines:
            if line.startswith(device_memory.LINE):
                memory = json.loads(line.removeprefix(device_memory.LINE))
        return {
            "code": done.returncode,
            "output": lines[-40:],
            "memory": memory,
            "summary": _json(Path(folder) / "summary.json"),
            "program": _json(Path(folder) / "plan.json").get("program") or {},
        }


def planned(overrides: Sequence[str], hardware: str) -> dict[str, Any]:
    """Returns the forecast of the same config's plan by arithmetic, as in its plan.json.

    Raises:
      RuntimeError: the plan failed.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        options = [f"hardware={hardware}", "plan.compiler=arithmetic", *CONFIG, *overrides]
        done = _run("runner.plan", options, folder, None)
        if done.returncode:
            raise RuntimeError(f"runner.plan {' '.join(options)}: {done.stdout[-500:]} {done.stderr[-500:]}")
        forecast: dict[str, Any] = _json(Path(folder) / "plan.json")["forecast"]
        return forecast


def _run(
    module: str, overrides: Sequence[str], folder: str, timeout_s: float | None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *overrides, f"hydra.run.dir={folder}"]
    # Lines are not wrapped at the width of a terminal.
    environment = os.environ | {"COLUMNS": "200"}
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"ended after {timeout_s:g} s")


def _json(path: Path) -> dict[str, Any]:
    """Returns a file's object; empty if there is no such file."""
    if not path.is_file():
        return {}
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def row(case: str, run: Mapping[str, Any], forecast: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the cells of a case: what was measured, what was planned, and the relative errors of the plan."""
    if run["code"]:
        return (case, f"failed: {_reason(run)}", *[""] * 8)
    summary = run["summary"]
    step_s = summary["step_ms"] / 1e3
    fastest, slowest = forecast["step_seconds"]
    middle = (fastest + slowest) / 2
    peak = run["memory"]["peak_bytes"]
    planned_peak = sum(part["bytes"] for part in forecast["memory"])
    compiled = run["program"].get("peak_bytes")
    return (
        case,
        f"{summary['tokens_per_second']:,.0f}",
        f"{1e3 * step_s:.0f} ms",
        f"{1e3 * fastest:.0f} to {1e3 * slowest:.0f} ms",
        f"{middle / step_s - 1:+.0%}",
        f"{summary['model_flop_utilization']:.1%}",
        f"{peak / _GIB:.1f} GiB",
        f"{compiled / _GIB:.1f} GiB" if compiled else "",
        f"{planned_peak / _GIB:.1f} GiB",
        f"{planned_peak / peak - 1:+.0%}",
    )


def _reason(run: Mapping[str, Any]) -> str:
    """Returns the error that a run printed; its exit code if it printed none."""
    if run["code"] < 0:
        return f"signal {-run['code']}"
    for line in run["output"]:
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    return f"exit code {run['code']}"


HEADER = (
    "model, remat",
    "tokens/s",
    "step",
    "planned step",
    "error of the step",
    "MFU",
    "peak memory",
    "by XLA",
    "planned memory",
    "error of the memory",
)


def main(argv: list[str] | None = None) -> int:
    """Prints the table in Markdown; the exit code is 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", help="option of `hardware` that plans are for, as h100; without it, no table")
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="default: all")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds of a run")
    parser.add_argument("--out", type=Path, help="JSON file that the figures are added to")
    parser.add_argument("--read", type=Path, help="JSON file of an earlier call, whose figures are shown")
    arguments = parser.parse_args(argv)
    runs: dict[str, Any] = {}
    if arguments.out is not None:
        runs |= _json(arguments.out)
    if arguments.read is not None:
        runs = _json(arguments.read)
    for case in arguments.case or CASES:
        if arguments.read is not None:
            continue
        runs[case] = measured(CASES[case], arguments.timeout)
        print(case, json.dumps({name: runs[case][name] for name in ("code", "memory", "summary")}), flush=True)
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(runs, indent=1) + "\n")
    if arguments.hardware is not None:
        print(_line(HEADER))
        print(_line(["---"] * len(HEADER)))
        for case, run in runs.items():
            print(_line(row(case, run, planned(CASES[case], arguments.hardware))))
    return int(any(run["code"] for run in runs.values()))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())

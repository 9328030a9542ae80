"""Runs the examples: `python -m tests.keras_examples [names] [--engine jax] [--to folder] [--write]`.

Each is planned, verified on two meshes with layout=auto, trained, evaluated and exported, each step in a process of
its own. What ended well in the folder is not run again; a failure ends the example, not the program.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from tests.keras_examples.spec import Example, examples

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "keras_examples.md"
MESHES = ["batch8", "batch4_model2"]
STEPS = ["plan", *(f"verify on {mesh}" for mesh in MESHES), "train", "evaluate", "export"]


def commands(example: Example, engine: str, folder: Path) -> dict[str, list[str]]:
    """The arguments of `python` by step. Runs are kept in `folder`, so that `latest` is this example's run."""
    config = [*example.overrides(), f"engine={engine}", "layout=auto"]
    store = [f"tracking.uri=sqlite:///{folder / 'mlflow.db'}"]
    steps = {"plan": ["-m", "runner.plan", *config, "mesh=batch8"]}
    for mesh in MESHES:
        steps[f"verify on {mesh}"] = ["-m", "runner.verify", *config, f"mesh={mesh}"]
    steps["train"] = ["-m", "runner", *config, *store, "mesh=batch8"]
    steps["evaluate"] = ["-m", "runner.evaluate", *store, "run=latest"]
    steps["export"] = ["-m", "runner.export", *store, "run=latest"]
    return steps


def measure(example: Example, engine: str, folder: Path, timeout: float) -> dict[str, str]:
    """What each step ended with, `ok` or its last line, up to the first failure; `timeout` is in seconds per step."""
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / "steps.json"
    ended: dict[str, str] = {}
    if record.exists():
        ended = json.loads(record.read_text())
    for step, arguments in commands(example, engine, folder).items():
        if ended.get(step) == "ok":
            continue
        ended[step] = _run(arguments, timeout)
        record.write_text(json.dumps(ended, indent=1))
        print(f"{example.category}/{example.name} {engine} {step}: {ended[step]}", flush=True)
        if ended[step] != "ok":
            break
    return ended


def _run(arguments: list[str], timeout: float) -> str:
    try:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done in {timeout:g} s"
    if done.returncode == 0:
        return "ok"
    lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
    return f"exit code {done.returncode}: {lines[-1]}"


def verdict(example: Example, ended: dict[str, str]) -> str:
    """The table's last column."""
    if example.spec.needs:
        return f"not yet: needs {example.spec.needs}"
    for step in STEPS:
        if ended.get(step) != "ok":
            return f"no: {step}: {ended.get(step, 'not run')}"
    words = []
    if example.spec.workaround_lines:
        words.append(f"{example.spec.workaround_lines} lines")
    if example.spec.lost:
        words.append("without " + "; ".join(example.spec.lost))
    return ", ".join(words) or "as is"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.keras_examples")
    parser.add_argument("names", nargs="*", help="examples; none: all")
    parser.add_argument("--engine", action="append", help="an engine, more than once for several; jax if not given")
    parser.add_argument("--to", type=Path, default=ROOT / "outputs" / "keras_examples", help="folder of the records")
    parser.add_argument("--timeout", type=float, default=900, help="seconds per step")
    parser.add_argument("--write", action="store_true", help="write the table to docs/keras_examples.md")
    options = parser.parse_args()
    known = examples()
    unknown = set(options.names) - {example.name for example in known}
    if unknown:
        parser.error(f"no such example: {', '.join(sorted(unknown))}")
    if options.write and options.names:
        parser.error("--write needs all examples; leave out the names")
    rows = ["| Example | Category | Engine | Result |", "|---|---|---|---|"]
    for example in known:
        if options.names and example.name not in options.names:
            continue
        for engine in options.engine or ["jax"]:
            ended: dict[str, str] = {}
            if not example.spec.needs:
                folder = options.to.resolve() / engine / example.category / example.name
                ended = measure(example, engine, folder, options.timeout)
            result = verdict(example, ended).replace("|", "\\|")
            rows.append(f"| {example.spec.title} | {example.category} | {engine} | {result} |")
    print("\n".join(rows))
    if options.write:
        PAGE.write_text("# Keras's examples\n\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()

"""Runs the examples: `python -m tests.keras_examples vision/mnist_convnet nlp --engine jax --steps plan,train`.

Each example is planned, verified on two meshes with layout=auto, trained, evaluated and exported. A step is the
command that a user would start, forked from one process that has imported the libraries (`tests.forks`), in a session
of its own. What an example ended with is kept in `results.json` beside this file, with a digest of the example's
files and the commit: what passed is not run again until the files change. A failure ends the example, not the program.
`--write` writes the page, docs/keras_examples.md.
"""

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import forks, stores
from tests.keras_examples import page
from tests.keras_examples.spec import Example, examples

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results.json")
LOCK = ROOT / "outputs" / "keras_examples" / "lock"
PAGE = ROOT / "docs" / "keras_examples.md"
MESHES = ["batch8", "batch4_model2"]
ENGINES = {"jax": forks.JAX, "keras_dtensor": forks.TENSORFLOW}


def commands(example: Example, engine: str, folder: Path) -> dict[str, list[str]]:
    """The arguments of `python` by step. Runs are kept in `folder`, so that `latest` is this example's run."""
    config = [*example.overrides(), f"engine={engine}", "layout=auto"]
    store = [f"tracking.uri=sqlite:///{folder / 'mlflow.db'}"]
    steps = {"plan": ["-m", "runner.plan", *config, "mesh=batch8"]}
    for mesh in MESHES:
        steps[f"verify on {mesh}"] = ["-m", "runner.verify", *config, f"mesh={mesh}", "verify.steps=4"]
    steps["train"] = ["-m", "runner", *config, *store, "mesh=batch8"]
    steps["evaluate"] = ["-m", "runner.evaluate", *store, "run=latest"]
    steps["export"] = ["-m", "runner.export", *store, "run=latest", f"export.folder={folder / 'export'}"]
    return steps


def measure(
    example: Example, engine: str, folder: Path, timeout: float, *, only: list[str], passed: dict[str, str]
) -> dict[str, str]:
    """What each step ended with, `ok` or its error, up to the first failure.

    Args:
        example: The example.
        engine: The engine.
        folder: Runs and export of the example; made empty if the training is to be done.
        timeout: In seconds per step.
        only: The first words of the steps to run, such as `verify`; empty: all.
        passed: What is known already. Steps that ended with `ok` are not run again.

    Returns:
        `passed` with the results of this call.
    """
    ended = {step: result for step, result in passed.items() if result == "ok"}
    uses_run = "evaluate" not in ended or "export" not in ended
    if uses_run and not (folder / "mlflow.db").exists():
        # The run is gone: what needs it begins with the training.
        ended.pop("train", None)
    if "train" not in ended:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    stores.store_in(folder)
    for step, arguments in commands(example, engine, folder).items():
        if ended.get(step) == "ok" or (only and step.split()[0] not in only):
            continue
        began = time.monotonic()
        ended[step] = _run(arguments, ENGINES[engine], folder, timeout)
        print(f"{example.path} {engine} {step}: {ended[step]} ({time.monotonic() - began:.0f} s)", flush=True)
        if ended[step] != "ok":
            break
    return ended


def _run(arguments: list[str], library: str, folder: Path, timeout: float) -> str:
    """Runs one command in its own session, and ends all its processes if it takes too long."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": forks.RIGHT_MAXIMA}
    process = forks.Popen(
        [sys.executable, *arguments],
        library=library,
        cwd=folder,
        env=environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"not done in {timeout:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode == 0:
        return "ok"
    (folder / "failed.txt").write_text(f"{' '.join(arguments)}\n{out}\n{err}")
    return f"exit code {process.returncode}: {last_line(out, err)}".replace(str(ROOT) + "/", "")


def last_line(out: str, err: str) -> str:
    """The line that says why a command failed: its last error, else the last line of its output."""
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    if errors:
        return errors[-1]
    lines = (out.strip() or err.strip() or "no output").splitlines()
    return re.sub(r"\s+", " ", lines[-1])


@contextlib.contextmanager
def record() -> Iterator[dict[str, Any]]:
    """The recorded results, written on exit; several of these programs may run at once."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = json.loads(RESULTS.read_text())
        yield results
        RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")


def known_results(example: Example, engine: str) -> dict[str, str]:
    """What the record has of the example's present files."""
    entry = json.loads(RESULTS.read_text()).get(example.path, {})
    if entry.get("digest") != example.digest():
        return {}
    steps: dict[str, str] = entry["engines"].get(engine, {})
    return steps


def commit() -> str:
    """The commit of the checkout, with a + if the program or the examples have changes on top of it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "*.py", "conf"], check=False).returncode
    return head.stdout.strip() + "+" * bool(changed)


def keep(example: Example, digest: str, engine: str, ended: dict[str, str], made_at: str) -> None:
    """Puts results into the record, in place of those of other files.

    Args:
        example: The example.
        digest: That of the files that ran.
        engine: The engine.
        ended: What each step ended with.
        made_at: The commit that ran.
    """
    with record() as results:
        if results.get(example.path, {}).get("digest") != digest:
            results[example.path] = {"digest": digest, "engines": {}}
        results[example.path]["engines"][engine] = ended
        results[example.path].setdefault("commits", {})[engine] = made_at


def write() -> None:
    """Drops results of files that have changed since, and writes the page from the others."""
    digests = {example.path: example.digest() for example in examples()}
    with record() as results:
        for name in [name for name, entry in results.items() if entry["digest"] != digests.get(name)]:
            del results[name]
        PAGE.write_text(page.text(examples(), results))


def selected(names: list[str]) -> list[Example]:
    """The examples by name, category, or both with a slash between, in this order; no names: all.

    Raises:
        ValueError: A name that none has.
    """
    known = examples()
    chosen: dict[str, Example] = {}
    for name in names or [example.category for example in known]:
        matches = [example for example in known if name in (example.path, example.category, example.name)]
        if not matches:
            raise ValueError(f"no such example or category: {name}")
        chosen |= {example.path: example for example in matches}
    return list(chosen.values())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.keras_examples")
    parser.add_argument("names", nargs="*", help="examples (vision/mnist_convnet) or categories; none: all")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="more than once for several; default: all")
    parser.add_argument("--steps", default="", help="plan,verify,train,evaluate,export; default: all")
    parser.add_argument("--again", action="store_true", help="also run what passed before")
    parser.add_argument("--failed", action="store_true", help="also run again what failed before; implied by names")
    parser.add_argument("--to", type=Path, default=ROOT / "outputs" / "keras_examples", help="folder of the runs")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per step")
    parser.add_argument("--write", action="store_true", help="only write the page, docs/keras_examples.md")
    options = parser.parse_args()
    # So that a step that runs is ended with this program.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.write:
        write()
        return
    try:
        chosen = selected(options.names)
    except ValueError as error:
        parser.error(str(error))
    rows = []
    for example in chosen:
        for engine in options.engine or ENGINES:
            if not example.spec.needs and engine in page.engines_of(example):
                passed = {} if options.again else known_results(example, engine)
                has_failed = any(result != "ok" for result in passed.values())
                if not has_failed or options.failed or options.names:
                    folder = options.to.resolve() / engine / example.category / example.name
                    digest, made_at = example.digest(), commit()
                    only = [step for step in options.steps.split(",") if step]
                    ended = measure(example, engine, folder, options.timeout, only=only, passed=passed)
                    keep(example, digest, engine, ended, made_at)
            rows.append(f"{example.path} {engine}: {page.verdict(example, engine, known_results(example, engine))}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()

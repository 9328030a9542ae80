"""Command lines that are invalid, and what each did: many of them in one process of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("tensorflow", "tf_keras", "keras", "jax", "mlflow", "sklearn")


def without_libraries(folder: Path) -> str:
    """Returns a PYTHONPATH with which a program ends, with another line, if it imports something heavy."""
    blocked = folder / "blocked"
    blocked.mkdir(parents=True)
    for name in HEAVY:
        (blocked / f"{name}.py").write_text(f"raise SystemExit('imported {name}')\n")
    return f"{blocked}{os.pathsep}{folder}{os.pathsep}{ROOT}"


def refuse_all(lines: Sequence[Sequence[str]], folder: Path) -> list[dict[str, Any]]:
    """Returns what each command line did: `code`, `out`, `err`, and whether the command was `reached`.

    The run's folder of each is its number in `folder`; `left` says whether it is there.
    """
    commands = [[*line, f"hydra.run.dir={folder / str(number)}"] for number, line in enumerate(lines)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.refusal_worker"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["heavy"] == []
    results: list[dict[str, Any]] = answer["results"]
    return [{**result, "left": (folder / str(number)).exists()} for number, result in enumerate(results)]


def assert_refused(shown: Sequence[str], out: str, err: str) -> None:
    """Checks that nothing but one line was printed, and what it has."""
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("error: ")
    assert "ss@host" not in err  # the end of a password
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1
    assert len(err) < 2100, "a value is repeated whole"
    for part in shown:
        assert part in err

"""Command lines that must be refused, and what each did: many of them in one process of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# `set key=value` at the beginning of a fix, or `add +key=value`.
_SUGGESTED = re.compile(r"(?:set|add) \"?(\+?[\w./]+)=('[^']*'|[^ ,\"]+(?:,[^ ,\"]+)*)")
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Refusal:
    """One bad command line: its overrides, and what the one line of stderr must hold."""

    args: tuple[str, ...]
    shown: tuple[str, ...]


def refusal(args: str, *shown: str) -> Refusal:
    """Returns a refusal of overrides that hold no blank."""
    return Refusal(tuple(args.split()), shown)


def chosen_cases(request: pytest.FixtureRequest) -> list[Refusal]:
    """Returns the cases of a module's tests that this session runs."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    mine = [item.callspec.params for item in items if item.module is request.module and hasattr(item, "callspec")]
    return [params["case"] for params in mine if "case" in params]


def refuse_all(cases: Sequence[Refusal], folder: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """Returns by arguments what each did; `left` says whether it left its run's folder, `<number>` in `folder`."""
    lines = [[*case.args, f"hydra.run.dir={folder / str(number)}"] for number, case in enumerate(cases)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.refusal_worker"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["heavy"] == []
    left = {number: (folder / str(number)).exists() for number in range(len(cases))}
    return {
        case.args: result | {"left": left[number]}
        for number, (case, result) in enumerate(zip(cases, answer["results"], strict=True))
    }


def assert_refused(case: Refusal, out: str, err: str) -> None:
    """Checks that nothing but one line was printed, and what it holds."""
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("error: ")
    assert "ss@host" not in err  # the end of a password
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1
    assert len(err) < 2100, "a value is repeated whole"
    for part in case.shown:
        assert part in err


def suggestion(err: str) -> str | None:
    """Returns the override that an error suggests to set, as Hydra gets it; None: it is no override to try."""
    _, _, fix = err.strip().rpartition("; ")
    match = _SUGGESTED.match(fix)
    if match is None:
        return None
    key, value = match[1], match[2].strip("'")
    is_whole = value.count("[") == value.count("]") and value.count("{") == value.count("}")
    is_example = any(part in value for part in ("...", "<", "package.", "my_project", "value"))
    return None if is_example or not is_whole else f"{key}={value}"


def corrected(case: Refusal, override: str) -> Refusal:
    """Returns a case in which an override takes the place of the one of its key."""
    key = override.lstrip("+").partition("=")[0]
    others = [argument for argument in case.args if argument.lstrip("+~").partition("=")[0] != key]
    return Refusal((*others, override), ())


def name(case: Refusal) -> str:
    """Returns a test's id."""
    return " ".join(case.args)[:200]

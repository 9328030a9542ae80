"""What every command says of itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import runner
from runner.cli.commands import COMMANDS, listed

ROOT = Path(__file__).parents[2]
RUNNER = Path(sys.executable).parent / "runner"


def test_every_command_is_named() -> None:
    files = [path.parent for path in (ROOT / "runner").glob("*/__main__.py")]
    files += [path.with_suffix("") for path in (ROOT / "runner").glob("*.py") if "import entry" in path.read_text()]
    there = {".".join(path.relative_to(ROOT).parts) for path in files} - {"runner.__main__"}
    assert there <= set(COMMANDS)
    assert {name for name in COMMANDS if name != "runner"} <= there


def test_versions_are_printed_at_once_and_help_names_the_commands() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "runner", "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stdout.startswith("runner")
    assert runner.__version__ in done.stdout.splitlines()[0]
    assert any(line.split()[0] == "mlflow" for line in done.stdout.splitlines())
    for heavy in ("numpy", "hydra", "tensorflow", "mlflow"):
        assert f"| {heavy}\n" not in done.stderr.replace("|   ", "| ")
    assert time.monotonic() - began < 10, "a loaded machine"
    helped = subprocess.run([sys.executable, "-m", "runner", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert listed().splitlines()[0] in helped.stdout
    assert all(name in helped.stdout for name in COMMANDS)


@pytest.mark.skipif(not (RUNNER.exists() and shutil.which("bash")), reason="needs bash and the installed command")
def test_bash_completes_groups_options_and_keys(tmp_path: Path) -> None:
    script = """
eval "$(runner -sc install=bash)"
complete -p runner
for line in "runner mesh=batch8_" "runner mesh=batch8 trainer.epo"; do
  COMP_LINE="$line"; COMP_POINT=${#line}; COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
  hydra_bash_completion; echo "${COMPREPLY[@]}"
done
"""
    path = f"{RUNNER.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[1:] == ["mesh=batch8_model1", "trainer.epochs="], done.stderr

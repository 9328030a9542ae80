"""What Hydra prints of a config has no password, whatever file or interpolation brings it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRESET = """# @package _global_
tracking:
  uri: postgresql://user:hunter2@localhost/db
  tags: {where: "${tracking.uri}"}
"""


@pytest.mark.parametrize(
    "flags", [["--cfg", "job"], ["--cfg", "all"], ["-c", "job"], ["--info", "config"], ["--help"]]
)
@pytest.mark.parametrize(
    "override", ["experiment=mine", "tracking.uri=postgresql://user:${oc.env:MY_SECRET}@localhost/db"]
)
def test_a_printed_config_has_no_password(tmp_path: Path, flags: list[str], override: str) -> None:
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(PRESET)
    line = [sys.executable, "-m", "runner", override, *flags]
    if flags[0] in ("--cfg", "-c"):
        line.append("--resolve")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MY_SECRET": "hunter2"}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert "postgresql://user:" in done.stdout

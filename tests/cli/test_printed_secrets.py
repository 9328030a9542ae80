"""What Hydra prints of a config has no password, whatever brings it, and needs no import of anything heavy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.refusals import without_libraries

# Whatever YAML does with its text: folds it, or keeps its lines.
LONG = f"postgresql://user:{'a' * 50} {'b' * 50} hunter2@localhost/db"
EVERYWHERE = f"""# @package _global_
tracking:
  uri: '{LONG}'
  tags:
    where: 'postgresql://user:a hunter2@localhost/db'
    lines: "postgresql://user:a\\nhunter2@localhost/db"
    remote: 'http://ann:${{oc.env:MY_VALUE_TOO}}@db'
    password: hunter2 # a comment
    note: it is ${{oc.env:MY_SECRET}}
    mean: ${{oc.env:MY_VALUE}}
trainer:
  note: [{{stores: ['s3://key:hunter2@bucket', {{url: 'https://host/x?token=hunter2'}}], hf_token: hunter2}}]
hydra:
  job:
    env_set: {{DB_PASSWORD: hunter2}}
"""
FLAGS = [["--cfg", "job"], ["--info", "config"], ["--help"], ["--cfg", "job", "-p", "tracking.tags.password"]]


def printed(tmp_path: Path, preset: str, *arguments: str) -> str:
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(preset)
    line = [sys.executable, "-m", "runner", *arguments]
    if "--cfg" in arguments or "-c" in arguments:
        line.append("--resolve")
    environment = os.environ | {"PYTHONPATH": without_libraries(tmp_path), "MY_SECRET": "hunter2", "MY_VALUE": "plain"}
    environment["MY_VALUE_TOO"] = "hunter2"
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("flags", FLAGS)
def test_a_printed_config_has_no_secret_at_any_place(tmp_path: Path, flags: list[str]) -> None:
    text = printed(tmp_path, EVERYWHERE, "experiment=mine", *flags)
    assert "***" in text or flags == ["--help"]
    if flags == ["--cfg", "job"]:
        assert not text.startswith("\n")
        assert "mean: plain" in text
        assert "note: it is ***" in text
        assert "- s3://key:***@bucket" in text

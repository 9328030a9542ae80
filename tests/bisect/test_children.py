"""The command line of a replay in a process of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.bisect import children
from runner.training.checkpoint.arguments import value_of
from runner.training.checkpoint.runs import SavedRun


def test_folders_with_quotes_and_at_signs_reach_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ann@work" / "Ann's" / "states"
    run = SavedRun(tmp_path / "ann@work" / "Ann's" / "aaaa", {"run": "aaaa"})
    typed: list[str] = []

    def started(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        typed.extend(command[3:])
        folder.mkdir(parents=True)
        (folder / "replay.json").write_text(json.dumps({"step": 3}))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", started)
    assert children.replay(run, folder, ["step=3"]).step == 3
    overrides = OverridesParser.create().parse_overrides(typed)
    values = {override.key_or_group: override.value() for override in overrides}
    assert values == {"run": str(run.folder), "hydra.run.dir": str(folder), "replay.step": 3}
    assert value_of(typed, "run") == str(run.folder)

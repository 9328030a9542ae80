"""Benchmarks leave nothing behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import optimizers


def test_a_child_that_its_parent_kills_writes_below_the_parent_s_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders: list[Path] = []
    monkeypatch.setattr(optimizers, "train_ours", lambda *arguments: folders.append(arguments[-1]))
    examples = tmp_path / "examples.npz"
    monkeypatch.setattr(sys, "argv", ["optimizers", "--child", "ours", "--only", "Lion", "--examples", str(examples)])
    optimizers.main()
    (folder,) = folders
    assert folder.parent == tmp_path

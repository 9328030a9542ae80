"""Modules that are imported when they are first used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runner.host.late import late


def test_a_late_module_is_imported_when_it_is_used_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_to_import.py").write_text("def answer():\n    return 42\n")
    slow = late("slow_to_import")
    assert "slow_to_import" not in sys.modules
    assert slow.answer() == 42
    monkeypatch.setattr("slow_to_import.answer", lambda: 43)
    assert slow.answer() == 43, "it is the module's own, whatever became of that"
    monkeypatch.delitem(sys.modules, "slow_to_import")


def test_what_a_late_module_lacks_is_said_as_by_the_module() -> None:
    with pytest.raises(AttributeError, match="module 'json' has no attribute 'nope'"):
        late("json").nope()

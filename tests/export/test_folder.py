from __future__ import annotations

from pathlib import Path

import pytest

from runner.checkpoint.runs import SavedRun
from runner.config.schema import ExportConfig
from runner.errors import ConfigError, EngineError
from runner.train.export import write as folder

RUN = SavedRun(Path("nowhere"), {"run": "abc", "tracked": True})


def export(path: Path, text: str) -> None:
    """Writes a small export."""
    with folder.making(path) as making:
        (making / "saved_model").write_text(text)
        (making / folder.RECORD).write_text('{"signature": {}}')


def test_the_default_folder_has_the_name_of_the_run() -> None:
    assert folder.target_folder(ExportConfig(), RUN).parts[-3:] == ("outputs", "exports", "abc")


def test_an_earlier_export_is_replaced_completely(tmp_path: Path) -> None:
    path = tmp_path / "served" / "model"
    export(path, "first")
    assert folder.target_folder(ExportConfig(str(path)), RUN) == path
    export(path, "second")
    assert (path / "saved_model").read_text() == "second"
    assert [each.name for each in path.parent.iterdir()] == ["model"]


def test_an_earlier_export_with_other_files_is_rejected_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "model"
    export(path, "first")
    (path / "notes").mkdir()
    (path / "notes" / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match="an earlier export without other files"):
        folder.target_folder(ExportConfig(str(path)), RUN)
    with pytest.raises(EngineError, match="other files were written there"):
        export(path, "second")
    assert (path / "notes" / "mine.txt").read_text() == "precious"
    assert (path / "saved_model").read_text() == "first"


def test_an_export_that_fails_leaves_the_earlier_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model"
    export(path, "first")

    def fail() -> None:
        with folder.making(path) as making:
            (making / "saved_model").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (path / "saved_model").read_text() == "first"
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_failed_rename_restores_the_earlier_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    export(path, "first")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target == path and self.name == "new":
            raise OSError("full")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="full"):
        export(path, "second")
    assert (path / "saved_model").read_text() == "first"
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_no_export_wrote_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"export.folder=.*: .* set export.folder="):
        folder.target_folder(ExportConfig(str(tmp_path)), RUN)
    with pytest.raises(ConfigError, match=r"export\.folder"):
        folder.target_folder(ExportConfig(str(tmp_path / "thesis.txt")), RUN)
    (tmp_path / "empty").mkdir()
    assert folder.target_folder(ExportConfig(str(tmp_path / "empty")), RUN) == tmp_path / "empty"

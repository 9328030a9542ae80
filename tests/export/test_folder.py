from pathlib import Path

import pytest

from runner.checkpoint.runs import SavedRun
from runner.cli import export as folder
from runner.config.schema import ExportConfig
from runner.errors import ConfigError

RUN = SavedRun(Path("nowhere"), {"run": "abc", "tracked": True})


def export(path: Path, text: str, name: str = "model.keras") -> None:
    """Writes a small export; it fails after its files are written if the text is empty."""
    with folder.making(path) as making:
        (making / folder.RECORD).write_text("{}")
        (making / name).write_text(text)
        if not text:
            raise RuntimeError


def test_the_default_folder_has_the_name_of_the_run() -> None:
    assert folder.target_folder(ExportConfig(), RUN).parts[-3:] == ("outputs", "exports", "abc")


def test_an_earlier_export_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    path = tmp_path / "served" / "model"
    export(path, "first")
    (path / "saved_model").mkdir()
    (path / "notes").mkdir()
    (path / "notes" / "mine.txt").write_text("precious")
    assert folder.target_folder(ExportConfig(str(path)), RUN) == path
    export(path, "second", "tokenizer.json")
    assert sorted(each.name for each in path.iterdir()) == ["export.json", "notes", "tokenizer.json"]
    assert (path / "notes" / "mine.txt").read_text() == "precious"
    assert [each.name for each in path.parent.iterdir()] == ["model"]


def test_an_export_that_fails_leaves_the_earlier_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model"
    export(path, "first")
    with pytest.raises(RuntimeError):
        export(path, "")
    assert (path / "model.keras").read_text() == "first"
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_crash_while_an_export_is_replaced_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    export(path, "first")
    rename = Path.rename

    def crash(source: Path, target: Path) -> Path:
        if target.name == folder.RECORD:
            raise KeyboardInterrupt
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        export(path, "second")
    assert [each.name for each in path.iterdir()] == ["model.keras"]


def test_a_folder_that_no_export_wrote_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"export.folder=.*: .* set export.folder="):
        folder.target_folder(ExportConfig(str(tmp_path)), RUN)
    with pytest.raises(ConfigError, match=r"export\.folder"):
        folder.target_folder(ExportConfig(str(tmp_path / "thesis.txt")), RUN)
    (tmp_path / "empty").mkdir()
    assert folder.target_folder(ExportConfig(str(tmp_path / "empty")), RUN) == tmp_path / "empty"

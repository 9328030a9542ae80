"""Exports that are copied into an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("obstore")

from runner.config.schema import ExportConfig
from runner.errors import ConfigError
from runner.export import command, folder
from runner.host.console import Console
from runner.host.stores import client
from runner.host.stores.client import StoreError
from runner.host.stores.urls import ObjectPath
from tests.export.test_folder import RUN, export

URL = "memory://test-exports/"


def test_an_export_is_made_locally_and_copied_with_its_record_last(tmp_path: Path) -> None:
    path = folder.store_target(ExportConfig(URL + "whole"))
    assert path is not None
    assert folder.target(ExportConfig(URL + "whole"), RUN).parts[-3:] == ("outputs", "exports", "abc")
    export(tmp_path / "model", "first")
    (tmp_path / "model" / "variables").mkdir()
    (tmp_path / "model" / "variables" / "data").write_text("kept elsewhere")
    folder.upload(tmp_path / "model", path)
    assert set(client.below(path)) == {"saved_model", folder.RECORD, "variables/data"}
    assert client.read(path / "saved_model") == b"first"


def test_an_earlier_export_is_replaced_completely(tmp_path: Path) -> None:
    path = ObjectPath.of(URL + "replaced")
    with folder.making(tmp_path / "first") as making:
        (making / "old").write_text("old")
        (making / folder.RECORD).write_text("{}")
    folder.upload(tmp_path / "first", path)
    export(tmp_path / "second", "second")
    assert folder.store_target(ExportConfig(str(path))) == path
    folder.upload(tmp_path / "second", path)
    assert set(client.below(path)) == {"saved_model", folder.RECORD}


def test_a_copy_that_fails_is_no_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ObjectPath.of(URL + "failed")
    export(tmp_path / "model", "first")
    folder.upload(tmp_path / "model", path)

    def fail(_: Path, path: ObjectPath) -> None:
        raise StoreError(f"{path}: 503")

    monkeypatch.setattr(client, "upload", fail)
    with pytest.raises(StoreError):
        folder.upload(tmp_path / "model", path)
    assert client.size(path / folder.RECORD) is None
    # The next export may replace what is there.
    assert folder.store_target(ExportConfig(str(path))) == path


def test_an_export_is_recorded_although_its_copy_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ObjectPath.of(URL + "recorded")
    export(tmp_path / "model", "first")
    recorded: list[str] = []

    def fail(_: Path, path: ObjectPath) -> None:
        raise StoreError(f"{path}: 503")

    monkeypatch.setattr(client, "upload", fail)
    with pytest.raises(StoreError):
        command._record_and_copy(Console(), lambda: recorded.append("in MLflow"), tmp_path / "model", path)
    assert recorded == ["in MLflow"]


def test_a_folder_with_other_objects_is_rejected() -> None:
    path = ObjectPath.of(URL + "others")
    client.write(path / "mine", b"precious")
    with pytest.raises(ConfigError, match="an earlier export without other objects"):
        folder.store_target(ExportConfig(str(path)))

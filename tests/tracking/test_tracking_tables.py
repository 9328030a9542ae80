"""Tables of a new SQLite store: those of MLflow's own migrations, written at once, and never over another's."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy
from mlflow import MlflowClient
from mlflow.store.db import utils

from runner.tracking import probe


def schema(path: Path) -> dict[str, list[str]]:
    """Returns the columns of each table and index; their constraints come in any order."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master").fetchall()
    return {name: sorted(line.strip(" ,\t)") for line in (sql or "").splitlines()) for name, sql in rows}


def test_the_tables_are_those_of_mlflows_migrations(tmp_path: Path) -> None:
    utils._initialize_tables(sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'theirs.db'}"))
    probe.create_tables(tmp_path / "ours.db")
    assert schema(tmp_path / "ours.db") == schema(tmp_path / "theirs.db")
    versions = []
    for name in ("ours", "theirs"):
        with sqlite3.connect(tmp_path / f"{name}.db") as connection:
            versions += connection.execute("SELECT version_num FROM alembic_version").fetchall()
    assert len(versions) == 2
    assert versions[0] == versions[1]
    assert MlflowClient(f"sqlite:///{tmp_path / 'ours.db'}").create_experiment("mine") == "1"


def test_tables_that_another_process_creates_meanwhile_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mlflow.db"

    def slow() -> str:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE runs (name TEXT)")
            other.execute("INSERT INTO runs VALUES ('precious')")
        return "BEGIN TRANSACTION;\nCREATE TABLE first (x);\nCREATE TABLE runs (x);\nCOMMIT;"

    monkeypatch.setattr(probe, "_script", slow)
    probe.create_tables(path)
    probe.create_tables(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("runs",)]
        assert connection.execute("SELECT name FROM runs").fetchall() == [("precious",)]

"""Tables of a new SQLite store: those of MLflow's own migrations, also after a process died while it made them."""

import sqlite3
from pathlib import Path

import sqlalchemy
from mlflow.store.db import utils

from runner.tracking.store import open_store


def schema(path: Path) -> dict[str, list[str]]:
    """Returns the columns of each table and index; their constraints come in any order."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master").fetchall()
    return {name: sorted(line.strip(" ,\t)") for line in (sql or "").splitlines()) for name, sql in rows}


def test_the_tables_are_those_of_mlflows_migrations(tmp_path: Path) -> None:
    utils._initialize_tables(sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'theirs.db'}"))
    (tmp_path / "ours.db.new").write_text("half a file")
    store = open_store(f"sqlite:///{tmp_path / 'ours.db'}", "tests")
    assert store.experiment_id == "1"
    assert schema(tmp_path / "ours.db") == schema(tmp_path / "theirs.db")
    assert not (tmp_path / "ours.db.new").exists()

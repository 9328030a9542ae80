"""A store whose folder was moved or copied: MLflow keeps where files lie as absolute places."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

FOLDER = "mlartifacts"  # beside the store
_WAIT_S = 5.0


def follow(database: Path) -> None:
    """Leads the records of a store to the files beside it, where these have come along to another place.

    Else a run that goes on would write into the folder that was left, and nothing recorded before would be found.
    Places that hold other runs' files than those that lie here stay as they are.

    Args:
      database: the store's file.

    Raises:
      sqlite3.Error: it can't be read or written.
    """
    folder = database.parent / FOLDER
    if not (database.is_file() and folder.is_dir()):
        return
    here = folder.as_uri()
    with closing(sqlite3.connect(database, timeout=_WAIT_S)) as store, store:
        tables = {name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"experiments", "runs"} <= tables:
            return
        places = store.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall()
        for (there,) in places:
            if there and there != here and there.startswith("file:") and there.endswith(f"/{FOLDER}"):
                found = store.execute(f"SELECT run_uuid FROM runs WHERE {_below('artifact_uri')}", _start(there))
                if any((folder / run).is_dir() for (run,) in found):
                    _lead(store, there, here, models="logged_models" in tables)


def _below(column: str) -> str:
    return f"substr({column}, 1, ?) = ?"


def _start(there: str) -> tuple[int, str]:
    return len(there) + 1, f"{there}/"


def _lead(store: sqlite3.Connection, there: str, here: str, *, models: bool) -> None:
    store.execute("UPDATE experiments SET artifact_location = ? WHERE artifact_location = ?", (here, there))
    columns = [("runs", "artifact_uri"), *([("logged_models", "artifact_location")] if models else [])]
    for table, column in columns:
        store.execute(
            f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE {_below(column)}",
            (here, len(there) + 1, *_start(there)),
        )

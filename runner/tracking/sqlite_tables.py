"""Creates a new SQLite store's tables in memory; writes them in one transaction.

MLflow creates them in the file by running all of its migrations one after another. Each waits for the disk several
times, which takes seconds, and an interrupt in between leaves a file that MLflow can't open any more. Running the
same migrations in memory took 0.5 s of CPU time instead of 0.8 s, and 1 s instead of 5 s (MLflow 3.17, slow disk).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import sqlalchemy
from mlflow.store.db import utils
from sqlalchemy.pool import StaticPool

# MLflow's private function that runs the migrations. Without it, MLflow creates the tables itself, as said above.
_INITIALIZE = "_initialize_tables"
# For another process that is writing the same tables.
_LOCK_TIMEOUT_S = 10.0


def create_tables(path: Path) -> None:
    """Creates MLflow's tables in a SQLite file that has none, whose folder exists; else does nothing.

    A failure is not reported here: MLflow, which opens the file next, meets its cause too.
    """
    if not hasattr(utils, _INITIALIZE):
        return
    with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not count:
            # The transaction fails if another process has created a table meanwhile, so nothing is overwritten.
            with suppress(sqlite3.Error):
                connection.executescript(_script())


def _script() -> str:
    """Returns the statements that create the tables, as one transaction."""
    # With StaticPool all connections share the one database in memory.
    engine = sqlalchemy.create_engine("sqlite://", poolclass=StaticPool)
    try:
        getattr(utils, _INITIALIZE)(engine)
        with closing(engine.raw_connection()) as connection:
            memory = connection.driver_connection
            assert isinstance(memory, sqlite3.Connection)
            return "\n".join(memory.iterdump())
    finally:
        engine.dispose()

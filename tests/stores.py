"""Empty MLflow stores. Making one takes MLflow seconds, so each process of the tests makes one and copies it."""

from __future__ import annotations

import functools
import shutil
import tempfile
import threading
from pathlib import Path

# Tests may ask from several threads, and MLflow's migrations keep their state in globals of the process.
_making = threading.Lock()


@functools.cache
def made() -> Path:
    """Returns an empty store that was made once."""
    from runner.tracking.store import open_store

    path = Path(tempfile.mkdtemp(prefix="store-")) / "mlflow.db"
    open_store(f"sqlite:///{path}", "unused")
    return path


def store_in(folder: Path) -> str:
    """Returns the address of the folder's store, `mlflow.db`, an empty one where it had none."""
    path = folder / "mlflow.db"
    if not path.exists():
        with _making:
            empty = made()
        shutil.copyfile(empty, path)
    return f"sqlite:///{path}"

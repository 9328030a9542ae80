"""Empty MLflow stores. Making one takes MLflow seconds, so a session makes one, and its tests copy it."""

import functools
import os
import shutil
import tempfile
import threading
from pathlib import Path

# Tests may ask from several threads, and MLflow's migrations keep their state in globals of the process.
_making = threading.Lock()


@functools.cache
def made() -> Path:
    """Returns an empty store that was made once, by this process or another one with the same cache."""
    kept = Path(os.environ.get("XDG_CACHE_HOME") or tempfile.mkdtemp(prefix="store-")) / "empty.db"
    if not kept.exists():
        from runner.tracking.store import open_store

        kept.parent.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix="store-", dir=kept.parent)) / "mlflow.db"
        open_store(f"sqlite:///{path}", "unused")
        path.replace(kept)  # at once: another process may look for it
    return kept


def store_in(folder: Path) -> str:
    """Returns the address of the folder's store, `mlflow.db`, an empty one where it had none."""
    path = folder / "mlflow.db"
    if not path.exists():
        with _making:
            empty = made()
        shutil.copyfile(empty, path)
    return f"sqlite:///{path}"

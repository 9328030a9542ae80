"""Records of files that were read, so that a later run reads only changed ones.

A file counts as unchanged if its size and its time of change are the same. The time is ctime, which no program can set
back.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# File systems store times with a resolution of up to 2 s (FAT). A file that changed this recently may change again
# without a new time, so it is not recorded.
_CLOCK_TICK_NS = 3_000_000_000


def read_records(path: Path, version: int) -> dict[str, object]:
    """Returns the recorded value of each file.

    The result is empty if there are no records of this version.
    """
    try:
        content = json.loads(path.read_text())
        if content["format"] != version:
            return {}
        return dict(content["files"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # No records, or a file of another program. The files are then read again.
        return {}


def write_records(path: Path, version: int, records: Mapping[str, object]) -> None:
    """Writes the records atomically; does nothing if the folder can't be written."""
    # Named by the process, because several may write at once; the last one wins.
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"format": version, "files": records}))
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()


def latest_recordable_ns() -> int:
    """Returns the time of change, in ns, before which a file may be recorded."""
    return time.time_ns() - _CLOCK_TICK_NS

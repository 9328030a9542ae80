"""Stores files of records that a run could not store: `python -m runner.tracking.replay FILE...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import TrackingError
from runner.host.late import late

if TYPE_CHECKING:
    from runner.tracking import unsent
else:
    unsent = late("runner.tracking.unsent")


def main(names: list[str]) -> int:
    """Stores each file and removes it.

    Args:
      names: the files' paths.

    Returns:
      The process's exit code: 0 all stored, 1 one could not be stored, 2 nothing was named.
    """
    if not names:
        print("usage: python -m runner.tracking.replay FILE...", file=sys.stderr)
        return 2
    code = 0
    for name in names:
        try:
            print(f"{name}: {unsent.replay(Path(name), warn=_warn)} records stored")
        except (TrackingError, ValueError, OSError) as error:
            print(error, file=sys.stderr)
            code = 1
    return code


def _warn(line: str) -> None:
    print(line, file=sys.stderr)

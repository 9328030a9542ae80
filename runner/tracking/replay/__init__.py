"""Command that stores unsent records: `python -m runner.tracking.replay FILE...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, TrackingError
from runner.host.late import late

if TYPE_CHECKING:
    from runner.tracking import replaying
else:
    replaying = late("runner.tracking.replaying")


def main(names: Sequence[str]) -> int:
    """Stores each file and removes it.

    Args:
      names: paths of the files.

    Returns:
      The process's exit code: 0 all stored, 1 one could not be stored, 2 no file was named.
    """
    if not names:
        print("usage: python -m runner.tracking.replay FILE...", file=sys.stderr)
        return EXIT_REFUSED
    code = EXIT_DONE
    for name in names:
        try:
            count = replaying.replay(Path(name), warn=_warn)
            print(f"{name}: {count} records stored")
        except (TrackingError, ValueError, OSError) as error:
            print(error, file=sys.stderr)
            code = EXIT_FAILED
    return code


def _warn(line: str) -> None:
    print(line, file=sys.stderr)

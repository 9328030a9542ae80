"""Progress lines of the preparation of a dataset."""

from __future__ import annotations

import sys

from runner.host import stages


def report_progress(text: str) -> None:
    """Prints a progress line on stderr."""
    stages.leave_line()
    print(f"dataset: {text}", file=sys.stderr, flush=True)

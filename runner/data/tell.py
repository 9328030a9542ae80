"""Says what the preparation of a dataset is doing."""

from __future__ import annotations

import sys

from runner.host import stages


def tell(text: str) -> None:
    """Says on stderr what the preparation of a dataset is doing."""
    stages.leave_line()
    print(f"dataset: {text}", file=sys.stderr, flush=True)

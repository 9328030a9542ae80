"""What the child process starts with: it takes stdout for its reports before a library can print there."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import IO


def main(job: str) -> None:
    """Does one job.

    Args:
      job: JSON object of `paths` (the parent's import path, for a user's own builder) and what `decode.run` takes.
    """
    report = _reporter()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    content = json.loads(job)
    sys.path += [path for path in content["paths"] if path not in sys.path]
    import_module("runner.data.sources.tfds.decode").run(content, report)  # not above: it imports TensorFlow


def _reporter() -> Callable[[str, str], None]:
    """Takes stdout for the reports, and leaves to libraries that print a stdout that leads to the log."""
    channel: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def report(kind: str, text: str) -> None:
        channel.write(json.dumps({"kind": kind, "text": " ".join(text.split())}) + "\n")
        channel.flush()

    return report


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)

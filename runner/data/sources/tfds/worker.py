"""The entry point of the child process.

It claims stdout for messages before a library can print there.
"""

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
      job: JSON object with `paths`, the parent's import path for a user's own builder, and the job of `decode.run`.
    """
    send = _message_sender()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    content = json.loads(job)
    for path in content["paths"]:
        if path not in sys.path:
            sys.path.append(path)
    # Not at the top, because it imports TensorFlow, which prints.
    import_module("runner.data.sources.tfds.decode").run(content, send)


def _message_sender() -> Callable[[str, str], None]:
    """Returns the function that sends messages through stdout.

    Other output is redirected to stderr, the log.
    """
    channel: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(kind: str, text: str) -> None:
        channel.write(json.dumps({"kind": kind, "text": " ".join(text.split())}) + "\n")
        channel.flush()

    return send


def _end_with_parent() -> None:
    # The parent never writes, so this returns when the parent's end of the pipe is closed, however the parent ended.
    sys.stdin.buffer.read()
    os._exit(1)

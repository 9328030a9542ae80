"""Starts the child process that decodes a TFDS dataset; receives its messages.

TFDS runs in a child process because it initializes TensorFlow, which must not happen here before the mesh is set up.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO

from runner.data.progress import report_progress
from runner.data.sources.tfds.cache import Request
from runner.errors import ConfigError, DataError

# The folder that contains the package `runner`.
_ROOT = Path(__file__).resolve().parents[4]
# The folder is appended to the import path, so that no file next to the package can hide a standard module.
_START = (
    "import sys; sys.path.append(sys.argv[1]); from runner.data.sources.tfds.worker import main; main(sys.argv[2])"
)
# Bytes at the end of the log in which the last line is searched, and characters of that line that a message shows.
_LOG_TAIL_BYTES = 4096
_MAX_LINE = 200


def decode(
    root: Path,
    request: Request,
    *,
    download: bool,
    mirror: bool,
    report: Callable[[str], None] = report_progress,
) -> None:
    """Fetches, prepares and decodes a dataset into the cache, in a child process.

    The child writes one JSON object per line to its stdout; the output of libraries goes to a temporary log. It ends
    when its stdin is closed, so it never outlives this process.

    Args:
      root: the data_dir.
      request: the data to decode.
      download: whether anything may be downloaded.
      mirror: whether the mirror may be used if TFDS's hosts can't be reached.
      report: receives progress lines.

    Raises:
      ConfigError: the value of a key does not fit the dataset.
      DataError: the data can't be prepared.
    """
    paths = []
    if request.code:
        # A user's own builder is imported from the folders that this process imports from.
        paths = [path or str(Path.cwd()) for path in sys.path]
    job = {"root": str(root), "request": asdict(request), "download": download, "mirror": mirror, "paths": paths}
    command = [sys.executable, "-P", "-c", _START, str(_ROOT), json.dumps(job)]
    # No GPU, because its memory belongs to the run, and no messages of TensorFlow below fatal errors.
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True
        )
        with child:
            try:
                assert child.stdout is not None
                is_done = _receive(child.stdout, report)
            except BaseException:
                child.kill()
                raise
            with contextlib.suppress(OSError):
                child.communicate()
        if not is_done:
            raise DataError(
                f"preparing {request.name} failed with exit code {child.returncode}: {_last_line(log)}; start again, "
                "or use dataset=digits"
            )


def _receive(lines: IO[str], report: Callable[[str], None]) -> bool:
    """Handles the child's messages; returns whether it finished its job."""
    for line in lines:
        message = json.loads(line)
        match message["kind"]:
            case "progress":
                report(message["text"])
            case "invalid":
                raise ConfigError(message["text"])
            case "failed":
                raise DataError(message["text"])
            case "done":
                return True
    return False


def _last_line(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _LOG_TAIL_BYTES))
    lines = log.read().decode(errors="replace").split("\n")
    for line in reversed(lines):
        if line.strip():
            return line.strip()[:_MAX_LINE]
    return "no output"
